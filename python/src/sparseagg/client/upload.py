"""What is sent for one submission and for a one-shot aggregation, whichever client sends it."""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Iterator
from typing import Any, SupportsFloat

from sparseagg.arguments import checked_text
from sparseagg.arrays import TensorData, is_module, update_data
from sparseagg.client.upload_tag import upload_tag
from sparseagg.spec import RoundSpec
from sparseagg.updates import checked_client_id, checked_weight, named_updates, naming_client, split_weight
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.wire.encode import encode_chunks
from sparseagg.wire.formats import PLAIN, WireFormat
from sparseagg.wire.message import ChunkMessage

__all__ = [
    "Upload",
    "aggregate_requests",
    "aggregate_upload",
    "aggregate_uploads",
    "make_upload",
]


@dataclasses.dataclass(frozen=True)
class Upload:
    """One submission: the arrays that the caller gave, and who sends them. Chunks are made as they are asked for."""

    tensors: list[TensorData]
    client_id: str
    submission_id: str
    round_name: str
    weight: float | None
    chunk_bytes: int
    wire: WireFormat = PLAIN
    is_shared: bool = False  # others may know its submission id

    @functools.cached_property
    def tag(self) -> bytes:
        """What it is known by beside its submission id when it is sent by single calls. Takes a pass over the arrays.

        No other upload has a submission id that was drawn for this one, and so there is nothing to tell apart.
        """
        return upload_tag(self.tensors, self.weight, self.chunk_bytes, self.wire) if self.is_shared else b""

    def chunks(self, first: int = 0, tag: bytes = b"") -> Iterator[ChunkMessage]:
        """Yields the chunks from number ``first`` on."""
        return encode_chunks(
            self.tensors,
            client_id=self.client_id,
            submission_id=self.submission_id,
            round_name=self.round_name,
            weight=self.weight,
            chunk_bytes=self.chunk_bytes,
            wire=self.wire,
            upload_tag=tag,
            first=first,
        )

    @property
    def num_bytes(self) -> int:
        """Of keys and values, as the arrays have them."""
        arrays = [array for data in self.tensors for array in (data.keys, data.values) if array is not None]
        return sum(array.nbytes for array in arrays)


def make_upload(
    spec: RoundSpec,
    update: Any,
    *,
    client_id: str,
    weight: SupportsFloat | None,
    chunk_bytes: int,
    wire: WireFormat = PLAIN,
    round_name: str = "",
    submission_id: str | None = None,
) -> Upload:
    """Converts an update; see ``arrays.update_data`` for what it may be, and for the errors."""
    client_id = checked_client_id(client_id)
    is_shared = submission_id is not None
    submission_id = checked_text("a submission id", uuid.uuid4().hex if submission_id is None else submission_id)
    weight = checked_weight(weight)
    tensors = update_data(spec, update)
    wire.check_values(tensors)
    return Upload(
        tensors=tensors,
        client_id=client_id,
        submission_id=submission_id,
        round_name=round_name,
        weight=weight,
        chunk_bytes=chunk_bytes,
        wire=wire,
        is_shared=is_shared,
    )


def aggregate_uploads(spec: RoundSpec, updates: Any, chunk_bytes: int, wire: WireFormat = PLAIN) -> list[Upload]:
    """Converts the updates of a one-shot aggregation.

    Args:
        spec: what to compute.
        updates: a mapping from client ids to updates, or an iterable of updates, whose positions (as 20 decimal
            digits) become the ids. An update may be a pair (update, weight).
        chunk_bytes: of each message.
        wire: the encodings that may be used.
    """
    return [aggregate_upload(spec, *named, chunk_bytes, wire) for named in named_updates(updates)]


def aggregate_upload(
    spec: RoundSpec, client_id: Any, update: Any, chunk_bytes: int, wire: WireFormat = PLAIN
) -> Upload:
    """Converts one of the updates of a one-shot aggregation; see ``aggregate_uploads``. Errors name the client."""
    update, weight = split_weight(update)
    with naming_client(client_id):
        upload = make_upload(
            spec,
            update,
            client_id=client_id,
            submission_id="0",
            weight=weight,
            chunk_bytes=chunk_bytes,
            wire=wire,
        )
    if is_module(update):  # its gradients may be others by the time they are sent
        upload = dataclasses.replace(upload, tensors=[data.copied() for data in upload.tensors])
    return upload


def aggregate_requests(
    spec: RoundSpec, uploads: list[Upload], result_format: pb.ResultFormat | None = None
) -> Iterator[pb.AggregateRequest | ChunkMessage]:
    """Yields the messages of a one-shot aggregation; ``result_format`` is that of its result."""
    yield pb.AggregateRequest(spec=spec.to_proto(), format=result_format)
    for upload in uploads:
        yield from upload.chunks()
