"""The reader that puts a result together from its pages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparseagg._internal.base import bfloat16
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec, enum_name, key_bytes
from sparseagg._internal.updates.arrays import Array
from sparseagg._internal.wire.decode import decode_keys, decode_rows
from sparseagg.errors import InternalError, InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["ResultReader"]


class ResultReader:
    """The pages of one result, decoded as they arrive. Not thread-safe.

    The call that reads the result owns the reader. Calls, in order: ``add`` for every page of a stream; if the stream
    breaks, ``add`` for the answer to each request of ``rest``; ``result``.

    Attributes:
        num_pages: number of pages added.
    """

    def __init__(self) -> None:
        self.num_pages = 0
        self._parts: dict[str, _Parts] = {}
        self._next: dict[str, str] = {}  # by tensor: the token of the next page; empty after the last page
        self._info: RoundInfo | None = None

    def add(self, page: pb.ResultPage) -> None:
        """Adds the next page of a tensor. The first page of a tensor has the tensor's summary.

        Raises:
            InternalError: the page is malformed.
        """
        if page.HasField("round"):
            self._info = RoundInfo.from_proto(page.round)
        name = page.slice.tensor
        if page.HasField("summary"):
            self._parts[page.summary.name] = _Parts(page.summary)
            name = page.summary.name
        if name not in self._parts:
            raise InternalError(f"the server sent a page of tensor {name!r} before its summary")
        self._parts[name].add(page)
        self._next[name] = page.next_page_token
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
    """The pages of one tensor, decoded as they arrive."""

    def __init__(self, summary: pb.TensorSummary) -> None:
        self._summary = summary
        self._dtype = enum_name(pb.DType, "DTYPE_", summary.dtype)
        self._row_width = summary.row_width or 1
        self._key_type = np.dtype(f"<u{key_bytes(summary.num_rows)}")
        self._num_keys = 0
        self._keys: list[Array] = []
        self._values: list[Array] = []
        self._counts = bytearray()
        self._weights = bytearray()

    def add(self, page: pb.ResultPage) -> None:
        """Adds the next page; ``InternalError`` if the page is malformed."""
        try:
            keys = decode_keys(page.slice, self._key_type)
            if self._summary.has_values:
                self._values.append(decode_rows(page.slice, self._dtype, len(keys) * self._row_width))
        except InvalidArgumentError as error:
            raise InternalError(
                f"the server sent a page of tensor {self._summary.name!r} that is wrong: {error}"
            ) from error
        self._keys.append(keys)
        self._num_keys += len(keys)
        self._counts += page.counts
        self._weights += page.weights

    def tensor(self, fill: float, shape: tuple[int, ...] | None) -> TensorResult:
        """Returns the tensor; ``fill`` and ``shape`` are those of the spec."""
        summary = self._summary
        return TensorResult(
            name=summary.name,
            layout="dense" if summary.layout == pb.TENSOR_LAYOUT_DENSE else "sparse",
            dtype=self._dtype,
            num_rows=summary.num_rows,
            row_width=self._row_width,
            keys=_joined(self._keys),
            values=self._value_array() if summary.has_values else None,
            counts=self._column(self._counts, "<u4") if summary.has_counts else None,
            weights=self._column(self._weights, "<f8") if summary.has_weights else None,
            fixed_point_shift=summary.fixed_point_shift if summary.HasField("fixed_point_shift") else None,
            fill=fill,
            shape=shape,
        )

    def _value_array(self) -> Array:
        values = _joined(self._values)
        if self._dtype == "bfloat16":
            values = bfloat16.float_from_bits(values)
        return values if self._row_width == 1 else values.reshape(-1, self._row_width)

    def _column(self, buffer: bytearray, dtype: str) -> Array:
        column = np.frombuffer(buffer, dtype=dtype)
        if len(column) != self._num_keys:
            raise InternalError(f"the server sent {len(column)} entries for {self._num_keys} keys")
        return column


def _joined(pieces: list[Array]) -> Array:
    """Returns one writable array; there is at least one piece."""
    return np.concatenate(pieces)
