"""Submissions of a sealed round, as a server exports them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparseagg._internal.spec.round_spec import TensorSpec, key_bytes
from sparseagg._internal.updates.arrays import Array
from sparseagg._internal.wire.decode import decode_keys, decode_rows
from sparseagg._internal.wire.page import ExportedColumns
from sparseagg.errors import InternalError, InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["ExportedPage", "ExportedUpdate", "exported_keys", "exported_updates", "joined"]


class ExportedUpdate(NamedTuple):
    """One client's update of one tensor, within a range of keys. The bounds of the round are applied to it.

    Attributes:
        keys: shape (n,), uint32 or uint64, ascending. A key comes several times where the tensor's dtype does not hold
            the sum of the rows that the client has sent for it; the rows add up to that sum.
        values: shape (n,) or (n, row_width), in the tensor's dtype; bfloat16 as its bits, in uint16, which the engine
            takes. None for a union.
        weight: as the client sent it; 1 if it sent none.
    """

    keys: Array
    values: Array | None
    weight: float


class ExportedPage(NamedTuple):
    """Some submissions of an export, in ascending order of client ids.

    Attributes:
        updates: by client id. The first and the last one may be parts of an update; the other parts are on the page
            before and on the next one.
        next_page_token: "" on the last page.
    """

    updates: dict[str, ExportedUpdate]
    next_page_token: str


def exported_updates(spec: TensorSpec, pages: Sequence[ExportedColumns], begin: int = 0) -> dict[str, ExportedUpdate]:
    """Returns the updates of the pages of an export, by client id; ``begin``: of the exported range of keys.

    Raises:
        InternalError: a page is malformed.
    """
    parts: dict[str, list[ExportedUpdate]] = {}
    for page in pages:
        if page.head.weights:
            _add_page(spec, page, parts, begin)
    return {client_id: joined(updates) for client_id, updates in parts.items()}


def exported_keys(pages: Sequence[ExportedColumns]) -> Array:
    """Returns the keys of the pages of a sample, as uint64."""
    keys = [decode_keys(page.head.slice, page.keys, np.dtype(np.uint64)) for page in pages if page.keys]
    return np.concatenate(keys) if keys else np.empty(0, np.uint64)


def _add_page(spec: TensorSpec, page: ExportedColumns, parts: dict[str, list[ExportedUpdate]], first_key: int) -> None:
    clients, weights = page.head.client_ids.split("\n"), np.frombuffer(page.head.weights, "<f8")
    ends = np.cumsum(np.frombuffer(page.head.num_keys, "<u4"), dtype=np.int64)
    piece = page.head.slice
    try:
        dtype = np.dtype(f"<u{key_bytes(spec.num_rows)}")
        if piece.key_encoding == pb.KEY_ENCODING_IMPLICIT:
            keys = _runs(piece, np.diff(ends, prepend=0), first_key, dtype)
        else:
            keys = decode_keys(piece, page.keys, dtype)
        values = None
        if piece.value_encoding != pb.VALUE_ENCODING_NONE:
            values = decode_rows(piece, page.values, spec.dtype, len(keys) * spec.row_width)
            values = values if spec.row_width == 1 else values.reshape(-1, spec.row_width)
        if not len(clients) == len(weights) == len(ends) or ends[-1] != len(keys):
            raise InvalidArgumentError(f"{len(clients)} ids, {len(weights)} weights, {len(keys)} keys")
    except InvalidArgumentError as error:
        raise InternalError(f"the server sent a page of tensor {spec.name!r} that is wrong: {error}") from error
    begin = 0
    for client_id, weight, end in zip(clients, weights.tolist(), ends.tolist()):
        rows = None if values is None else values[begin:end]
        parts.setdefault(client_id, []).append(ExportedUpdate(keys[begin:end], rows, weight))
        begin = end


def _runs(piece: pb.TensorSlice, counts: Array, begin: int, dtype: np.dtype[Any]) -> Array:
    """Returns the keys of a page without keys: of its first submission from first_key on, of others from ``begin``."""
    firsts = np.full(len(counts), begin, np.uint64)
    firsts[:1] = piece.first_key
    within = np.arange(counts.sum(), dtype=np.uint64) - np.repeat(np.cumsum(counts) - counts, counts).astype(np.uint64)
    keys: Array = (np.repeat(firsts, counts) + within).astype(dtype)
    return keys


def joined(updates: list[ExportedUpdate]) -> ExportedUpdate:
    """Returns the update whose parts came in several pages."""
    if len(updates) == 1:
        return updates[0]
    keys = np.concatenate([each.keys for each in updates])
    rows = [each.values for each in updates if each.values is not None]
    return ExportedUpdate(keys, np.concatenate(rows) if rows else None, updates[0].weight)
