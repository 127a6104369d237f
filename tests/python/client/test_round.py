"""How submissions fail at their making, how rounds end and are waited for, and what part of a result is asked for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sparseagg as sa
from every_client import SHELLS, digest, one, settled
from guarded_server import make_token
from sparseagg._internal.wire import encode

ONE = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])


def test_close_and_wait_read_nothing(connect, server, monkeypatch):
    client = connect(server.address)
    opened = client.create_round(ONE)
    opened.submit("a", np.ones(10))

    def read(*_):
        raise AssertionError("the result was read")

    monkeypatch.setattr(client._connection, "read", read)
    for _ in range(2):
        assert opened.start_merge(timeout=60).state in ("finalizing", "done")
        info = opened.wait(timeout=60)
        assert (info.state, info.num_submissions, info.results[0].num_keys) == ("done", 1, 10)


def test_result_waits_until_the_round_is_closed(client):
    opened = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)]))
    opened.submit("a", ([1], [1.0]))
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(opened.result)
        client.get_round(opened.name).start_merge()
        assert reading.result(timeout=60)["v"].keys.tolist() == [1]


@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize("max_wait", ["0s", "2ms"])
def test_wait_at_a_server_that_waits_little_asks_now_and_then(connect, start_server, monkeypatch, max_wait, attempts):
    server = start_server("--max-wait", max_wait)
    client = connect(server.address, retry=sa.RetryPolicy(attempts=attempts, initial=0.1))
    opened = client.create_round(ONE)
    calls = 0
    real = client._connection.call

    def call(method, *arguments, **options):
        nonlocal calls
        calls += method == "WaitRound"
        return real(method, *arguments, **options)

    monkeypatch.setattr(client._connection, "call", call)
    with pytest.raises(TimeoutError, match="still open"):
        opened.wait(timeout=0.5)
    assert 1 <= calls <= 15
    opened.start_merge()
    assert opened.wait().state == "done"
    client.close()


@SHELLS
@pytest.mark.parametrize("resumable", [False, True])
def test_submit_raises_what_making_a_chunk_raises(server, monkeypatch, shell, resumable):
    update = fail_after(monkeypatch, 2)
    with settled(shell, server.address, chunk_bytes=1000) as client:
        opened = client.create_round(one(num_rows=1000))
        with pytest.raises(MemoryError, match="no room for this chunk"):
            opened.submit("a", update, resumable=resumable)
        with pytest.raises(MemoryError, match="no room for this chunk"):
            client.aggregate([update], one(num_rows=1000))
        assert opened.refresh().num_submissions == 0


def fail_after(monkeypatch: pytest.MonkeyPatch, slices: int) -> tuple[np.ndarray, np.ndarray]:
    """An update of more slices than that, making one of which fails."""
    made = []

    def failing(*arguments):
        made.append(arguments)
        if len(made) > slices:
            raise MemoryError("no room for this chunk")
        return whole(*arguments)

    whole = encode._slice
    monkeypatch.setattr(encode, "_slice", failing)
    return np.arange(1000), np.ones(1000, np.float32)


@pytest.mark.parametrize("layout", ["sparse", "dense"])
@pytest.mark.parametrize("keys", [(0, 0), (3, 3), (9, 9), (10, 10), (2**64, 2**64), (2**64, None)])
def test_result_of_an_empty_range_is_empty(client, layout, keys):
    opened = client.create_round(one(row_width=2, layout=layout, return_counts=True))
    opened.submit("a", np.ones((10, 2)))
    whole = opened.finish()["v"]
    part = opened.result(keys=keys)["v"]
    assert (len(part), part.layout, part.values.shape, part.counts.shape) == (0, layout, (0, 2), (0,))
    assert (part.keys.dtype, part.values.dtype) == (whole.keys.dtype, whole.values.dtype)


def test_result_ranges_end_where_they_say(client):
    opened = client.create_round(one(num_rows=0))
    hashes = np.array([0, 5, 2**64 - 1], np.uint64)
    opened.submit("a", (hashes, [1.0, 2.0, 3.0]))
    opened.finish()
    for keys, expected in (
        ((0, 5), [0]),
        ((0, np.uint64(6)), [0, 5]),
        ((np.int8(1), 2**64 - 1), [5]),
        ((1, 2**64), [5, 2**64 - 1]),
        ((1, None), [5, 2**64 - 1]),
        ([0, None], hashes.tolist()),
    ):
        assert opened.result(keys=keys)["v"].keys.tolist() == expected


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ((5, 0), "ends at 0, before it begins at 5"),
        ((5, 2), "ends at 2, before it begins at 5"),
        ((-1, 3), r"within \[0, 2\^64\), got \(-1, 3\)"),
        ((0, -1), r"got \(0, -1\)"),
        ((0, 2**64 + 1), r"got \(0, 18446744073709551617\)"),
        ((2**64 + 1, None), r"got \(18446744073709551617, None\)"),
        ((3,), r"pair of integers \(begin, end\).* got \(3,\)"),
        ((1, 2, 3), r"got \(1, 2, 3\)"),
        ((0, 1.5), r"got \(0, 1\.5\)"),
        ((None, 5), r"got \(None, 5\)"),
        ((False, True), r"got \(False, True\)"),
        ("35", "got '35'"),
        (7, "got 7"),
        ((0, 10**5000), "got tuple"),
    ],
)
def test_result_of_what_is_no_range_says_so(client, keys, text):
    opened = client.create_round(one())
    opened.finish()
    with pytest.raises(sa.InvalidArgumentError, match=text):
        opened.result(keys=keys)


@pytest.mark.parametrize("tensors", ["v", ["\udcff"], [5], [], ()])
def test_result_of_what_are_no_names_says_so(client, tensors):
    opened = client.create_round(one())
    opened.finish()
    with pytest.raises(sa.InvalidArgumentError, match="name"):
        opened.result(tensors)


@pytest.mark.parametrize("fill", [None, 7.0])
def test_part_of_a_dense_result_is_filled_as_the_whole_is(client, fill):
    opened = client.create_round(one(result_layout="dense", fill=fill))
    opened.submit("a", ([1, 5], [1.0, 2.0]))
    whole, absent = opened.finish()["v"], fill or 0.0
    assert whole.dense().tolist() == [absent, 1, absent, absent, absent, 2, absent, absent, absent, absent]
    part = opened.result(keys=(0, 3))["v"]
    assert part.dense().tolist() == [absent, 1, *[absent] * 8]
    assert part.dense(fill=-1).tolist() == [absent, 1, absent, *[-1] * 7]
    other = sa.TensorSpec(
        "w", "float32", num_rows=10, result_layout="sparse"
    )  # which has no use for the fill of the others
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10, result_layout="dense"), other], fill=fill)
    sparse = client.aggregate([{"w": ([1], [1.0])}], spec)["w"]
    assert sparse.dense().tolist() == [0, 1, *[0] * 8]


# ---- a server that is killed goes on with its rounds, whatever their options are: the same spec, bits and counts


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


# ---- what a server says of its activity: totals that keep what deleted rounds did, by tenant, and who reads them


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
