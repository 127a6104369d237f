"""``sparseagg top``: the rounds of a running server, live in a terminal."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import math
import shutil
import sys
import time
from collections.abc import Callable
from types import ModuleType

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.channel import addresses_of
from sparseagg._internal.client.retry import RetryPolicy
from sparseagg._internal.commands import credentials_flags
from sparseagg._internal.commands.top_cluster import TopCluster
from sparseagg._internal.commands.top_keys import keys
from sparseagg._internal.commands.top_look import Look, check_metrics_url, look_at
from sparseagg._internal.commands.top_window import Window
from sparseagg.errors import InvalidArgumentError, SparseaggError

__all__ = ["DESCRIPTION", "add_arguments", "main"]

DESCRIPTION = (
    "Shows the rounds of a running server, live: state, submissions, rates and memory. The key q ends it, / filters, "
    "the arrow keys scroll. Through a pipe, and on a terminal of TERM=dumb, it prints a plain table at each refresh, "
    "until it is interrupted. With the addresses of a cluster's servers, with commas: rounds over all of them, bytes "
    "on each, and seconds of each step."
)

_CALL_TIMEOUT_S = 5.0
_MIN_INTERVAL_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument(
        "--interval",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="time between two refreshes (default: %(default)s)",
    )
    parser.add_argument(
        "--metrics",
        metavar="URL",
        help="the server's metrics, such as http://127.0.0.1:8002/metrics: adds the memory in use to the view",
    )
    parser.add_argument(
        "--filter",
        default="",
        metavar="TEXT",
        help="show only rounds and streams whose id or state has each word of TEXT",
    )
    parser.add_argument("--once", action="store_true", help="print one view, without rates, and end")


def main(arguments: argparse.Namespace) -> int:
    """Runs the command, and returns the exit status.

    Raises:
        InvalidArgumentError: a flag has a wrong value, or standard output is no terminal.
        SparseaggError: with ``--once``, the server does not answer.
    """
    if not (math.isfinite(arguments.interval) and arguments.interval >= _MIN_INTERVAL_S):
        raise InvalidArgumentError(
            f"--interval must be a time of {_MIN_INTERVAL_S} s or more, got {arguments.interval:g}"
        )
    if arguments.metrics is not None:
        check_metrics_url(arguments.metrics)
    from sparseagg._internal.commands import top_view as view  # rich takes a tenth of a second

    options = credentials_flags.client_options(arguments)
    options.update(timeout=_CALL_TIMEOUT_S, retry=RetryPolicy(attempts=1))
    servers = addresses_of(arguments.address)
    if len(servers) > 1 and arguments.metrics is not None:
        raise InvalidArgumentError("--metrics is of one server, and the address has several")
    window = Window(arguments.filter)
    with Client(arguments.address, **options) if len(servers) == 1 else TopCluster(servers, **options) as client:
        look = client.look if isinstance(client, TopCluster) else functools.partial(look_at, client, arguments.metrics)
        if arguments.once:
            on = view.console()
            on.print(view.view(on, client.address, look(), None, window, height=None))
            return 0
        with contextlib.suppress(KeyboardInterrupt):
            if view.is_screen():
                _watch(client, look, arguments.interval, window, view)
            else:
                _print_each(client, look, arguments.interval, window, view)
    return 0


class _Looks:
    """The last two looks at a server, and what went wrong since. Not thread-safe."""

    def __init__(self, look_now: Callable[[], Look], interval_s: float) -> None:
        self._look_now = look_now
        self._interval_s = interval_s
        self.now: Look | None = None
        self.before: Look | None = None
        self.trouble = ""

    def take(self, look: Callable[[], Look] | None = None) -> None:
        """Takes the next look; ``look`` returns it, or raises ``SparseaggError``."""
        try:
            self.before, self.now = self.now, (look or self._look_now)()
            self.trouble = ""
        except SparseaggError as error:
            self.before = None
            age = "no answer" if self.now is None else f"no answer for {time.monotonic() - self.now.at:.0f} s"
            self.trouble = f"{age}, asks again every {self._interval_s:g} s; {type(error).__name__}: {error}"


def _print_each(
    client: Client | TopCluster, look_now: Callable[[], Look], interval_s: float, window: Window, view: ModuleType
) -> None:
    """Looks and prints a plain table, again and again.

    A terminal gets as many rounds as it has lines for, a pipe or a file all rounds.
    """
    on = view.console()
    looks = _Looks(look_now, interval_s)
    while True:
        due = time.monotonic() + interval_s
        looks.take()
        if looks.now is None:
            on.print(view.message(client.address, looks.trouble, has_keys=False))
        else:
            height = shutil.get_terminal_size().lines - 1 if sys.stdout.isatty() else None
            on.print(
                view.view(
                    on,
                    client.address,
                    looks.now,
                    looks.before,
                    window,
                    height=height,
                    has_keys=False,
                    trouble=looks.trouble,
                )
            )
        on.print()
        sys.stdout.flush()
        time.sleep(max(0.0, due - time.monotonic()))


def _watch(
    client: Client | TopCluster, look_now: Callable[[], Look], interval_s: float, window: Window, view: ModuleType
) -> None:
    """Looks and draws until the key q, and restores the terminal in any case.

    Looks run in another thread, so that a server that does not answer delays no key.
    """
    on = view.console()
    looks = _Looks(look_now, interval_s)
    first = view.message(client.address, "connecting", has_keys=True)
    with view.live(on, first) as screen, keys() as next_keys, concurrent.futures.ThreadPoolExecutor(1) as pool:

        def draw() -> None:
            if looks.now is not None:
                shown = view.view(
                    on,
                    client.address,
                    looks.now,
                    looks.before,
                    window,
                    height=on.size.height,
                    has_keys=True,
                    trouble=looks.trouble,
                )
            elif looks.trouble:
                shown = view.message(client.address, looks.trouble, has_keys=True)
            else:
                shown = first
            screen.update(shown, refresh=True)

        def ends_before(done: Callable[[], bool]) -> bool:
            """Obeys keys until ``done``; returns whether one ended the command."""
            while not done():
                pressed = next_keys()
                if any([window.press(key) for key in pressed]):
                    return True
                if pressed:
                    draw()
            return False

        try:
            while True:
                due = time.monotonic() + interval_s
                look = pool.submit(look_now)
                if ends_before(look.done):
                    return
                looks.take(look.result)
                draw()
                if ends_before(functools.partial(_is_past, due)):
                    return
        finally:
            client.close()  # ends the look that is under way, for which the executor waits


def _is_past(due: float) -> bool:
    return time.monotonic() >= due
