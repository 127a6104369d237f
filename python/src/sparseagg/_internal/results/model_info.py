"""What a server says of a model."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping

from sparseagg._internal.base.fields import enum_name, now, read
from sparseagg.v1 import aggregation_pb2
from sparseagg.v1 import models_pb2 as pb


@dataclasses.dataclass(frozen=True)
class ModelVersion:
    """A version of a model."""

    version: int
    round: str  # "rounds/{id}" that made it; "": there was none
    num_rows: int  # touched, of all tensors; 0: the version is empty
    empty_reason: str  # of an empty version of a stream: why
    digest: bytes  # binds all versions so far (docs/certificates.md); empty if a round had no certificate


@dataclasses.dataclass(frozen=True)
class ModelTensor:
    """One tensor of a model."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of the whole tensor; () of Rows without num_rows
    width: int  # values of a row
    num_rows: int  # keys are smaller; 0: any uint64 is a key
    num_touched: int  # rows that the server stores
    num_removed: int  # by expire_after and max_rows, since the model was created
    block_rows: int  # keys of a block, for reads="blocks"
    oldest_since: int  # the smallest `since` for which the server knows which rows were removed
    learning_rate: float  # 0 with optimizers.Assign

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row: of an array without further axes ()."""
        return self.shape[1:] if self.num_rows else (self.width,)


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """A model at one moment. Times are in UTC."""

    name: str
    version: int  # the newest one
    oldest_version: int  # that can be read
    tensors: Mapping[str, ModelTensor]  # in the order of the spec
    versions: tuple[ModelVersion, ...]  # the newest ones, ascending; none from Client.list_models
    stream: str  # "streams/{id}" that makes the versions, or ""
    keep_versions: int  # as it was given; 0: the default
    reads: str  # "keys", "blocks" or "whole"
    memory_bytes: int  # that the server uses for it
    waiting_reason: str  # why the stream's next version is not applied yet, though it has ended; "": nothing waits
    create_time: datetime.datetime | None
    as_of: datetime.datetime | None = dataclasses.field(default=None, compare=False)  # when this client read it

    @classmethod
    def _from_proto(cls, proto: pb.Model) -> ModelInfo:
        """Returns the values of a message that was received now."""
        spec = proto.spec
        reads = "keys" if not spec.reads else enum_name(pb.ReadsPolicy.DESCRIPTOR, spec.reads)
        parts = zip(spec.tensors, proto.tensors, proto.learning_rates)
        return read(
            cls,
            proto,
            tensors={tensor.name: tensor_of(tensor, figures, rate) for tensor, figures, rate in parts},
            versions=tuple(read(ModelVersion, version) for version in proto.versions),
            stream=spec.stream,
            keep_versions=spec.keep_versions,
            reads=reads,
            as_of=now(),
        )


def dtype_of(tensor: pb.ModelTensor) -> str:
    """Returns the name of a tensor's dtype."""
    return enum_name(aggregation_pb2.DType.DESCRIPTOR, tensor.dtype)


_NO_FIGURES = pb.ModelTensorInfo()


def tensor_of(
    tensor: pb.ModelTensor, figures: pb.ModelTensorInfo = _NO_FIGURES, learning_rate: float = 0.0
) -> ModelTensor:
    """Returns a tensor of a spec, by default of a model that does not exist yet."""
    width = tensor.row_width or 1
    shape = tuple(tensor.shape.sizes) if tensor.HasField("shape") else (tensor.num_rows, width)
    return read(
        ModelTensor,
        figures,
        name=tensor.name,
        dtype=dtype_of(tensor),
        shape=shape if tensor.num_rows else (),
        width=width,
        num_rows=tensor.num_rows,
        num_touched=figures.num_rows,
        learning_rate=learning_rate,
    )
