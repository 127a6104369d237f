"""The calls of both services, whose chunks and pages are not copied into messages of Protocol Buffers."""

from __future__ import annotations

from typing import Any

from sparseagg._internal.wire.message import ChunkMessage
from sparseagg._internal.wire.page import parse_exported, parse_page
from sparseagg._internal.wire.stub import make_call, make_stub, methods
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["make_bulk_stub"]


def make_bulk_stub(channel: Any) -> Any:
    """Returns a stub whose uploading methods take ``ChunkMessage``; ``Aggregate`` takes ``AggregateRequest``, too.

    Those that read results give ``Page``, and ``ExportSubmissions`` gives ``ExportedColumns``. The bytes on the wire
    are the same.

    It also has ``SubmitWhole``, which is ``SubmitUpdate`` with one message. gRPC starts a thread for every call with a
    stream of requests, which costs more than sending one message.
    """
    serialise = ChunkMessage.serialise
    uploads = dict.fromkeys(("SubmitUpdate", "PutChunk", "SubmitBatch"), serialise)
    pages = dict.fromkeys(("GetResult", "GetResultRange", "StreamResult", "Aggregate"), parse_page)
    parsers = {**pages, "ExportSubmissions": parse_exported}
    stub = make_stub(channel, {**uploads, "Aggregate": _serialise_for_aggregate}, parsers)
    (method,) = (method for method in methods() if method.name == "SubmitUpdate")
    stub.SubmitWhole = make_call(channel, method._replace(kind="unary_unary"), serialise)
    return stub


def _serialise_for_aggregate(message: pb.AggregateRequest | ChunkMessage) -> bytes:
    return message.serialise_for_aggregate() if isinstance(message, ChunkMessage) else message.SerializeToString()
