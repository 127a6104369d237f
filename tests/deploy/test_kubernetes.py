"""Kubernetes as its how-to says, with a container of Podman for each pod: a kill, a backup and its restoration."""

from __future__ import annotations

import machine
import sparseagg as sa
from conftest import PATIENT, SPEC, UPDATE, Shell, part


def test_chart(shell: Shell) -> None:
    shell.page(part("deploy-kubernetes", "1. Tokens and a certificate", "2. A volume", "3. Install", "4. Check"))
    token = (shell.folder / "coordinator.token").read_text().strip()
    with sa.Client("localhost:8001", tls=str(shell.folder / "tls.crt"), token=token, retry=PATIENT) as client:
        opened = client.create_round(SPEC, "nightly")
        opened.submit("a", UPDATE)
        machine.podman("kill", "--signal", "KILL", "merge-sparseagg")
        machine.podman("start", "merge-sparseagg")
        opened.submit("b", UPDATE)
        before, _, after = part("deploy-kubernetes", "Back up").partition("To restore")
        shell.page(before)
        opened.submit("late", UPDATE)
        assert opened.finish()["t"].values.sum() == 3 * 500
        shell.page(after)
        opened = client.get_round("nightly")
        assert [each.client_id for each in opened.submissions()] == ["a", "b"]
        assert opened.finish()["t"].values.sum() == 2 * 500
