"""Batches: their limits, and what they leave to other callers."""

from __future__ import annotations

import concurrent.futures
import contextlib

import grpc
import numpy as np
import pytest
import sparseagg as sa
from sparseagg.v1 import aggregation_pb2 as pb

NUM_TENSORS = 1000
MOST = (1 << 20) // NUM_TENSORS  # submissions of a batch
WIDE = sa.RoundSpec([sa.TensorSpec(f"t{number}", "float32", num_rows=10) for number in range(NUM_TENSORS)])
UNIFORM = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])


def empty_batch(name: str, num_submissions: int) -> pb.SubmitBatchRequest:
    ids = "\n".join(f"c{number}" for number in range(num_submissions))
    return pb.SubmitBatchRequest(round=name, client_ids=ids, submission_id="s")


@contextlib.contextmanager
def batches_of(server):
    """The call SubmitBatch, without the checks of ``sa.Client``."""
    with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel.unary_unary(
            "/sparseagg.v1.Aggregation/SubmitBatch",
            lambda sent: sent.SerializeToString(),
            pb.SubmitBatchResponse.FromString,
        )


def test_batch_has_at_most_so_many_submissions_times_tensors(client, server):
    opened = client.create_round(WIDE)
    with batches_of(server) as submit_batch, pytest.raises(grpc.RpcError) as caught:
        submit_batch(empty_batch(opened.name, MOST + 1))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert f"a batch of {MOST + 1} submissions; at most {MOST} are allowed for 1000 tensors" in caught.value.details()
    none = {"t0": (np.zeros(MOST + 2, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.float32))}
    assert opened.submit_batch([f"c{number}" for number in range(MOST + 1)], none).num_submissions == MOST + 1
    opened.delete()


def test_small_calls_pass_batches_that_have_all_threads(start_server):
    server = start_server("--threads", "2")
    with sa.Client(server.address) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        wide = [client.create_round(WIDE) for _ in range(2)]
        small = client.create_round(UNIFORM)

        def submit(opened: sa.Round) -> None:
            with batches_of(server) as submit_batch:
                submit_batch(empty_batch(opened.name, MOST))

        batches = [pool.submit(submit, opened) for opened in wide]
        server.wait_until(lambda: all(opened.refresh().num_submissions > 0 for opened in wide))
        assert small.submissions() == []  # on a thread of the pool
        assert all(opened.refresh().num_submissions < MOST for opened in wide)
        for batch in batches:
            batch.result()
        assert [opened.refresh().num_submissions for opened in wide] == [MOST, MOST]


def test_batch_of_a_caller_who_has_left_ends(start_server):
    server = start_server("--threads", "1")
    with sa.Client(server.address) as client, batches_of(server) as submit_batch:
        opened, small = client.create_round(WIDE), client.create_round(UNIFORM)
        call = submit_batch.future(empty_batch(opened.name, MOST))
        server.wait_until(lambda: opened.refresh().num_submissions > 0)
        call.cancel()
        counted, before = opened.refresh().num_submissions, -1
        while counted != before:  # each small call waits for a turn of the batch, if that goes on
            for number in range(10):
                small.submit(f"{counted}-{number}", {"v": ([1], [1.0])})
            counted, before = opened.refresh().num_submissions, counted
        assert 0 < counted < MOST
