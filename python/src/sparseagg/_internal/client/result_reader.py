"""Results and exported submissions, put together from their pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparseagg._internal.base.fields import enum_name
from sparseagg._internal.base.foreign import Array, float_from_bits
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.options import key_bytes
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.wire.columns import ExportedColumns, Page, decode_keys, decode_rows
from sparseagg.errors import InternalError, InvalidArgumentError, UnimplementedError
from sparseagg.v1 import aggregation_pb2 as pb


class ResultReader:
    """The pages of one result, decoded as they arrive. Not thread-safe.

    The call that reads the result owns the reader. Calls, in order: ``add`` for every page of a stream; if the stream
    breaks, ``add`` for the answer to each request of ``rest``; ``result``.

    Cost: memory for the arrays of the result and one page.

    Args:
        keys: the keys that the requests ask for; None: all.
        bar: shows the number of rows that have arrived; None: nothing does.

    Attributes:
        num_pages: number of pages added.
    """

    def __init__(self, keys: pb.KeyRange | None = None, bar: ProgressBar | None = None) -> None:
        self.num_pages = 0
        self._bar = bar
        self._range = keys or pb.KeyRange()
        self._parts: dict[str, _Parts] = {}
        self._next: dict[str, str] = {}  # by tensor: the token of the next page; empty after the last page
        self._info: RoundInfo | None = None

    def add(self, page: Page) -> None:
        """Adds the next page of a tensor, of which the first has a summary. ``InternalError``: the page is
        malformed.
        """
        head = page.head
        if head.HasField("round"):
            self._info = RoundInfo._from_proto(head.round)
        name = head.slice.tensor
        if head.HasField("summary"):
            name = head.summary.name
            self._parts[name] = _Parts(head.summary, self._range)
        if name not in self._parts:
            raise InternalError(f"the server sent a page of tensor {name!r} before its summary")
        num_keys = self._parts[name].add(page)
        if self._bar is not None:
            self._bar.advance(num_keys)
        self._next[name] = head.next_page_token
        self.num_pages += 1

    def rest(self, stream: pb.StreamResultRequest, spec: RoundSpec) -> Iterator[pb.GetResultRequest]:
        """Yields the requests of the missing pages. The caller adds each page before it asks for the next request.

        The pages have the bounds that they would have in ``stream``, the stream that broke, so that the same values
        share a scale.
        """
        for name in list(stream.tensors) or [tensor.name for tensor in spec.tensors]:
            while self._next.get(name) != "":
                yield pb.GetResultRequest(
                    round=stream.round,
                    tensor=name,
                    range=stream.range,
                    page_token=self._next.get(name),
                    format=stream.format,
                )

    def result(self, info: RoundInfo | None = None) -> Result:
        """Returns the result of all pages; ``info`` is the round, if no page has it. ``InternalError``: the pages do
        not fit together.
        """
        info = self._info or info
        if info is None:
            raise InternalError("the server sent a result without its round")
        shapes = {tensor.name: tensor.shape for tensor in info.spec.tensors}
        fills = {tensor.name: info.spec.aggregation_of(tensor).fill for tensor in info.spec.tensors}
        parts = {name: parts.tensor(fills.get(name, 0.0), shapes.get(name)) for name, parts in self._parts.items()}
        return Result(parts, info)


class _Parts:
    """The pages of one tensor, decoded as they arrive into the arrays of the result."""

    def __init__(self, summary: pb.TensorSummary, keys: pb.KeyRange) -> None:
        self._summary = summary
        self._dtype = enum_name(pb.DType.DESCRIPTOR, summary.dtype)
        self._row_width = summary.row_width or 1
        self._is_dense = summary.layout == pb.TENSOR_LAYOUT_DENSE
        most = summary.num_keys if keys.end == 0 else min(summary.num_keys, max(0, keys.end - keys.begin))
        self._first_key = 0  # of a dense result, whose keys follow each other
        self._num_keys = 0
        self._keys = _Column(np.dtype(f"<u{key_bytes(summary.num_rows)}"), 0 if self._is_dense else most)
        value_type = np.dtype("uint16" if self._dtype == "bfloat16" else self._dtype)
        self._values = _Column(value_type, most * self._row_width)
        self._counts = _Column(np.dtype("<u4"), most)
        self._weights = _Column(np.dtype("<f8"), most)
        self._moments = _Column(np.dtype("<f8"), most * self._row_width if summary.has_moments else 0)

    def add(self, page: Page) -> int:
        """Adds the next page, and returns its number of keys; ``InternalError`` if the page is malformed."""
        try:
            num_keys = self._add_keys(page)
            if self._summary.has_values:
                num_values = num_keys * self._row_width
                self._values.add(decode_rows(page.head.slice, page.values, self._dtype, num_values))
        except InvalidArgumentError as error:
            raise InternalError(
                f"the server sent a page of tensor {self._summary.name!r} that is wrong: {error}"
            ) from error
        for column, data, of_key in (
            (self._counts, page.counts, int(self._summary.has_counts)),
            (self._weights, page.weights, int(self._summary.has_weights)),
            (self._moments, page.moments, self._row_width if self._summary.has_moments else 0),
        ):
            if not of_key:
                continue
            if len(data) != num_keys * of_key * column.dtype.itemsize:
                raise InternalError(f"the server sent {len(data)} bytes of a column for {num_keys} keys")
            column.add(np.frombuffer(data, column.dtype))
        self._num_keys += num_keys
        return num_keys

    def _add_keys(self, page: Page) -> int:
        """Adds the keys of a page; returns their number. Those of a dense result are not made."""
        piece = page.head.slice
        if self._is_dense and piece.key_encoding == pb.KEY_ENCODING_IMPLICIT:
            if self._num_keys == 0:
                self._first_key = piece.first_key
            if piece.first_key != self._first_key + self._num_keys:
                raise InvalidArgumentError(
                    f"its first key is {piece.first_key}, where {self._first_key + self._num_keys} comes next"
                )
            return int(piece.num_keys)
        keys = decode_keys(piece, page.keys, self._keys.dtype)
        if self._is_dense and len(keys):
            raise InvalidArgumentError("the result is dense, and its keys are not implicit")
        self._keys.add(keys)
        return len(keys)

    def tensor(self, fill: float, shape: tuple[int, ...] | None) -> TensorResult:
        """Returns the tensor; ``fill`` and ``shape`` are those of the spec."""
        summary = self._summary
        keys: Any = None  # all of them
        if not self._is_dense:
            keys = self._keys.array()
        elif self._num_keys != summary.num_rows:
            keys = np.arange(self._first_key, self._first_key + self._num_keys, dtype=self._keys.dtype)
        return TensorResult(
            name=summary.name,
            layout="dense" if self._is_dense else "sparse",
            dtype=self._dtype,
            num_rows=summary.num_rows,
            row_width=self._row_width,
            keys=keys,
            values=self._value_array() if summary.has_values else None,
            counts=self._counts.array() if summary.has_counts else None,
            weights=self._weights.array() if summary.has_weights else None,
            moments=self._rows_of(self._moments.array()) if summary.has_moments else None,
            fill=fill,
            shape=shape,
        )

    def _value_array(self) -> Array:
        values = self._values.array()
        if self._dtype == "bfloat16":
            values = float_from_bits(values)
        return self._rows_of(values)

    def _rows_of(self, values: Array) -> Array:
        return values if self._row_width == 1 else values.reshape(-1, self._row_width)


class _Column:
    """An array that grows at its end; ``most`` is how many entries it will have, as far as that is known."""

    def __init__(self, dtype: np.dtype[Any], most: int) -> None:
        self.dtype = dtype
        self._most = most
        self._array = np.empty(0, dtype)
        self._length = 0

    def add(self, piece: Array) -> None:
        end = self._length + len(piece)
        if end > len(self._array):
            longer = np.empty(max(end, self._most, 2 * len(self._array)), self.dtype)
            longer[: self._length] = self._array[: self._length]
            self._array = longer
        self._array[self._length : end] = piece
        self._length = end

    def array(self) -> Array:
        """Returns the entries, writable. Nothing can be added any more."""
        if self._length != len(self._array):
            self._array.resize(self._length, refcheck=False)
        return self._array


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
    """Some submissions of an export, in columns, by place: the number of submissions before, in order of client ids."""

    # the place of the first one, and the place behind the last one
    first: int
    end: int
    places: Array  # int64, ascending, of those that have rows
    ends: Array  # int64, for each of ``places``: the first row behind its own
    # of all rows, as of ``ExportedUpdate``
    keys: Array
    values: Array | None
    is_continued: bool = False  # whether the last submission goes on in the next page, whose first one it is
    num_submissions: int = 0  # of the round
    next_page_token: str = ""  # "" on the last page

    def part(self, first: int, end: int) -> ExportedPage:
        """Returns the submissions from one place on, and before another."""
        begin, stop = np.searchsorted(self.places, (first, end)).tolist()
        rows = slice(int(self.ends[begin - 1]) if begin else 0, int(self.ends[stop - 1]) if stop else 0)
        values = None if self.values is None else self.values[rows]
        ends = self.ends[begin:stop] - rows.start
        return ExportedPage(first, end, self.places[begin:stop], ends, self.keys[rows], values)


def exported_page(spec: TensorSpec, page: ExportedColumns, first_key: int = 0) -> ExportedPage:
    """Returns the page of an export by place; ``first_key``: the begin of the exported range of keys.

    Raises ``InternalError`` for a malformed page, ``UnimplementedError`` if the server is older than exports by place.
    """
    head = page.head
    if head.client_ids or head.weights:
        raise UnimplementedError("the server exports no submissions by place: update it to this version")
    bits = np.unpackbits(np.frombuffer(head.has_rows, np.uint8), bitorder="little")
    places = np.flatnonzero(bits) + head.first_place
    ends, keys, values = _exported_rows(spec, page, len(places), first_key)
    if len(bits) // 8 != -(-(head.end_place - head.first_place) // 8) or (len(places) and places[-1] >= head.end_place):
        what = f"{len(bits)} bits of submissions {head.first_place} to {head.end_place}"
        raise InternalError(f"the server sent a page of tensor {spec.name!r} that is wrong: {what}")
    about = head.is_continued, head.num_submissions, head.next_page_token
    return ExportedPage(head.first_place, head.end_place, places, ends, keys, values, *about)


def exported_updates(spec: TensorSpec, pages: Sequence[ExportedColumns], begin: int = 0) -> dict[str, ExportedUpdate]:
    """Returns the updates of the pages of an export, by client id; ``begin``: of the exported range of keys.
    ``InternalError``: a page is malformed.
    """
    parts: dict[str, list[ExportedUpdate]] = {}
    for page in pages:
        ids = page.head.client_ids.split("\n") if page.head.weights else []
        weights = np.frombuffer(page.head.weights, "<f8").tolist()
        ends, keys, values = _exported_rows(spec, page, len(ids), begin)
        if len(ids) != len(weights):
            raise InternalError(f"the server sent a page with {len(ids)} ids and {len(weights)} weights")
        first = 0
        for client_id, weight, end in zip(ids, weights, ends.tolist()):
            of_one = None if values is None else values[first:end]
            parts.setdefault(client_id, []).append(ExportedUpdate(keys[first:end], of_one, weight))
            first = end
    return {client_id: joined(updates) for client_id, updates in parts.items()}


def _exported_rows(
    spec: TensorSpec, page: ExportedColumns, num_listed: int, first_key: int
) -> tuple[Array, Array, Array | None]:
    """Returns the ends of the rows of each submission, and the keys and values of all; ``InternalError`` if wrong."""
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
        if len(ends) != num_listed or (ends[-1] if num_listed else 0) != len(keys):
            raise InvalidArgumentError(f"{num_listed} submissions, {len(ends)} numbers of keys, {len(keys)} keys")
    except InvalidArgumentError as error:
        raise InternalError(f"the server sent a page of tensor {spec.name!r} that is wrong: {error}") from error
    return ends, keys, values


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


def joined_parts(parts: Sequence[ExportedPage]) -> ExportedPage:
    """Returns the page of one submission whose parts came in several pages."""
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part.keys for part in parts])
    rows = [part.values for part in parts if part.values is not None]
    values = np.concatenate(rows) if rows else None
    return parts[0]._replace(ends=np.array([len(keys)]), keys=keys, values=values)
