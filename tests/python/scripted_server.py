"""Servers in this process that answer as a test says."""

from __future__ import annotations

import contextlib
from concurrent import futures

import grpc
from google.rpc import error_details_pb2, status_pb2
from sparseagg._internal.client.channels import methods
from sparseagg.v1 import aggregation_pb2 as pb


def error_info(reason: str, **metadata: str) -> tuple[str, bytes]:
    """The trailing metadata with such an ErrorInfo."""
    status = status_pb2.Status()
    info = error_details_pb2.ErrorInfo(reason=reason, domain="sparseagg", metadata=metadata)
    status.details.add().Pack(info)
    return "grpc-status-details-bin", status.SerializeToString()


class Scripted:
    """Answers GetRound with the codes it is given, then with a round."""

    def __init__(self, *codes: grpc.StatusCode, delay_ms: int | None = None) -> None:
        self.codes = list(codes)
        self.delay_ms = delay_ms
        self.calls = 0
        self.metadata: list[tuple] = []

    def GetRound(self, request, context):
        self.calls += 1
        self.metadata = list(context.invocation_metadata())
        if self.codes:
            if self.delay_ms is not None:
                context.set_trailing_metadata((("grpc-retry-pushback-ms", str(self.delay_ms)),))
            context.abort(self.codes.pop(0), "as scripted")
        return pb.Round(name=request.round, state=pb.ROUND_STATE_OPEN)


@contextlib.contextmanager
def serving(servicer: object, credentials: grpc.ServerCredentials | None = None):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    handlers = {
        method.name: getattr(grpc, f"{method.kind}_rpc_method_handler")(
            getattr(servicer, method.name),
            method.request.FromString,
            lambda answer: answer if isinstance(answer, bytes) else answer.SerializeToString(),
        )
        for method in methods()
        if hasattr(servicer, method.name)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("sparseagg.v1.Aggregation", handlers),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)
