"""What a server says of its activity: totals that keep what deleted rounds did, by tenant, and who reads them."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from guarded_server import make_token

SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])
UPDATE = {"v": ([3, 4], [1.0, 2.0])}


def run_round(client: sa.Client, round_id: str) -> None:
    """A round of two submissions, one of them sent twice, and a refused one; deleted at the end."""
    opened = client.create_round(SPEC, round_id)
    for name in ("a", "b", "b"):
        opened.submit(name, UPDATE, submission_id=name)
    with pytest.raises(sa.InvalidArgumentError):
        opened.submit("c", {"v": ([3], np.array([np.nan], np.float32))})
    opened.finish()
    opened.delete()


def test_totals_keep_what_deleted_rounds_did(server):
    with sa.Client(server.address) as client:
        before = client.server_info().activity
        run_round(client, "r")
        client.create_round(SPEC, "open")
        stream = client.create_stream(SPEC, buffer=2)
        for name in ("a", "b"):
            stream.submit(name, UPDATE, base_version=0)
        next(iter(stream.versions()))  # the server ends a version after the answer to its last commit
        after = client.server_info().activity
    changes = [
        getattr(after, name) - getattr(before, name)
        for name in ("num_rounds", "num_ended_rounds", "num_submissions", "num_refused")
    ]
    assert changes == [2 + 2, 1 + 1, 2 + 2, 1]  # the stream has a version, and a begun one
    assert after.received_bytes - before.received_bytes >= 3 * 2 * (4 + 4)
    assert after.resident_bytes > 1 << 20
    assert after.start_time == before.start_time
    assert len(after.resident_bytes_history) >= 1  # the first value is of the start
    assert after.history_interval == 5.0


def test_totals_are_of_the_tenant_and_of_roles_that_see_all_its_rounds(start_server, tmp_path):
    tokens = {
        (role, tenant): make_token(tmp_path / "tokens", role, "--tenant", tenant)
        for role, tenant in (("admin", "red"), ("observer", "red"), ("client", "red"), ("observer", "blue"))
    }
    address = start_server("--tokens-file", str(tmp_path / "tokens")).address
    with sa.Client(address, token=tokens["admin", "red"]) as client:
        run_round(client, "r")
    seen = {}
    for caller, token in tokens.items():
        with sa.Client(address, token=token) as client:
            seen[caller] = client.server_info().activity
    assert seen["client", "red"] is None
    assert [seen[role, "red"].num_submissions for role in ("admin", "observer")] == [2, 2]
    assert seen["observer", "blue"].num_submissions == seen["observer", "blue"].num_rounds == 0
    assert seen["admin", "red"].resident_bytes > 0
    assert seen["observer", "red"].resident_bytes == 0
    assert seen["observer", "red"].resident_bytes_history == ()
