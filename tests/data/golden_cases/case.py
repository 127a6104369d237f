"""What a case is, and short ways to write one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import sparseagg as sa
from sparseagg._internal.wire.encode import PLAIN, WireFormat
from sparseagg.v1 import aggregation_pb2 as pb

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, OUT_OF_RANGE = 3, 8, 9, 11

Chunks = list[pb.UpdateChunk]


@dataclasses.dataclass(frozen=True)
class Client:
    """One submission. `tensors` maps names to (keys, rows), as the client library takes them."""

    id: str
    tensors: dict[str, Any]
    weight: float | None = None
    spoil: Callable[[Chunks], None] | None = None  # changes the encoded chunks


@dataclasses.dataclass(frozen=True)
class Case:
    """What is sent, and which refusal it provokes, if any."""

    name: str
    comment: str
    spec: sa.RoundSpec
    clients: list[Client]
    refused: str | None = None  # the client whose submission is refused
    code: int = 0
    message: str = ""
    chunk_bytes: int = 1 << 20
    interleave: bool = False
    wire: WireFormat = PLAIN  # of the updates
    result: WireFormat = PLAIN  # of the result


def one(dtype: str = "float32", num_rows: int = 10, row_width: int = 1, **options: Any) -> sa.RoundSpec:
    """A round of one tensor; options of the tensor and of the round are told apart by name."""
    of_tensor = {key: options.pop(key) for key in ("layout", "modular") if key in options}
    return sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width, **of_tensor)], **options)


def unchecked(make: Callable[..., sa.RoundSpec], *arguments: Any, **options: Any) -> sa.RoundSpec:
    """A spec that the constructor would refuse, as a client without its checks sends it."""
    with mock.patch.object(sa.RoundSpec, "_check"):
        return make(*arguments, **options)


def v(client_id: str, keys: Any, rows: Any, weight: float | None = None, spoil: Any = None) -> Client:
    """A submission of tensor "v"."""
    return Client(client_id, {"v": (keys, rows)}, weight, spoil)


def halves(*values: float) -> np.ndarray:
    return np.array(values, np.float16)


def int64s(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


INT64_MAX = 2**63 - 1
NAN, INF = math.nan, math.inf


def spoiling(**fields: Any) -> Callable[[Chunks], None]:
    """Sets fields of the first slice to values, or to what functions make of them."""

    def change(chunks: Chunks) -> None:
        piece = chunks[0].slices[0]
        for name, value in fields.items():
            setattr(piece, name, value(getattr(piece, name)) if callable(value) else value)

    return change
