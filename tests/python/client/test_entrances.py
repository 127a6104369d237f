"""What the server refuses of submissions at every entrance, of clients without the checks of ``sa.Client``, too."""

from __future__ import annotations

import contextlib
import struct

import grpc
import http_calls
import pytest
import sparseagg as sa
from sparseagg.v1 import aggregation_pb2 as pb

UNIFORM = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])
NO_EFFECT = "weight 3 has no effect: no tensor is weighted by_weight"


class Stub:
    """Calls without the checks of ``sa.Client``."""

    def __init__(self, channel: grpc.Channel) -> None:
        def method(call, name: str, answer):
            return call(f"/sparseagg.v1.Aggregation/{name}", lambda sent: sent.SerializeToString(), answer.FromString)

        self.PutChunk = method(channel.unary_unary, "PutChunk", pb.UploadStatus)
        self.SubmitUpdate = method(channel.stream_unary, "SubmitUpdate", pb.CommitSubmissionResponse)
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
