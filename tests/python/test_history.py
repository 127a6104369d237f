"""RowHistory against a dictionary of sets."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import sparseagg as sa
from sparseagg.history import RowHistory

SEED = 26


@pytest.mark.parametrize("rows", [1, 31, 1000, 1 << 40, 0])
@pytest.mark.parametrize("budget", [1500, 9000, 1 << 30])
def test_history_agrees_with_sets(rows, budget):
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    history, told = RowHistory({"a": rows, "b": 10}, since=3, budget_bytes=budget), {}
    for version in range(4, 40):
        size, most = int(rng.integers(0, 60)), (1 << 64) - 1 if rows == 0 else rows - 1
        spread = most if rng.random() < 0.5 else min(most, 300)
        keys = rng.integers(0, spread, size, endpoint=True, dtype=np.uint64)
        changed = {"a": None if rng.random() < 0.05 else keys}
        if rng.random() < 0.3:
            changed["b"] = rng.integers(0, 10, 3)
        history.record(version, changed)
        told[version] = changed
        assert history.num_bytes <= budget
        if version % 10 == 0:
            history = pickle.loads(pickle.dumps(history))
        for since in range(1, version + 2):
            for name in ("a", "b"):
                later = [each[name] for at, each in told.items() if at > since and name in each]
                found = history.changed_since(name, since)
                if since < history.oldest or any(each is None for each in later):
                    assert found is None
                else:
                    assert found.tolist() == sorted(set().union(*map(np.ndarray.tolist, later)))
                    assert found.dtype in (np.int64, np.uint64)
    assert history.oldest == 3 if budget == 1 << 30 else history.oldest >= 3
    assert budget > 1500 or history.oldest > 30


def test_history_keeps_the_smaller_of_bits_and_keys():
    history = RowHistory({"a": 1_000_000})
    history.record(1, {"a": np.arange(1_000_000)})
    assert history.num_bytes == 125_000 + 400
    history.record(2, {"a": np.arange(0, 1_000_000, 1000)})
    assert history.num_bytes == 125_000 + 4000 + 800
    assert history.changed_since("a", 1).dtype == np.int64


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda h: h.record(0, {}), "a version must be an integer above 0, got 0"),
        (lambda h: h.record(1.5, {}), "got 1.5"),
        (lambda h: h.record(1, [1]), r"changed must be a mapping from tensor names to keys, got \[1\]"),
        (lambda h: h.record(1, {"b": [1]}), "unknown tensor 'b'; this history has 'a'"),
        (lambda h: h.record(1, {"b": None}), "unknown tensor 'b'"),
        (lambda h: h.record(1, {"a": [10]}), r"tensor 'a': key 10 is not in \[0, 10\)"),
        (lambda h: h.record(1, {"a": [-1]}), "key -1 is not in"),
        (lambda h: h.record(1, {"a": [0.5]}), "not of float64"),
        (lambda h: h.record(1, {"a": [[1]]}), r"shape \(1, 1\)"),
        (lambda h: h.changed_since("b", 0), "unknown tensor 'b'"),
        (lambda h: h.changed_since("a", "0"), "a version must be an integer, got '0'"),
        (lambda h: RowHistory({"a": -1}), "the number of rows of tensor 'a' must be from 0"),
        (lambda h: RowHistory(["a"]), "rows must be a mapping"),
        (lambda h: RowHistory({}, budget_bytes=-1), "budget_bytes must be a number from 0 on, got -1"),
    ],
    ids=range(14),
)
def test_what_is_wrong_is_refused_and_changes_nothing(use, text):
    history = RowHistory({"a": 10})
    with pytest.raises(sa.InvalidArgumentError, match=text):
        use(history)
    assert (history.version, history.num_bytes) == (0, 0)


# ---- catch-up over the versions of a stream: a client is sent the rows changed since its version, alone ----


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
        stream = client.create_stream(
            spec, buffer=BUFFER, staleness=sa.staleness.polynomial(0.5), max_staleness=VERSIONS
        )
        for version in range(1, VERSIONS + 1):
            for commit in range(BUFFER):
                keys = np.sort(rng.choice(ROWS, 0 if version == empty_version else 20, replace=False)).astype(np.uint32)
                rows = rng.standard_normal((len(keys), WIDTH)).astype(np.float32)
                stream.submit(f"c{commit}", {"v": (keys, rows)}, base_version=int(rng.integers(version)))
        for version in itertools.islice(stream.versions(), VERSIONS):  # as they end
            merged = stream.result(version.version)["v"]
            models.append(models[-1].copy())
            models[-1][merged.keys] += merged.values.reshape(-1, WIDTH)
            history.record(version.version, {"v": merged.keys})
    for since, old in enumerate(models):
        keys = history.changed_since("v", since)
        assert len(keys) <= 20 * BUFFER * (VERSIONS - since)
        caught_up = old.copy()
        caught_up[keys] = models[-1][keys]
        np.testing.assert_array_equal(caught_up, models[-1], err_msg=f"seed {SEED}, since version {since}")
