"""Reads of a model's rows at one version, in calls that fit the limits of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import numpy as np

from sparseagg._internal.base import extension
from sparseagg._internal.base.foreign import Array
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.client.memory_connection import MemoryConnection
from sparseagg._internal.results.model_info import ModelInfo
from sparseagg._internal.spec.options import key_bytes
from sparseagg._internal.wire.columns import decode_keys, decode_rows
from sparseagg._internal.wire.encode import ServerWire, WireFormat
from sparseagg._internal.wire.model_spec import has_zeros, initial_rows, wire_dtype
from sparseagg.errors import InternalError, InvalidArgumentError
from sparseagg.v1 import aggregation_pb2
from sparseagg.v1 import models_pb2 as pb

_MOST_KEYS = 16384  # of one call
_INITIAL_ROWS = 1 << 16  # of which the initial values are computed at a time


class Batch(NamedTuple):
    """Some rows of a tensor. Keys are uint64, ascending, and distinct."""

    keys: Array
    rows: Array  # at ``keys``; shape (n, width), bfloat16 as its bits
    untouched: Array  # keys whose rows have their initial values


class ModelReader:
    """Reads of one operation, all at the version of the first one. Used by one thread.

    Args:
        spec, info: of the model. Reads are as ``info.reads`` allows: the server learns only blocks of the keys.
        version: to read at; None: the newest one when the first call arrives.
        wanted: the encoding of values.

    Attributes:
        version: None before the first call.
    """

    def __init__(
        self,
        connection: Connection | MemoryConnection,
        spec: pb.ModelSpec,
        info: ModelInfo,
        version: int | None,
        wanted: aggregation_pb2.ResultFormat,
        deadline: float | None,
    ) -> None:
        self.version = version
        self._connection = connection
        self._spec, self._info = spec, info
        self._position = {tensor.name: position for position, tensor in enumerate(spec.tensors)}
        self._format = wanted
        self._deadline = deadline

    async def fill(self, rows: Array, name: str, keys: Array | None) -> None:
        """Writes the rows of some keys, ascending and distinct; of None: all rows of a tensor with ``num_rows``."""
        missing = np.ones(len(rows), bool)
        async for batch in self.batches(name, keys):
            at = batch.keys if keys is None else np.searchsorted(keys, batch.keys)
            rows[at] = batch.rows
            missing[at] = False
        where = np.flatnonzero(missing)
        for begin in range(0, len(where), _INITIAL_ROWS):
            part = where[begin : begin + _INITIAL_ROWS]
            rows[part] = await self.initial(name, part.astype(np.uint64) if keys is None else keys[part])

    async def initial(self, name: str, keys: Array) -> Array:
        """Returns the initial rows of some keys, ascending and distinct."""
        position = self._position[name]
        if self._computes(name) or self._info.reads != "keys" or len(keys) == 0:
            return await self._connection.transport.convert(initial_rows, self._spec, position, keys)
        return np.concatenate([batch.rows async for batch in self.batches(name, keys)])

    def _computes(self, name: str) -> bool:
        """Returns whether initial rows of a tensor can be computed here."""
        return has_zeros(self._spec.tensors[self._position[name]]) or hasattr(extension.find(), "initial_rows")

    async def batches(self, name: str, keys: Array | None, since: int | None = None) -> AsyncIterator[Batch]:
        """Yields the rows of some keys that were touched at the version; with ``since`` the rows that have changed.

        ``keys``: ascending and distinct; None: all. Rows of untouched keys are among ``Batch.untouched``, or in no
        batch; without the engine, which computes them, the server sends them.
        """
        if keys is None or self._info.reads != "keys":
            for begin, end in self._ranges(name, keys):
                async for batch in self._pages(name, begin, end, since):
                    yield batch if keys is None else _within(batch, keys)
            return
        wire = await self._connection.server_wire(self._deadline)
        tensor = self._info.tensors[name]
        row_bytes = tensor.width * wire_dtype(tensor.dtype).itemsize
        size = max(1, min(_MOST_KEYS, wire.page_bytes // row_bytes))
        for begin in range(0, len(keys), size):
            yield await self._rows_of(name, keys[begin : begin + size], since, wire)

    def _ranges(self, name: str, keys: Array | None) -> list[tuple[int, int]]:
        """Returns the ranges of keys to read: one of all keys, or of the blocks that have some of the keys."""
        tensor = self._info.tensors[name]
        if keys is None or self._info.reads == "whole":
            return [(0, 0)]
        blocks = np.unique(keys // np.uint64(tensor.block_rows))
        runs = np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1) if len(blocks) else []
        last = -(-tensor.num_rows // tensor.block_rows) - 1
        ends = [0 if run[-1] == last else (int(run[-1]) + 1) * tensor.block_rows for run in runs]
        return [(int(run[0]) * tensor.block_rows, end) for run, end in zip(runs, ends)]

    async def _rows_of(self, name: str, keys: Array, since: int | None, wire: ServerWire) -> Batch:
        known = WireFormat(wire.key_encodings & {"implicit", "delta_bitpacked"})
        encoding, first_key, data = known.encode_keys(keys.astype(self._key_type(name)))
        request = self._request(name, since)
        encoded = aggregation_pb2.TensorSlice(key_encoding=f"KEY_ENCODING_{encoding}", keys=bytes(data))
        encoded.first_key, encoded.num_keys = first_key, len(keys)
        request.keys.CopyFrom(encoded)
        request.with_initial = not self._computes(name)
        page = await self._read(request)
        untouched, unchanged = _bits(page.untouched, len(keys)), _bits(page.unchanged, len(keys))
        sent = ~(untouched | unchanged)
        return Batch(keys[sent], self._decoded(name, page, int(sent.sum())), keys[untouched])

    async def _pages(self, name: str, begin: int, end: int, since: int | None) -> AsyncIterator[Batch]:
        request = self._request(name, since)
        request.range.begin, request.range.end = begin, end
        is_last = False
        while not is_last:
            page = await self._read(request)
            keys = decode_keys(page.slice, page.slice.keys, self._key_type(name)).astype(np.uint64)
            untouched = _bits(page.untouched, len(keys))
            yield Batch(keys[~untouched], self._decoded(name, page, int((~untouched).sum())), keys[untouched])
            request.page_token, is_last = page.next_page_token, not page.next_page_token

    def _request(self, name: str, since: int | None) -> pb.ReadRowsRequest:
        return pb.ReadRowsRequest(model=self._info.name, tensor=name, since=since, format=self._format)

    def _key_type(self, name: str) -> np.dtype[Any]:
        return np.dtype(f"<u{key_bytes(self._info.tensors[name].num_rows)}")

    async def _read(self, request: pb.ReadRowsRequest) -> pb.RowsPage:
        if self.version is not None:
            request.version = self.version
        page: pb.RowsPage = await self._connection.call("ReadRows", request, 0.0, self._deadline)
        self.version = page.version
        return page

    def _decoded(self, name: str, page: pb.RowsPage, num_rows: int) -> Array:
        tensor = self._info.tensors[name]
        try:
            rows = decode_rows(page.slice, page.slice.values, tensor.dtype, num_rows * tensor.width)
        except InvalidArgumentError as error:
            raise InternalError(f"the server sent rows of tensor {name!r} that are wrong: {error}") from error
        return rows.reshape(num_rows, tensor.width)


def _bits(data: bytes, count: int) -> Array:
    """Returns a bit set of the wire as bools; the empty one has no bit."""
    if not data:
        return np.zeros(count, bool)
    return np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little").astype(bool)


def _within(batch: Batch, keys: Array) -> Batch:
    """Returns the rows of a batch whose keys are among others, which ascend."""
    is_asked, is_gone = np.isin(batch.keys, keys), np.isin(batch.untouched, keys)
    return Batch(batch.keys[is_asked], batch.rows[is_asked], batch.untouched[is_gone])
