"""The calls of both services, made from their descriptors."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2

from sparseagg.v1 import aggregation_pb2, tasks_pb2

__all__ = ["Method", "make_call", "make_stub", "methods"]


class Method(NamedTuple):
    """A method of a service.

    Attributes:
        service: the service's full name, "sparseagg.v1.Tasks".
        name: "LeaseTask".
        kind: as gRPC names it: "unary_unary", "unary_stream", "stream_unary" or "stream_stream".
        request: the class of its requests.
        response: the class of its responses.
    """

    service: str
    name: str
    kind: str
    request: Any
    response: Any


def methods() -> Iterator[Method]:
    """Yields the methods of both services; no two have one name."""
    for module in (aggregation_pb2, tasks_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            proto = descriptor_pb2.ServiceDescriptorProto()  # every version of protobuf says here which methods stream
            service.CopyToProto(proto)
            for method, described in zip(service.methods, proto.method):
                streams = (described.client_streaming, described.server_streaming)
                yield Method(
                    service.full_name,
                    method.name,
                    "_".join("stream" if each else "unary" for each in streams),
                    method.input_type._concrete_class,
                    method.output_type._concrete_class,
                )


def make_call(
    channel: Any,
    method: Method,
    serialise: Callable[[Any], bytes] | None = None,
    parse: Callable[[bytes], Any] | None = None,
) -> Any:
    """Returns the callable of a method; ``serialise`` and ``parse`` are for others than the classes of its messages."""
    return getattr(channel, method.kind)(
        f"/{method.service}/{method.name}",
        request_serializer=serialise or method.request.SerializeToString,
        response_deserializer=parse or method.response.FromString,
    )


def make_stub(
    channel: Any,
    serialisers: Mapping[str, Callable[[Any], bytes]] | None = None,
    parsers: Mapping[str, Callable[[bytes], Any]] | None = None,
) -> Any:
    """Returns an object with a callable for each method of both services.

    Args:
        channel: of ``grpc`` or ``grpc.aio``.
        serialisers: by name of method, what turns its requests into bytes, if they are no messages.
        parsers: by name of method, what turns bytes into its answers, if they are no messages.
    """
    serialisers, parsers = serialisers or {}, parsers or {}
    calls = {
        method.name: make_call(channel, method, serialisers.get(method.name), parsers.get(method.name))
        for method in methods()
    }
    return types.SimpleNamespace(**calls)
