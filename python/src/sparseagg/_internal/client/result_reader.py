"""The reader that puts a result together from its pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sparseagg._internal.base import bfloat16
from sparseagg._internal.base.fields import enum_name
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec, key_bytes
from sparseagg._internal.updates.arrays import Array
from sparseagg._internal.wire.decode import decode_keys, decode_rows
from sparseagg._internal.wire.page import Page
from sparseagg.errors import InternalError, InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["ResultReader"]


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
        """Adds the next page of a tensor. The first page of a tensor has the tensor's summary.

        Raises:
            InternalError: the page is malformed.
        """
        head = page.head
        if head.HasField("round"):
            self._info = RoundInfo.from_proto(head.round)
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

        The pages have the bounds that they would have in the stream, so that the same values share a scale.

        Args:
            stream: the request of the stream that broke.
            spec: of the round.
        """
        for name in list(stream.tensors) or [tensor.name for tensor in spec.tensors]:
            while self._next.get(name) != "":
                yield pb.GetResultRequest(
                    name=stream.name,
                    tensor=name,
                    range=stream.range,
                    page_token=self._next.get(name),
                    format=stream.format,
                )

    def result(self, info: RoundInfo | None = None) -> Result:
        """Returns the result of all pages; ``info`` is the round, if no page has it.

        Raises:
            InternalError: the pages do not fit together.
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
            fixed_point_shift=summary.fixed_point_shift if summary.HasField("fixed_point_shift") else None,
            fill=fill,
            shape=shape,
        )

    def _value_array(self) -> Array:
        values = self._values.array()
        if self._dtype == "bfloat16":
            values = bfloat16.float_from_bits(values)
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
