"""``sparseagg top``: the rounds of a running server, live in a terminal."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import math
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.channel import addresses_of
from sparseagg._internal.client.retry import RetryPolicy
from sparseagg._internal.commands import credentials_flags
from sparseagg._internal.commands.top_cluster import TopCluster
from sparseagg._internal.commands.top_look import Look, check_metrics_url, look_at
from sparseagg.errors import InvalidArgumentError, SparseaggError

__all__ = ["DESCRIPTION", "add_arguments", "main"]

DESCRIPTION = (
    "Shows the rounds of a running server, live: state, submissions, rates and memory. The key q ends it. With the "
    "addresses of a cluster's servers, with commas: rounds over all of them, bytes on each, and seconds of each step."
)

_CALL_TIMEOUT_S = 5.0
_KEY_WAIT_S = 0.1  # between two questions whether a look has ended
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
    parser.add_argument("--once", action="store_true", help="print one view, without rates; needs no terminal")


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
    if not (arguments.once or sys.stdout.isatty()):
        raise InvalidArgumentError("top draws on a terminal, and standard output is none; --once prints a single view")
    from sparseagg._internal.commands import top_view as view  # rich takes a tenth of a second

    options = credentials_flags.client_options(arguments)
    options.update(timeout=_CALL_TIMEOUT_S, retry=RetryPolicy(attempts=1))
    servers = addresses_of(arguments.address)
    if len(servers) > 1 and arguments.metrics is not None:
        raise InvalidArgumentError("--metrics is of one server, and the address has several")
    with Client(arguments.address, **options) if len(servers) == 1 else TopCluster(servers, **options) as client:
        look = client.look if isinstance(client, TopCluster) else functools.partial(look_at, client, arguments.metrics)
        if arguments.once:
            view.print_once(client.address, look())
            return 0
        with contextlib.suppress(KeyboardInterrupt):
            _watch(client, look, arguments.interval, view)
    return 0


def _watch(client: Client | TopCluster, look_now: Callable[[], Look], interval_s: float, view: ModuleType) -> None:
    """Looks and draws until the key q, and restores the terminal in any case.

    Looks run in another thread, so that a server that does not answer delays no key.
    """
    now: Look | None = None
    before: Look | None = None
    first = view.message(client.address, "connecting")
    with view.live(first) as screen, _keys() as next_key, concurrent.futures.ThreadPoolExecutor(1) as looks:
        try:
            while True:
                due = time.monotonic() + interval_s
                look = looks.submit(look_now)
                if _ends(next_key, look.done):
                    return
                try:
                    before, now = now, look.result()
                    shown = view.view(client.address, now, before)
                except SparseaggError as error:
                    trouble = f"asks again every {interval_s:g} s; {type(error).__name__}: {error}"
                    if now is None:
                        shown = view.message(client.address, f"no answer, {trouble}")
                    else:
                        age_s = time.monotonic() - now.at
                        shown = view.view(client.address, now, None, trouble=f"no answer for {age_s:.0f} s, {trouble}")
                screen.update(shown, refresh=True)
                if _ends(next_key, functools.partial(_is_past, due)):
                    return
        finally:
            client.close()  # ends the look that is under way, for which the executor waits


def _is_past(due: float) -> bool:
    return time.monotonic() >= due


def _ends(next_key: Callable[[], str], done: Callable[[], bool]) -> bool:
    """Waits until ``done``, or for the key q; returns whether it was the key."""
    while not done():
        if next_key() == "q":
            return True
    return False


def _no_key() -> str:
    time.sleep(_KEY_WAIT_S)
    return ""


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Yields a function that returns the next key, or "" after a moment without one. Then restores the terminal."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    import termios  # where there are such terminals
    import tty

    terminal = sys.stdin.fileno()

    def next_key() -> str:
        ready, _, _ = select.select([terminal], [], [], _KEY_WAIT_S)
        if not ready:
            return ""
        return os.read(terminal, 1).decode("ascii", errors="replace") or "q"  # nothing to read: the terminal has gone

    modes = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield next_key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, modes)
