"""How submissions fail at their making, how rounds end and are waited for, and what part of a result is asked for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sparseagg as sa
from every_client import SHELLS, one, settled
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
