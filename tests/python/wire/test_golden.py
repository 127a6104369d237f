"""The golden vectors: the client's encoder makes these bytes, and a server answers them with these pages."""

from __future__ import annotations

import base64
import json
import uuid

import golden
import grpc
import pytest
from golden_cases import cases
from google.protobuf import json_format
from sparseagg._internal.client.channels import make_stub
from sparseagg.v1 import aggregation_pb2 as pb

SUITE = json.loads(golden.PATH.read_text(encoding="utf-8"))["cases"]
BY_NAME = {case["name"]: case for case in SUITE}


def test_golden_file_is_what_the_maker_writes():
    assert golden.PATH.read_text(encoding="utf-8") == golden.text()


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_golden_encoder_gives_the_wire_bytes(case):
    encoded = [base64.b64encode(chunk.SerializeToString()).decode() for chunk in golden.encode_case(case)]
    assert encoded == BY_NAME[case.name].get("chunks", [])


class Replay:
    """One case, replayed by unary calls with the very bytes of the file."""

    def __init__(self, channel: grpc.Channel, case: dict) -> None:
        self.case = case
        self.stub = make_stub(channel)
        # A second PutChunk, which sends bytes as they are.
        self._put = channel.unary_unary(
            "/sparseagg.v1.Aggregation/PutChunk", lambda data: data, pb.UploadStatus.FromString
        )
        self.refusals: list[grpc.RpcError] = []
        self._refused: set[str] = set()

    def create(self) -> str:
        spec = json_format.ParseDict(self.case["spec"], pb.RoundSpec())
        return self.stub.CreateRound(pb.CreateRoundRequest(round_id=uuid.uuid4().hex, spec=spec)).name

    def send(self, name: str) -> None:
        for text in self.case.get("chunks", []):
            data = base64.b64decode(text)
            chunk = pb.UpdateChunk.FromString(data)
            if chunk.client_id in self._refused:
                continue
            try:
                self._put(data + pb.UpdateChunk(round=name).SerializeToString())
                if chunk.last:
                    self.stub.CommitSubmission(
                        pb.CommitSubmissionRequest(
                            round=name, client_id=chunk.client_id, submission_id=chunk.submission_id
                        )
                    )
            except grpc.RpcError as error:
                self.refusals.append(error)
                self._refused.add(chunk.client_id)

    def close(self, name: str) -> pb.Round:
        self.stub.CloseRound(pb.CloseRoundRequest(round=name))
        while True:
            round_ = self.stub.WaitRound(pb.WaitRoundRequest(round=name))
            if round_.state != pb.ROUND_STATE_FINALIZING:
                return round_

    def pages(self, name: str, spec: pb.RoundSpec) -> list[pb.ResultPage]:
        form = json_format.ParseDict(self.case.get("format", {}), pb.ResultFormat())
        return [
            self.stub.GetResult(pb.GetResultRequest(round=name, tensor=tensor.name, format=form))
            for tensor in spec.tensors
        ]


@pytest.mark.parametrize("case", SUITE, ids=lambda case: case["name"])
def test_golden_server_answers_with_the_pages(case, server):
    code, text = case.get("expectedCode", 0), case.get("expectedMessageContains", "")
    with grpc.insecure_channel(server.address) as channel:
        replay = Replay(channel, case)
        if "chunks" not in case:
            with pytest.raises(grpc.RpcError) as refused:
                replay.create()
            assert refused.value.code().value[0] == code
            assert text in refused.value.details()
            return
        name = replay.create()
        replay.send(name)
        round_ = replay.close(name)
        if code and "expected" not in case:
            assert not replay.refusals
            assert round_.state == pb.ROUND_STATE_FAILED
            assert text in round_.state_reason
            return
        assert [(error.code().value[0], text in error.details()) for error in replay.refusals] == (
            [(code, True)] if code else []
        ), [error.details() for error in replay.refusals]
        assert round_.state == pb.ROUND_STATE_DONE, round_.state_reason
        # A gap in the chunks refuses the chunk, not the submission, which the close then cuts off.
        assert round_.num_refused == len(replay.refusals)
        expected = [json_format.ParseDict(page, pb.ResultPage()) for page in case["expected"]]
        assert replay.pages(name, round_.spec) == expected


@pytest.mark.parametrize("case", SUITE, ids=lambda case: case["name"])
def test_golden_server_answers_one_call_with_the_same_bits(case, server):
    def requests():
        first = pb.AggregateRequest(spec=json_format.ParseDict(case["spec"], pb.RoundSpec()))
        json_format.ParseDict(case.get("format", {}), first.format)
        yield first
        for text in case.get("chunks", []):
            yield pb.AggregateRequest(chunk=pb.UpdateChunk.FromString(base64.b64decode(text)))

    with grpc.insecure_channel(server.address) as channel:
        pages = make_stub(channel).Aggregate(requests())
        if code := case.get("expectedCode", 0):
            with pytest.raises(grpc.RpcError) as refused:
                list(pages)
            assert refused.value.code().value[0] == code
            assert case.get("expectedMessageContains", "") in refused.value.details()
            return
        found = list(pages)
    for page in found:
        page.ClearField("round")
    assert found == [json_format.ParseDict(page, pb.ResultPage()) for page in case["expected"]]
