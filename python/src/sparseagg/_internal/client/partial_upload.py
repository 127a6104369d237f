"""Uploads of partials."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import uuid
from collections.abc import Iterable, Iterator
from typing import cast

from sparseagg._internal.base.arguments import checked_text
from sparseagg._internal.client.upload import Upload
from sparseagg._internal.updates.contributors import ClientId, checked_client_id
from sparseagg._internal.wire.message import Bulk, ChunkMessage
from sparseagg._internal.wire.partial import PartialBlock, split_blocks
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["PartialUpload", "partial_upload"]


@dataclasses.dataclass(frozen=True)
class PartialUpload(Upload):
    """The upload of a partial. Every chunk has whole blocks.

    Attributes:
        blocks: of the partial.
    """

    blocks: tuple[PartialBlock, ...] = ()

    @functools.cached_property
    def tag(self) -> bytes:
        """As in ``Upload``."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(self.chunk_bytes.to_bytes(8, "little"))
        for block in self.blocks:
            digest.update(block.data)
        return digest.digest() if self.is_shared else b""

    def chunks(self, first: int = 0, tag: bytes = b"") -> Iterator[ChunkMessage]:
        """Yields the chunks from number ``first`` on; each names ``tag``."""
        groups: list[list[PartialBlock]] = []
        room = 0
        for block in self.blocks:
            if len(block.data) > room:
                groups.append([])
                room = self.chunk_bytes
            groups[-1].append(block)
            room -= len(block.data)
        end_bytes = 0
        for sequence, group in enumerate(groups):
            end_bytes += sum(len(block.data) for block in group)
            if sequence < first:
                continue
            head = pb.UpdateChunk(
                round=self.round_name,
                client_id=self.client_id,
                submission_id=self.submission_id,
                sequence=sequence,
                last=sequence + 1 == len(groups),
                upload_tag=tag,
            )
            slices: list[tuple[pb.TensorSlice, Bulk, Bulk]] = [
                (pb.TensorSlice(tensor=block.tensor, value_encoding=pb.VALUE_ENCODING_PARTIAL), b"", block.data)
                for block in group
            ]
            yield ChunkMessage(head, slices, end_bytes)

    @property
    def num_bytes(self) -> int:
        """The bytes of all blocks."""
        return sum(len(block.data) for block in self.blocks)


def partial_upload(
    partial: Bulk | Iterable[Bulk],
    *,
    client_id: ClientId,
    chunk_bytes: int,
    round_name: str,
    submission_id: str | None,
) -> PartialUpload:
    """Makes the upload of a partial, in one piece or in pieces of whole blocks.

    Raises:
        InvalidArgumentError: an argument is wrong, or this is no partial.
    """
    whole = isinstance(partial, (bytes, bytearray, memoryview))
    pieces = [cast(Bulk, partial)] if whole else cast("Iterable[Bulk]", partial)
    blocks = tuple(split_blocks(pieces))
    if not blocks:
        raise InvalidArgumentError("the partial has no block")
    is_shared = submission_id is not None
    return PartialUpload(
        tensors=[],
        client_id=checked_client_id(client_id),
        submission_id=checked_text("a submission id", uuid.uuid4().hex if submission_id is None else submission_id),
        round_name=round_name,
        weight=None,
        chunk_bytes=chunk_bytes,
        is_shared=is_shared,
        blocks=blocks,
    )
