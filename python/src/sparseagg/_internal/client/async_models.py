"""``sparseagg.aio.Model``: a model that lives on a server, or in this process with ":memory:".

All calls are those of sparseagg.v1.Models, on both kinds of connection. Reads of many keys are cut into calls that fit
the server's limits, all at the version of the first one; rows that the server marks as untouched are computed here:
model_reader.py.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np

from sparseagg._internal.base.arguments import (
    Timeout,
    check_name,
    checked_number,
    checked_text,
    did_you_mean,
    shown,
)
from sparseagg._internal.base.fields import as_of, read
from sparseagg._internal.base.foreign import Array
from sparseagg._internal.base.types import Layout, NarrowEncoding, Op
from sparseagg._internal.client.async_round import Round
from sparseagg._internal.client.async_stream import Stream, checked_version
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.client.endpoint import Handled
from sparseagg._internal.client.memory_connection import MemoryConnection
from sparseagg._internal.client.model_arrays import checked_keys, padded, table_of, values_of
from sparseagg._internal.client.model_reader import ModelReader
from sparseagg._internal.client.retry import checked_deadline, long_poll, pages, raise_if_late
from sparseagg._internal.client.round_calls import (
    RoundAttributes,
    create_request,
    result_format,
    round_name,
)
from sparseagg._internal.client.upload import upload_tag
from sparseagg._internal.results.info import RoundInfo, StreamInfo, raise_if_failed
from sparseagg._internal.results.model_info import ModelInfo, ModelTensor, ModelVersion, tensor_of
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.updates.arrays import update_data
from sparseagg._internal.wire.encode import DEFAULT_CHUNK_BYTES, PLAIN
from sparseagg._internal.wire.model_spec import assigns, model_spec, wire_dtype
from sparseagg.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, SparseaggError
from sparseagg.optimizers import RowOptimizer
from sparseagg.v1 import aggregation_pb2
from sparseagg.v1 import models_pb2 as pb

_MOST = (1 << 64) - 1
_LARGEST_INT64 = (1 << 63) - 1
_MOST_ATTEMPTS = 5  # of catch_up, whose version may go while it reads
_SLOW_S = 3600.0  # how long the server may take to store a model or a version
_PUBLISHER = "model"  # the client id of rounds that carry arrays


class ModelRows(tuple):  # type: ignore[type-arg]
    """What ``Model.read`` returns: one array for each tensor, in the order in which they were asked for.

    Attributes:
        version: of all of them.
    """

    version: int


class ModelCalls:
    """A part of both clients."""

    _connection: Connection | MemoryConnection

    async def model(
        self,
        name: str,
        *,
        tensors: Mapping[str, Any] | None = None,
        optimizer: RowOptimizer | None = None,
        stream: Stream | str | None = None,
        keep_versions: SupportsIndex | None = None,
        expire_after: SupportsIndex = 0,
        reads: str | None = None,
    ) -> Model:
        """Returns a model of the server; creates it if ``tensors`` are given and there is none of this name.

            model = client.model("ads", stream=stream, optimizer=FedAdam(learning_rate=0.01),
                                 tensors={"emb": sa.Rows(64, init=sa.init.uniform(0.05, seed=1)), "head": head})
            model = client.model("ads")      # anywhere else

        Args:
            name: its id, ``[A-Za-z0-9_][A-Za-z0-9._-]{0,127}``, or "models/{id}".
            tensors: by name: ``sparseagg.Rows``, or an array, which is version 0 of a new model. Of a model that is
                there, names, dtypes and shapes must be the same; its rows stay, and the arrays are not compared. Arrays
                of a new model are uploaded as a round, which is deleted when the model is there.
            optimizer: takes the step of each version, unless a tensor has its own; of ``sparseagg.optimizers``. None:
                ``SGD()`` for floats of 32 and 64 bits, which adds the merged differences; ``Assign()`` for others.
            stream: whose versions the server applies, as they end. None: ``Model.apply`` makes versions.
            keep_versions: how many older versions can be read; None: 2, with a stream its max_staleness + 2.
            expire_after: of the ``Rows`` that have no other; 0: never.
            reads: "keys", "blocks" or "whole": what reads are allowed; see docs/models.md on the privacy of keys. None:
                "keys", without results of private rounds.

        Raises:
            InvalidArgumentError: an argument has no meaning; the message names tensor and field.
            AlreadyExistsError: there is a model of this name with another spec.
            NotFoundError: there is no such model, and no ``tensors``; or no such stream.
            FailedPreconditionError: the stream has cut a version already, or drives another model.
            ResourceExhaustedError: the server has no memory for the arrays.
            UnimplementedError: the server is older, or one of a cluster.
        """
        model_id = checked_text("a model's name", name).removeprefix("models/")
        check_name("a model's name", model_id)
        if tensors is None:
            if (optimizer, stream, keep_versions, expire_after, reads) != (None, None, None, 0, None):
                raise InvalidArgumentError("tensors must be given for a new model, as its other arguments are")
            known = pb.GetModelRequest(model=f"models/{model_id}")
            return Model(self._connection, await self._connection.call("GetModel", known))
        spec, arrays = model_spec(tensors, optimizer, _stream_name(stream), keep_versions, expire_after, reads)
        initial = f"rounds/{uuid.uuid4().hex}" if arrays else ""
        request = pb.CreateModelRequest(model_id=model_id, spec=spec, initial_round=initial)
        try:
            answer = await self._connection.call("CreateModel", request, _SLOW_S)
        except NotFoundError:  # a model that is there needs no arrays
            if not arrays:
                raise
            content = _content_spec(map(tensor_of, spec.tensors), arrays)
            async with _round_of(self._connection, content, arrays, initial.removeprefix("rounds/")):
                answer = await self._connection.call("CreateModel", request, _SLOW_S)
        return Model(self._connection, answer)

    async def list_models(self) -> AsyncIterator[Model]:
        """Yields all models of the server, in ascending order of ids."""
        async for page in pages(self._connection, "ListModels", pb.ListModelsRequest()):
            for proto in page.models:
                yield Model(self._connection, proto)


class ModelAttributes:
    """What models of both clients say of themselves."""

    name: str
    info: ModelInfo  # of the last refresh(), wait(), apply() or assign()

    def __repr__(self) -> str:
        return f"Model({self.name!r}, version {self.info.version}{as_of(self.info.as_of)})"

    def round_spec(self, op: Op = "mean", **options: Any) -> RoundSpec:
        """Returns the spec of a round whose result can be applied, with the model's tensors as sparse ones.

        ``options``: of ``RoundSpec``.
        """
        return RoundSpec(map(_tensor_spec, self.info.tensors.values()), op=op, **options)


class Model(Handled, ModelAttributes):
    """A model on a server, from ``Client.model``; the attributes are those of ``sparseagg.Model``."""

    _KIND = "models"

    def __init__(self, connection: Connection | MemoryConnection, proto: pb.Model) -> None:
        self._connection = connection
        self.name, self._spec = proto.name, proto.spec
        self.info = ModelInfo._from_proto(proto)

    async def refresh(self) -> ModelInfo:
        """Asks the server for the model, and returns it as it is now; ``NotFoundError`` if it was deleted."""
        answer = await self._connection.call("GetModel", pb.GetModelRequest(model=self.name))
        self.info = ModelInfo._from_proto(answer)
        return self.info

    async def wait(self, after: SupportsIndex | None = None, timeout: Timeout = None) -> int | None:
        """Waits for a version above ``after`` and returns the newest one.

        Args:
            after: a version; None: that of ``info``, which this call brings up to date.
            timeout: in seconds or as a timedelta; None for no limit. After it, the answer is None.

        Raises:
            NotFoundError: the model was deleted.
        """
        deadline = checked_deadline(timeout)
        since = self.info.version if after is None else checked_version("after", after)
        request = pb.GetModelRequest(model=self.name, after_version=since)
        answer = await long_poll(self._connection, "GetModel", request, deadline, lambda found: found.version > since)
        self.info = ModelInfo._from_proto(answer)
        return self.info.version if self.info.version > since else None

    async def versions(self, after: SupportsIndex | None = None) -> AsyncIterator[int]:
        """Yields the newest version at once, then the newest one whenever there is a newer one; without end.

        Versions that come faster than the caller asks are passed over. ``after``: begin above this version.
        """
        if after is None:
            after = (await self.refresh()).version
            yield after
        while True:
            newest = await self.wait(after)
            assert newest is not None  # without a timeout
            after = newest
            yield newest

    async def read(
        self,
        rows: Mapping[str, Any],
        *,
        version: SupportsIndex | None = None,
        value_encoding: NarrowEncoding | None = None,
        pad: bool = False,
        timeout: Timeout = None,
    ) -> ModelRows:
        """Reads rows of one version.

        Args:
            rows: by tensor the keys to read: integers on one axis, in any order, also repeated; or ``...`` for the
                whole tensor, which needs ``num_rows``.
            version: that is kept; None: the newest one.
            value_encoding: "float32", "float16", "bfloat16" or "int8_scaled": how values travel; they arrive in the
                tensor's dtype, rounded. None: exact.
            pad: also asks for keys drawn at random, up to a power of two, so that the server does not learn how many
                rows the caller needs. Only with ``num_rows``.
            timeout: of all calls together; None for no limit.

        Returns:
            In the order of ``rows``: arrays of shape (n, width), or (n, *shape[1:]) of a tensor that was given as an
            array, in the order of the keys; or the whole array. They are the caller's own.

        Raises:
            InvalidArgumentError: no such tensor or key, or a version that there is not yet.
            FailedPreconditionError: the version is not kept any more, perhaps since the read began: read a newer one.
                Or ``reads`` does not allow it.
        """
        deadline = checked_deadline(timeout)
        asked = [(self._tensor(name), keys) for name, keys in _mapping("rows", rows).items()]
        reader = self._reader(version, deadline, value_encoding)
        with raise_if_late(deadline, f"the read of {self.name} has not ended"):
            arrays = ModelRows([await self._rows(reader, tensor, keys, pad) for tensor, keys in asked])
            arrays.version = reader.version if reader.version is not None else (await self.refresh()).version
        return arrays

    async def changes(
        self,
        since: SupportsIndex,
        tensors: Mapping[str, Any] | None = None,
        *,
        version: SupportsIndex | None = None,
        timeout: Timeout = None,
    ) -> tuple[int, dict[str, tuple[Array, Array]]]:
        """Returns a version, and for each tensor the keys and rows that differ from those of version ``since``.

        Keys ascend: int64, or uint64 where one is beyond. A row that was removed has its initial values.

        Args:
            since: any version up to the present one; also one that is not kept any more.
            tensors: names, with the keys to look at, or None for all; None: all tensors.
            version: to read at; None: the newest one.

        Raises:
            FailedPreconditionError: removals since then are forgotten: read the whole tensor. Or as ``read``.
        """
        deadline = checked_deadline(timeout)
        chosen = dict.fromkeys(self.info.tensors) if tensors is None else _mapping("tensors", tensors)
        asked = {name: (self._tensor(name), keys) for name, keys in chosen.items()}
        reader, first = self._reader(version, deadline), checked_version("since", since)
        found = {}
        with raise_if_late(deadline, f"the read of {self.name} has not ended"):
            for name, (tensor, keys) in asked.items():
                distinct = None if keys is None else np.unique(checked_keys(tensor, keys))
                found[name] = await self._changed(reader, tensor, distinct, first)
            newest = reader.version if reader.version is not None else (await self.refresh()).version
        return newest, found

    async def catch_up(self, arrays: Mapping[str, Any], since: SupportsIndex | None = None) -> int:
        """Brings arrays to the newest version, in place, and returns that version.

        Args:
            arrays: whole tensors of the model that the caller has, or some of them, by name: arrays of NumPy, or
                tensors of torch on the CPU, as they were at ``since``.
            since: version of ``arrays``; None: they have no contents yet.

        Raises:
            InvalidArgumentError: no such tensor, or one of another dtype or shape. Nothing is written.

            After an error, the arrays may be between two versions. Call again with the same ``since``.
        """
        tables = {name: table_of(self._tensor(name), array) for name, array in _mapping("arrays", arrays).items()}
        begun = None if since is None else checked_version("since", since)
        for attempt in range(_MOST_ATTEMPTS):
            info = await self.refresh()
            try:
                reader = self._reader(info.version, None)
                for name, table in tables.items():
                    if begun is None or begun < info.tensors[name].oldest_since:
                        await reader.fill(table, name, None)
                    elif begun != info.version:
                        async for batch in reader.batches(name, None, begun):
                            table[batch.keys] = batch.rows
                            table[batch.untouched] = await reader.initial(name, batch.untouched)
                return info.version
            except FailedPreconditionError:  # the version is not kept any more: a newer one, from the same begin
                if attempt == _MOST_ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt has returned or raised")

    async def apply(
        self,
        round: RoundAttributes | str | None,
        *,
        base_version: SupportsIndex,
        learning_rate: SupportsFloat | None = None,
    ) -> ModelVersion:
        """Makes version ``base_version`` + 1 of a round's result, which must be done. Safe to repeat.

        Args:
            round: the round, its id or its name. None: only the learning rate changes, by an empty version.
            base_version: the newest version, as the caller believes.
            learning_rate: of all tensors, from this version on.

        Raises:
            FailedPreconditionError: another round was applied to ``base_version``: the message names it. Or the model
                has a stream, which alone makes its versions; or the round is not done.
            InvalidArgumentError: the round's tensors are not the model's.
            OutOfRangeError: a value would not be finite; the message names tensor and key. The model stays.
            ResourceExhaustedError: memory or disk is full. The model stays.
        """
        name = "" if round is None else round_name(round if isinstance(round, str) else round.name)
        request = pb.ApplyRoundRequest(
            model=self.name, round=name, base_version=checked_version("base_version", base_version)
        )
        if learning_rate is not None:
            request.learning_rate = checked_number("learning_rate must be a number, 0 or more", learning_rate)
        made = read(ModelVersion, await self._connection.call("ApplyRound", request, _SLOW_S))
        await self.refresh()
        return made

    async def assign(self, rows: Mapping[str, Any], *, base_version: SupportsIndex) -> ModelVersion:
        """Makes version ``base_version`` + 1 of rows that the caller has computed: for ``optimizers.Assign``.

        Opens a round "{id}.v{version}", submits, applies and deletes it. Safe to repeat.

        Args:
            rows: by tensor (keys, rows), the new rows; or an array, the whole tensor. The others stay.

        Raises:
            As ``apply``; InvalidArgumentError also for a tensor with another optimizer.
        """
        base = checked_version("base_version", base_version)
        by_name = {tensor.name: tensor for tensor in self._spec.tensors}
        for name in _mapping("rows", rows):
            self._tensor(name)
            if not assigns(self._spec, by_name[name]):
                raise InvalidArgumentError(f"tensor {name!r}: its optimizer adds, and assign is for Assign()")
        # Named after the content: another coordinator's rows for the same version are another round, which is refused.
        spec = _content_spec(self.info.tensors.values(), rows)
        tag = await self._connection.transport.convert(_tag, spec, rows)
        round_id = f"{self.name.removeprefix('models/')[:80]}.v{base + 1}.{tag}"
        async with _round_of(self._connection, spec, rows, round_id):
            return await self.apply(round_id, base_version=base)

    async def create_round(self, /, op: Op = "mean", **options: Any) -> Round:
        """Opens a round whose result can be applied: ``Client.create_round`` of ``round_spec``."""
        request = create_request(self.round_spec(op, **options), None)
        return Round(self._connection, RoundInfo._from_proto(await self._connection.call("CreateRound", request)))

    async def get_stream(self) -> Stream:
        """Returns the stream that makes the versions; ``FailedPreconditionError`` if there is none."""
        if not self.info.stream:
            raise FailedPreconditionError(f"no stream makes the versions of {self.name}")
        answer = await self._connection.call("GetStream", aggregation_pb2.GetStreamRequest(stream=self.info.stream))
        return Stream(self._connection, StreamInfo._from_proto(answer))

    async def delete(self) -> None:
        """Deletes the model from the server. Its stream goes on."""
        await self._connection.call("DeleteModel", pb.DeleteModelRequest(model=self.name))

    def _tensor(self, name: Any) -> ModelTensor:
        tensor = self.info.tensors.get(name)
        if tensor is None:
            known = ", ".join(map(repr, self.info.tensors))
            raise InvalidArgumentError(
                f"{self.name} has no tensor {name!r}; it has {known}{did_you_mean(name, self.info.tensors)}"
            )
        return tensor

    def _reader(
        self, version: SupportsIndex | None, deadline: float | None, value_encoding: NarrowEncoding | None = None
    ) -> ModelReader:
        at = None if version is None else checked_version("version", version)
        return ModelReader(self._connection, self._spec, self.info, at, result_format("auto", value_encoding), deadline)

    async def _rows(self, reader: ModelReader, tensor: ModelTensor, keys: Any, pad: bool) -> Array:
        """Returns what ``read`` returns for one tensor."""
        if keys is ... and not tensor.num_rows:
            raise InvalidArgumentError(f"tensor {tensor.name!r} has no num_rows, so all its rows cannot be read")
        if keys is ...:
            table = np.empty((tensor.num_rows, tensor.width), wire_dtype(tensor.dtype))
            await reader.fill(table, tensor.name, None)
            return values_of(table, tensor.dtype).reshape(tensor.shape)
        wanted = checked_keys(tensor, keys)
        distinct = wanted if (wanted[1:] > wanted[:-1]).all() else np.unique(wanted)
        if pad:
            distinct = padded(tensor, distinct)
        rows = np.empty((len(distinct), tensor.width), wire_dtype(tensor.dtype))
        await reader.fill(rows, tensor.name, distinct)
        if distinct is not wanted:
            rows = rows[np.searchsorted(distinct, wanted)]
        return values_of(rows, tensor.dtype).reshape(len(wanted), *tensor.row_shape)

    async def _changed(
        self, reader: ModelReader, tensor: ModelTensor, keys: Array | None, since: int
    ) -> tuple[Array, Array]:
        """Returns what ``changes`` returns for one tensor."""
        parts = [(np.empty(0, np.uint64), np.empty((0, tensor.width), wire_dtype(tensor.dtype)))]
        async for batch in reader.batches(tensor.name, keys, since):
            parts.append((batch.keys, batch.rows))
            parts.append((batch.untouched, await reader.initial(tensor.name, batch.untouched)))
        found, rows = (np.concatenate(columns) for columns in zip(*parts))
        order = np.argsort(found)
        found, rows = found[order], values_of(rows[order], tensor.dtype).reshape(len(found), *tensor.row_shape)
        return (found.view(np.int64) if len(found) == 0 or found[-1] <= _LARGEST_INT64 else found), rows


def _mapping(what: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(f"{what} must be a mapping from tensor names, got {shown(given)}")
    return given


def _stream_name(stream: Any) -> str:
    if stream is None:
        return ""
    name = checked_text("a stream", getattr(stream, "name", stream))
    return name if name.startswith("streams/") else f"streams/{name}"


def _tensor_spec(tensor: ModelTensor, layout: Layout = "sparse", **options: Any) -> TensorSpec:
    """Returns the round's tensor for a model's."""
    shape = tensor.shape if tensor.num_rows else None
    return TensorSpec(
        tensor.name,
        tensor.dtype,
        shape,
        num_rows=tensor.num_rows,
        row_width=tensor.width,
        layout=layout,
        **options,
    )


def _content_spec(tensors: Iterable[ModelTensor], content: Mapping[str, Any]) -> RoundSpec:
    """Returns the spec of a round whose only submission, arrays or (keys, rows), is its result, also NaN."""
    specs = []
    for tensor in tensors:
        if tensor.name in content:
            options = {"on_nonfinite": "propagate"} if "float" in tensor.dtype else {"modular": tensor.dtype[0] == "u"}
            layout: Layout = "sparse" if isinstance(content[tensor.name], tuple) else "dense"
            specs.append(_tensor_spec(tensor, layout, **options))
    return RoundSpec(specs, op="sum", min_submissions=1)


@contextlib.asynccontextmanager
async def _round_of(
    connection: Connection | MemoryConnection, spec: RoundSpec, content: Mapping[str, Any], round_id: str
) -> AsyncIterator[None]:
    """Makes a round whose result is ``content``; deletes it at the end."""
    answer = await connection.call("CreateRound", create_request(spec, round_id))
    made = Round(connection, RoundInfo._from_proto(answer))
    try:
        await made.submit(_PUBLISHER, content, submission_id=_PUBLISHER)
        await made.start_merge()
        raise_if_failed(await made.wait())
        yield
    finally:
        with contextlib.suppress(SparseaggError):  # of a round that has gone, or that its result_ttl ends
            await made.delete()


def _tag(spec: RoundSpec, content: Mapping[str, Any]) -> str:
    return upload_tag(update_data(spec, content), None, DEFAULT_CHUNK_BYTES, PLAIN).hex()
