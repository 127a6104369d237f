"""A server that is killed goes on with its rounds, whatever their options are: the same spec, bits and counts."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from every_client import digest, one

SPECS = {
    "order statistics": one(
        row_width=2, num_rows=50, op="trimmed_mean", trim_fraction=0.2, weighting="by_weight", absent="zero"
    ),
    "cut and moments": one(
        num_rows=50, row_width=2, op="mean", weighting="by_weight", result_top_k=20, return_counts=True,
        return_moments=True,
    ),
    "bounds": one(num_rows=50, row_width=2, weighting="by_weight", clip=sa.ClipSpec(l2=2.0, max_keys=15)),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_round_goes_on_after_a_kill_before_and_after_its_close(start_server, tmp_path, name):
    spec, flags = SPECS[name], ["--data-dir", str(tmp_path / "data")]
    rng = np.random.default_rng(4)
    updates = {
        f"client {i}": ({"v": (rng.choice(50, 20, False), rng.standard_normal((20, 2)))}, 1.0 + i) for i in range(9)
    }
    expected = sa.aggregate(updates, spec)

    def submit(opened: sa.Round, clients: list[str]) -> None:
        for client_id in clients:
            opened.submit(client_id, *updates[client_id])

    server = start_server(*flags)
    with sa.Client(server.address) as client:
        submit(client.create_round(spec, "kept"), list(updates)[:6])
        clipped = client.get_round("kept").info.clip
    server.kill()
    server = start_server(*flags)
    with sa.Client(server.address) as client:
        opened = client.get_round("kept")
        assert (opened.spec, opened.info.clip) == (spec, clipped)
        submit(opened, list(updates)[6:])
        assert digest(opened.finish()) == digest(expected)
    server.kill()
    with sa.Client(start_server(*flags).address) as client:
        opened = client.get_round("kept")
        opened.wait()
        assert digest(opened.result()) == digest(expected)
        assert opened.info.clip == expected.info.clip
        assert [each.num_cut_keys for each in opened.info.results] == [
            each.num_cut_keys for each in expected.info.results
        ]
