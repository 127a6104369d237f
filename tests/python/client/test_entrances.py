"""What the server refuses at every entrance, of clients without the checks of ``sa.Client``, too; limits of batches."""

from __future__ import annotations

import concurrent.futures
import contextlib
import struct

import grpc
import http_calls
import numpy as np
import pytest
import sparseagg as sa
from sparseagg.v1 import aggregation_pb2 as pb

UNIFORM = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])
NUM_TENSORS = 1000
MOST = (1 << 20) // NUM_TENSORS  # submissions of a batch
WIDE = sa.RoundSpec([sa.TensorSpec(f"t{number}", "float32", num_rows=10) for number in range(NUM_TENSORS)])
NO_EFFECT = "weight 3 has no effect: no tensor is weighted by_weight"


class Stub:
    """Calls without the checks of ``sa.Client``."""

    def __init__(self, channel: grpc.Channel) -> None:
        def method(call, name: str, answer):
            return call(f"/sparseagg.v1.Aggregation/{name}", lambda sent: sent.SerializeToString(), answer.FromString)

        self.PutChunk = method(channel.unary_unary, "PutChunk", pb.UploadStatus)
        self.SubmitUpdate = method(channel.stream_unary, "SubmitUpdate", pb.CommitSubmissionResponse)
        self.SubmitBatch = method(channel.unary_unary, "SubmitBatch", pb.SubmitBatchResponse)
        self.Aggregate = method(channel.stream_stream, "Aggregate", pb.ResultPage)


@contextlib.contextmanager
def stub_of(server):
    with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield Stub(channel)


def chunk(name: str, **fields: object) -> pb.UpdateChunk:
    keys = [pb.TensorSlice(tensor="v", key_encoding=pb.KEY_ENCODING_U32, keys=struct.pack("<I", 1), values=bytes(4))]
    return pb.UpdateChunk(round=name, client_id="a", submission_id="s", last=True, weight=3, slices=keys, **fields)


def test_weight_without_effect_is_refused_at_every_entrance(start_server):
    server = start_server("--http-address", "127.0.0.1:0")
    with sa.Client(server.address) as client, stub_of(server) as stub:
        opened = client.create_round(UNIFORM)
        stream = client.create_stream(UNIFORM, stream_id="stream", buffer=2)
        to_round, to_stream = chunk(opened.name), chunk(stream.name, base_version=0)
        one_shot = [pb.AggregateRequest(spec=UNIFORM._to_proto()), pb.AggregateRequest(chunk=to_round)]
        for call in (
            lambda: stub.SubmitUpdate(iter([to_round])),
            lambda: stub.SubmitUpdate(iter([to_stream])),
            lambda: stub.PutChunk(to_round),
            lambda: stub.PutChunk(to_stream),
            lambda: list(stub.Aggregate(iter(one_shot))),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert NO_EFFECT in caught.value.details()
        slices = {"v": ([0, 1, 2], [1, 1], [1.0, 1.0])}
        refused = opened.submit_batch(["a", "b"], slices, [3.0, 1.0]).refused
        assert {client_id: str(error) for client_id, error in refused.items()} == {"a": f"client 'a': {NO_EFFECT}"}
        refused = stream.submit_batch(["a", "b"], slices, [3.0, 1.0], base_version=0).refused
        assert {client_id: str(error) for client_id, error in refused.items()} == {"a": f"client 'a': {NO_EFFECT}"}
        body = {"client_id": "a", "submission_id": "s", "last": True, "weight": 3}
        answer = http_calls.request(server.http_address, "POST", f"/v1/{opened.name}/chunks", body)
        assert (answer.status, NO_EFFECT in answer.json["detail"]) == (400, True)
        assert opened.refresh().num_submissions == 1


def empty_batch(name: str, num_submissions: int) -> pb.SubmitBatchRequest:
    ids = "\n".join(f"c{number}" for number in range(num_submissions))
    return pb.SubmitBatchRequest(round=name, client_ids=ids, submission_id="s")


def test_batch_has_at_most_so_many_submissions_times_tensors(client, server):
    opened = client.create_round(WIDE)
    with stub_of(server) as stub, pytest.raises(grpc.RpcError) as caught:
        stub.SubmitBatch(empty_batch(opened.name, MOST + 1))
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
            with stub_of(server) as stub:
                stub.SubmitBatch(empty_batch(opened.name, MOST))

        batches = [pool.submit(submit, opened) for opened in wide]
        server.wait_until(lambda: all(opened.refresh().num_submissions > 0 for opened in wide))
        assert small.submissions() == []  # on a thread of the pool
        assert all(opened.refresh().num_submissions < MOST for opened in wide)
        for batch in batches:
            batch.result()
        assert [opened.refresh().num_submissions for opened in wide] == [MOST, MOST]


def test_batch_of_a_caller_who_has_left_ends(start_server):
    server = start_server("--threads", "1")
    with sa.Client(server.address) as client, stub_of(server) as stub:
        opened, small = client.create_round(WIDE), client.create_round(UNIFORM)
        call = stub.SubmitBatch.future(empty_batch(opened.name, MOST))
        server.wait_until(lambda: opened.refresh().num_submissions > 0)
        call.cancel()
        counted, before = opened.refresh().num_submissions, -1
        while counted != before:  # each small call waits for a turn of the batch, if that goes on
            for number in range(10):
                small.submit(f"{counted}-{number}", {"v": ([1], [1.0])})
            counted, before = opened.refresh().num_submissions, counted
        assert 0 < counted < MOST
