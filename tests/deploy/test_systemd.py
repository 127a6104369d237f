"""The unit under a real systemd, process 1 of a container: its first start, a kill, a backup and its restoration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import machine
import pytest
import sparseagg as sa
from conftest import PATIENT, SPEC, UPDATE, Shell, block, until

DEPLOY = machine.REPOSITORY / "deploy" / "systemd"


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Starts a machine, which has the unit and the sample of its config with the folders that it only shows."""
    sample = (DEPLOY / "server.toml").read_text()
    (tmp_path / "server.toml").write_text(re.sub(r"(?m)^# (?=(data|backup)-dir = )", "", sample))
    (tmp_path / "shared").mkdir()

    def start(name: str) -> None:
        mounts = {
            tmp_path / "server.toml": "/etc/sparseagg/server.toml:ro",
            DEPLOY / "sparseagg.service": "/etc/systemd/system/sparseagg.service:ro",
            tmp_path / "shared": "/root",
        }
        flags = [word for source, target in mounts.items() for word in ("--volume", f"{source}:{target}")]
        machine.podman(
            *("run", "--detach", "--name", name, "--privileged", "--systemd", "always", "--network", "host"),
            *(*flags, machine.SYSTEMD),
        )
        until(
            lambda: (
                machine.podman("exec", name, "systemctl", "is-active", "multi-user.target", check=False).returncode == 0
            )
        )

    return start


def inside(name: str, lines: str) -> str:
    return machine.podman("exec", "--workdir", "/root", name, "sh", "-ec", lines).stdout


def test_unit(boot: Callable[[str], None], shell: Shell) -> None:
    boot("one")
    inside("one", "systemctl daemon-reload\nsystemctl enable --now sparseagg")
    assert inside("one", "readlink /var/lib/sparseagg") == "private/sparseagg\n"
    with sa.Client("127.0.0.1:8001", retry=PATIENT) as client:
        opened = client.create_round(SPEC, "nightly")
        opened.submit("a", UPDATE)
        inside("one", "systemctl kill --signal KILL sparseagg")
        opened.submit("b", UPDATE)
        backup, tar = block("backup", "systemd, to back up").splitlines()
        shell.do(backup)
        inside("one", tar)
        opened.submit("late", UPDATE)
        assert opened.finish()["t"].values.sum() == 3 * 500
        machine.podman("rm", "--force", "--time", "30", "one")
        boot("two")
        inside("two", "systemctl start sparseagg; chown -R 4321 /var/lib/private/sparseagg")
        inside("two", block("backup", "systemd, to restore"))
        opened = client.get_round("nightly")
        assert [each.client_id for each in opened.submissions()] == ["a", "b"]
        assert opened.finish()["t"].values.sum() == 2 * 500
