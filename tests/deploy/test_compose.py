"""Compose as its how-to says, from an empty folder: plain; and secure, killed and upgraded under load, restored."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable

import machine
import run_page
import sparseagg as sa
from conftest import PATIENT, SPEC, UPDATE, Shell, block, get, part, until


def inspected(container: str, form: str) -> str:
    return machine.podman("inspect", "--format", "{{" + form + "}}", container).stdout.strip()


def test_plain(shell: Shell) -> None:
    """The server answers a round, is healthy, and is scraped by Prometheus, which has taken the rules."""
    shell.do("docker compose -f $HOME/sparseagg/deploy/compose/compose.yaml up --build --detach")
    with sa.Client("127.0.0.1:8001", retry=PATIENT) as client, client.create_round(SPEC) as opened:
        opened.submit("a", UPDATE)
        assert opened.finish()["t"].values.sum() == 500
    assert urllib.request.urlopen("http://127.0.0.1:8003/", timeout=30).status == 200
    machine.podman("healthcheck", "run", "sparseagg-trial_server_1")
    until(
        lambda: get("http://127.0.0.1:9090/api/v1/query?query=up%7Bjob%3D%22sparseagg%22%7D%3D%3D1")["data"]["result"]
    )
    (group,) = get("http://127.0.0.1:9090/api/v1/rules")["data"]["groups"]
    assert len(group["rules"]) == 17


def test_one_container() -> None:
    """The page's line for Podman, but for its first one, which compiles; a stop is in order."""
    _, run = run_page.commands_of(block("deploy-compose", "with Podman"))
    with subprocess.Popen(["sh", "-c", f"exec {run}"], env={**os.environ, **machine.ENVIRONMENT}) as container:
        with sa.Client("127.0.0.1:8001", retry=PATIENT) as client, client.create_round(SPEC) as opened:
            opened.submit("a", UPDATE)
            assert opened.finish()["t"].values.sum() == 500
        machine.podman("stop", "--time", "15", machine.podman("ps", "--quiet").stdout.strip())
    assert container.returncode == 0


class Load:
    """Clients that submit to a round, each again until it is acknowledged, while the server goes and comes."""

    def __init__(self, connect: Callable[[], sa.Client]) -> None:
        self.acknowledged: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(connect, first), daemon=True) for first in range(4)]
        for thread in self._threads:
            thread.start()

    def _run(self, connect: Callable[[], sa.Client], first: int) -> None:
        with connect() as client:
            opened = client.get_round("nightly")
            number = first
            while not self._over.is_set():
                opened.submit(f"c{number}", UPDATE)
                self.acknowledged.append(f"c{number}")
                number += 4

    def more(self) -> None:
        """Waits for another twenty."""
        wanted = len(self.acknowledged) + 20
        until(lambda: len(self.acknowledged) >= wanted)

    def end(self) -> int:
        """Returns how many were acknowledged."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        return len(self.acknowledged)


def test_secure(shell: Shell) -> None:
    """Kill -9, an upgrade and a restart under load lose nothing and count nothing twice; a backup is restored."""
    shell.page(part("deploy-compose", "1. Tokens and a certificate", "2. Start"))
    connect = lambda role="site-7": sa.Client(  # noqa: E731
        "localhost:8001",
        tls=str(shell.folder / "secrets/server.pem"),
        token=(shell.folder / f"{role}.token").read_text().strip(),
        retry=PATIENT,
    )
    with connect("coordinator") as coordinator:
        until(lambda: coordinator.server_info())
        shell.page(part("deploy-compose", "3. Check"))
        opened = coordinator.create_round(SPEC, "nightly")
        load = Load(lambda: connect("coordinator"))
        load.more()
        os.kill(int(inspected("sparseagg_server_1", ".State.Pid")), signal.SIGKILL)
        load.more()
        old = inspected("sparseagg_server_1", ".Image")
        (machine.PREBUILT / "usr/bin/another-version").write_text(str(time.time()))
        shell.do(*re.findall(r"`(docker compose up [^`]*)`", part("upgrade", "Upgrade")))
        assert inspected("sparseagg_server_1", ".Image") != old
        load.more()
        number = load.end()
        print(f"\n{number} submissions")
        before, _, after = part("deploy-compose", "Back up").partition("To restore")
        shell.page(before)
        assert opened.finish()["t"].values.sum() == 500 * number
        shell.page(after)
        opened = coordinator.get_round("nightly")
        assert sorted(each.client_id for each in opened.submissions()) == sorted(load.acknowledged)
        opened.submit("late", UPDATE)
        assert opened.finish()["t"].values.sum() == 500 * (number + 1)
