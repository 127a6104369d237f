"""Blocks of partials; docs/wire-format.md has their layout. The server and the engine check what is in them."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Iterator

from sparseagg._internal.wire.message import Bulk
from sparseagg.errors import InvalidArgumentError

__all__ = ["PartialBlock", "num_submissions", "split_blocks"]

_HEAD = struct.Struct("<4sHHQ4B3I6Q")


@dataclasses.dataclass(frozen=True)
class PartialBlock:
    """One block.

    Attributes:
        tensor: name of its tensor.
        num_submissions: of the whole partial.
        data: its bytes.
    """

    tensor: str
    num_submissions: int
    data: memoryview


def split_blocks(partial: Iterable[Bulk]) -> Iterator[PartialBlock]:
    """Yields the blocks of a partial, which comes in pieces of whole blocks.

    Raises:
        InvalidArgumentError: this is no partial, or it is cut off.
    """
    offset = 0
    for piece in partial:
        rest = memoryview(piece).cast("B")
        while rest:
            head = _HEAD.unpack_from(rest) if len(rest) >= _HEAD.size else None
            if head is None or head[0] != b"SAPR":
                raise InvalidArgumentError(f"the partial's block at byte {offset} does not begin with a head")
            if not _HEAD.size + head[2] <= head[3] <= len(rest):
                raise InvalidArgumentError(
                    f"the partial's block at byte {offset} is cut off: {len(rest)} bytes of {head[3]}"
                )
            name = bytes(rest[_HEAD.size : _HEAD.size + head[2]]).decode(errors="replace")
            yield PartialBlock(name, head[12], rest[: head[3]])
            offset += head[3]
            rest = rest[head[3] :]


def num_submissions(partial: Iterable[Bulk]) -> int:
    """Returns how many submissions a partial counts as; 0 if it has no block."""
    return next((block.num_submissions for block in split_blocks(partial)), 0)
