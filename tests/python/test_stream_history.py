"""Catch-up over the versions of a stream: a client that has an old version is sent the rows changed since, alone."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from sparseagg.history import RowHistory

ROWS, WIDTH, VERSIONS, BUFFER, SEED = 500, 3, 12, 4, 40


@pytest.mark.parametrize("empty_version", [None, 5])
def test_rows_since_a_version_make_the_newest_model(empty_version):
    rng = np.random.default_rng(SEED)
    spec = sa.RoundSpec(
        [sa.TensorSpec("v", "float32", num_rows=ROWS, row_width=WIDTH)], op="mean", mean_divisor="submissions"
    )
    models = [rng.standard_normal((ROWS, WIDTH)).astype(np.float32)]
    history = RowHistory({"v": ROWS})
    with sa.Client(":memory:") as client:
        stream = client.stream(spec, buffer=BUFFER, staleness=sa.staleness.polynomial(0.5), max_staleness=VERSIONS)
        for version in range(1, VERSIONS + 1):
            for commit in range(BUFFER):
                keys = np.sort(rng.choice(ROWS, 0 if version == empty_version else 20, replace=False)).astype(np.uint32)
                rows = rng.standard_normal((len(keys), WIDTH)).astype(np.float32)
                stream.submit(f"c{commit}", {"v": (keys, rows)}, base_version=int(rng.integers(version)))
        for version in stream.watch(0):
            merged = stream.result(version.version)["v"]
            models.append(models[-1].copy())
            models[-1][merged.keys] += merged.values.reshape(-1, WIDTH)
            history.record(version.version, {"v": merged.keys})
    assert history.version == VERSIONS
    for since, old in enumerate(models):
        keys = history.changed_since("v", since)
        assert len(keys) <= 20 * BUFFER * (VERSIONS - since)
        caught_up = old.copy()
        caught_up[keys] = models[-1][keys]
        np.testing.assert_array_equal(caught_up, models[-1], err_msg=f"seed {SEED}, since version {since}")
