"""``sparseagg.aio.PublishedModel``: versions of a model on a server, each a round, for clients that catch up.

Version V of model NAME is the round NAME-vV, with the rows that V changed. It has one submission, whose sum is the
submission itself. Now and then the whole model is the round NAME-wV, too. All rounds name all tensors of the model; a
round whose tensors are all dense is a whole model. The publisher removes the oldest rounds first, so if there is a
round of V and none of V + 1, then there is no version V + 1 yet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from sparseagg._internal.base.arguments import check_name, checked_integer, checked_text, shown
from sparseagg._internal.base.fields import Seconds
from sparseagg._internal.base.foreign import Array, to_numpy
from sparseagg._internal.base.types import Layout
from sparseagg._internal.client.async_round import Round
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.client.memory_connection import MemoryConnection
from sparseagg._internal.client.round_calls import create_request
from sparseagg._internal.results.info import RoundInfo, raise_if_failed
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.updates.arrays import readable
from sparseagg.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    RoundFailedError,
    SparseaggError,
)
from sparseagg.v1 import aggregation_pb2 as pb


@dataclasses.dataclass(frozen=True)
class ModelTensor:
    """One tensor of a model: an array whose first axis counts the rows. An array without axes has one row."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def wire_name(self) -> str:
        """The name of the round's tensor, which has type and shape, so that a reader with other arrays finds none."""
        return f"{self.name} {self.dtype} {'x'.join(map(str, self.shape))}"

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.shape[0] if self.shape else 1

    @property
    def row_width(self) -> int:
        """The number of values in a row."""
        return math.prod(self.shape[1:])

    def spec(self, num_words: int, layout: Layout) -> TensorSpec:
        """Returns the round's tensor, with ``num_words`` words in a row."""
        return TensorSpec(
            self.wire_name, "uint32", num_rows=self.num_rows, row_width=num_words, layout=layout, modular=True
        )


class Rows:
    """An array of the caller's, as rows that can be read and written as words.

    Attributes:
        tensor: what the array is.
        num_words: words in a row.
    """

    def __init__(self, tensor: ModelTensor, array: Array) -> None:
        self.tensor = tensor
        self._array = array.reshape(tensor.num_rows, *tensor.shape[1:])  # a view, since the shape is the same
        self._row_bytes = tensor.row_width * array.dtype.itemsize
        self.num_words = -(-self._row_bytes // 4)

    @classmethod
    def of_words(cls, tensor: ModelTensor, num_words: int) -> Rows:
        """Returns new rows, which hold the words as they are."""
        words = ModelTensor(tensor.name, "uint32", (tensor.num_rows, num_words))
        rows = cls(words, np.zeros(words.shape, "<u4"))
        rows.tensor = tensor
        return rows

    def words(self) -> Array:
        """Returns the rows as words: a view of a contiguous array whose rows are whole words, otherwise a copy."""
        array = np.ascontiguousarray(self._array)
        octets = array.reshape(len(array), -1).view(np.uint8)
        padding = 4 * self.num_words - self._row_bytes
        if padding:
            octets = np.pad(octets, ((0, 0), (0, padding)))
        return octets.view("<u4")

    def write(self, result: TensorResult) -> None:
        """Writes the rows of a result."""
        assert result.values is not None
        words = np.ascontiguousarray(result.values.reshape(len(result), self.num_words))
        octets = words.view(np.uint8)[:, : self._row_bytes]
        rows = np.ascontiguousarray(octets).view(self._array.dtype).reshape(len(result), *self._array.shape[1:])
        if len(result) == self.tensor.num_rows:
            self._array[...] = rows
        else:
            self._array[result.keys] = rows


def rows_of(arrays: Any, *, writable: bool) -> dict[str, Rows]:
    """Returns the arrays of a model, NumPy's or torch's, by name, without those that have no values.

    ``writable``: whether ``write`` has to change the caller's arrays. Raises ``InvalidArgumentError`` for no such
    mapping, or an array that cannot be used in place; the message names the array.
    """
    if not isinstance(arrays, Mapping):
        raise InvalidArgumentError(f"a model must be a mapping from names to arrays, got {shown(arrays)}")
    found = {}
    for name, given in arrays.items():
        array, dtype = _viewed(checked_text("a tensor's name", name), given, writable)
        if array.size:
            found[name] = Rows(ModelTensor(name, dtype, array.shape), array)
    return found


def _viewed(name: str, given: Any, writable: bool) -> tuple[Array, str]:
    """Returns a NumPy array over the memory of an array, and the name of its type."""
    if str(getattr(given, "layout", "")) == "torch.strided":
        if writable and given.device.type != "cpu":
            raise InvalidArgumentError(f"tensor {name!r} is on {given.device}; give a tensor on the CPU")
        tensor = given.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":  # NumPy has no such type
            import torch

            return tensor.view(torch.int16).numpy(), "bfloat16"
        array = np.asarray(tensor.numpy())
    elif isinstance(given, np.ndarray) or not writable:
        array = to_numpy(given)
    else:
        raise InvalidArgumentError(
            f"tensor {name!r}: must be an array of NumPy or torch, which is written in place, got {shown(given)}"
        )
    if array.dtype.hasobject or not array.dtype.isnative:
        raise InvalidArgumentError(f"tensor {name!r}: an array of numbers is wanted, not one of {array.dtype}")
    if writable and not array.flags.writeable:
        raise InvalidArgumentError(f"tensor {name!r}: the array is read-only")
    return array, array.dtype.name


def change_of(tensor: ModelTensor, change: Any) -> tuple[Array | None, Array, int] | None:
    """Returns the keys (None: all rows), words and words in a row of a change; None if nothing changes."""
    if change is None:
        return None
    where = f"tensor {tensor.name!r}"
    if not isinstance(change, tuple):
        with readable(tensor.name, change):
            rows = rows_of({tensor.name: change}, writable=False).get(tensor.name)
        if rows is None:
            raise InvalidArgumentError(f"{where}: must have shape {tensor.shape} as in the model, got an empty array")
        if rows.tensor != tensor:
            raise InvalidArgumentError(
                f"{where}: must be {tensor.dtype} of shape {tensor.shape} as in the model, got {rows.tensor.dtype} of "
                f"shape {rows.tensor.shape}"
            )
        return None, rows.words(), rows.num_words
    if len(change) != 2:
        raise InvalidArgumentError(f"{where}: a tuple must be (keys, rows), got {len(change)} members")
    with readable(tensor.name, change[0], "keys of "):
        keys = to_numpy(change[0])
    with readable(tensor.name, change[1], "rows of "):
        values, dtype = _viewed(tensor.name, change[1], writable=False)
    if keys.ndim != 1 or (keys.size and keys.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"{where}: keys must be integers on one axis, got {keys.dtype} of shape {keys.shape}"
        )
    if len(keys) == 0:
        return None
    is_row_each = values.ndim > 0 and len(values) == len(keys)
    if dtype != tensor.dtype or values.size != len(keys) * tensor.row_width or not is_row_each:
        raise InvalidArgumentError(
            f"{where}: {len(keys)} rows of {tensor.dtype} and shape {tensor.shape[1:]} must be given, got {dtype} of "
            f"shape {values.shape}"
        )
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    twice = keys[1:] == keys[:-1]
    if twice.any():
        raise InvalidArgumentError(f"{where}: key {keys[1:][twice][0]} has two rows")
    rows = Rows(dataclasses.replace(tensor, shape=(len(keys), *tensor.shape[1:])), values.reshape(len(keys), -1))
    return keys, rows.words()[order], rows.num_words


def model_tensors(specs: Any) -> dict[str, tuple[ModelTensor, int]]:
    """Returns the tensors of a round's spec, each with its words in a row, by name."""
    found = {}
    for spec in specs:
        name, dtype, sizes = spec.name.rsplit(" ", 2)
        shape = tuple(int(size) for size in sizes.split("x") if size)
        found[name] = ModelTensor(name, dtype, shape), spec.row_width
    return found


_LAST_VERSION = 10**18 - 1
_WHOLES_KEPT = 3  # bytes of so many whole models are kept by default
_MOST_FALLBACKS = 20
_MOST_NAME_BYTES = 100
_PUBLISHER = "model"  # as which a version is submitted


class _Kept(NamedTuple):
    """A round on the server. Sorted: by version; the whole model before the change of the same version."""

    version: int
    is_change: bool
    is_whole: bool
    name: str
    num_bytes: int
    end: datetime.datetime | None
    expiry: datetime.datetime | None

    @classmethod
    def of(cls, version: int, info: RoundInfo) -> _Kept:
        is_whole = all(tensor.layout == "dense" for tensor in info.spec.tensors)
        num_bytes = sum(each.num_keys * (4 * each.row_width + 4 * (each.layout == "sparse")) for each in info.results)
        is_change = info.name.rpartition("-")[2].startswith("v")
        return cls(version, is_change, is_whole, info.name, num_bytes, info.end_time, info.expire_time)

    def remains(self, share: float) -> bool:
        """Returns whether this share of the time between the round's end and its removal remains."""
        if self.end is None or self.expiry is None:
            return True
        now = datetime.datetime.now(datetime.timezone.utc)
        return self.expiry - now > share * (self.expiry - self.end)


class PublishedModel:
    """A model on a server, from ``Client.model``; see ``sparseagg.PublishedModel``."""

    def __init__(
        self,
        connection: Connection | MemoryConnection,
        name: str,
        keep_bytes: SupportsIndex | None,
        result_ttl: Seconds | None,
    ) -> None:
        self.name = checked_text("a model's name", name)
        check_name("a model's name", self.name)
        if len(self.name) > _MOST_NAME_BYTES:  # of the rounds, whose ids begin with it
            raise InvalidArgumentError(f"a model's name must have at most {_MOST_NAME_BYTES} bytes, got {shown(name)}")
        what = "keep_bytes must be a number of bytes, or None for three whole models"
        self._keep_bytes = None if keep_bytes is None else checked_integer(what, keep_bytes, 0, _LAST_VERSION)
        self._result_ttl = result_ttl
        self._connection = connection
        self._round_name = re.compile(rf"rounds/{re.escape(self.name)}-[vw](\d{{18}})")
        # Of the publisher; None: unknown.
        self._kept: list[_Kept] | None = None
        self._tensors: dict[str, tuple[ModelTensor, int]] = {}  # and the words in a row

    async def publish(
        self, version: SupportsIndex, changes: Mapping[str, Any], *, model: Any = None, whole: bool = False
    ) -> None:
        """Makes a version known to clients.

        A whole model is published besides the changes when there is none on the server, when the changes since the last
        one have more bytes, or when half of that one's result_ttl is over. Then the oldest rounds are removed, beyond
        ``keep_bytes``; the newest whole model and the changes after it stay in any case.

        Args:
            version: the version before, plus 1; the first may be any from 0 on. The newest version again, with the same
                content, has no effect.
            changes: what changed since the version before, by tensor: (keys, rows), the new values of these rows; or an
                array, the new values of all. A tensor that is left out has not changed.
            model: the arrays of the whole model at this version, used if a whole model is to be published. None: it is
                read back from the server then.
            whole: ``changes`` are arrays, and the whole model: the only way without ``model`` to begin.

        Raises:
            InvalidArgumentError: an argument is wrong; the message names tensor and value.
            AlreadyExistsError: the version was published with other content.
            FailedPreconditionError: a whole model has to be published and the server has none to make it of, since its
                result_ttl is over.
            ResourceExhaustedError: the server has no memory for the version, or a row has more values than the server's
                max_row_width.
        """
        number = checked_integer("a version must be an integer from 0 on", version, 0, _LAST_VERSION)
        if not isinstance(changes, Mapping):
            raise InvalidArgumentError(
                f"changes must be a mapping from tensor names to (keys, rows), got {shown(changes)}"
            )
        if self._kept is None:
            await self._load()
        assert self._kept is not None
        newest = self._kept[-1].version if self._kept else None
        if newest is not None and number not in (newest, newest + 1):
            raise InvalidArgumentError(
                f"model {self.name!r} is at version {newest}; the next must be {newest + 1}, got {number}"
            )
        given = None if model is None else rows_of(model, writable=False)
        tensors = self._tensors_with(changes, given, whole)
        update = {name: change_of(tensor, changes.get(name)) for name, (tensor, _) in tensors.items()}
        is_whole = all(change is not None and change[0] is None for change in update.values())
        base = max(self._wholes(), default=None)
        is_due = not is_whole and (tensors != self._tensors or self._is_due(base, number, tensors, update))
        if is_due and given is None and base is None:
            raise FailedPreconditionError(
                f"the server has no whole model {self.name!r}; publish one with model=arrays or whole=True"
            )
        put = await self._put("v", number, tensors, update)
        self._kept = [*(each for each in self._kept if each.name != put.name), put]
        self._tensors = tensors
        if is_due:
            rows = given if given is not None else await self._rebuilt(base, tensors, number)
            everything = {name: (None, rows[name].words(), num_words) for name, (_, num_words) in tensors.items()}
            self._kept.append(await self._put("w", number, tensors, everything))
        await self._evict(tensors)

    async def catch_up(
        self,
        arrays: Mapping[str, Any],
        since: SupportsIndex | None = None,
        *,
        keys: tuple[int, int | None] | None = None,
    ) -> int:
        """Brings arrays to the newest version, in place, and returns that version.

        Reads the changes after ``since``, oldest first. If one is gone, reads the newest whole model and the changes
        after it. A call that nothing has changed for costs two short messages.

        Args:
            arrays: the model's arrays that the caller has, or some of them, by name: arrays of NumPy, or tensors of
                torch on the CPU, as they were at ``since``.
            since: version of ``arrays``; None: they have no contents yet.
            keys: range (begin, end) of the rows to bring up to date, an end of None: to the last one. The other rows
                stay as they are.

        Raises:
            InvalidArgumentError: the model has no such tensor, or it has another type or shape. Nothing is written.
            NotFoundError: there is no whole model on the server, and it is needed.

            After an error, the arrays may be between two versions. Call again with the same ``since``.
        """
        rows = rows_of(arrays, writable=True)
        at = None if since is None else checked_integer("since must be a version or None", since, -1, _LAST_VERSION)
        for _ in range(_MOST_FALLBACKS):
            if at is not None:
                while await self._write(f"{self.name}-v{at + 1:018}", rows, keys):
                    at += 1
                if await self._is_done(f"{self.name}-v{at:018}"):
                    return at
            kept = [each async for each in self._rounds()]
            wholes = [each for each in kept if each.is_whole]
            if not wholes:
                raise NotFoundError(
                    f"the server has no whole model {self.name!r}: none was published, or its result_ttl is over"
                )
            best = max(wholes)
            at = best.version if await self._write(best.name.partition("/")[2], rows, keys) else None
        raise AbortedError(f"the versions of model {self.name!r} are removed faster than they can be read")

    async def version(self) -> int | None:
        """Returns the newest version; None if the server has none."""
        return max([each.version async for each in self._rounds() if each.is_change], default=None)

    async def delete(self) -> None:
        """Removes all versions from the server."""
        async for each in self._rounds(done=False):
            await self._remove(each)
        self._kept, self._tensors = None, {}

    async def _rounds(self, done: bool = True) -> AsyncIterator[_Kept]:
        """Yields the model's rounds that are done, or all of them."""
        token: str | None = ""
        while token is not None:
            page = await self._connection.call("ListRounds", pb.ListRoundsRequest(page_token=token, page_size=1000))
            for proto in page.rounds:
                match = self._round_name.fullmatch(proto.name)
                if match and (proto.state == pb.ROUND_STATE_DONE or not done):
                    yield _Kept.of(int(match[1]), RoundInfo._from_proto(proto))
            token = page.next_page_token or None

    async def _load(self) -> None:
        """Finds the versions that an earlier publisher has left, and removes those that it has not completed."""
        done = {each.name: each async for each in self._rounds()}
        async for each in self._rounds(done=False):
            if each.name not in done:
                await self._remove(each)
        kept = sorted(done.values())
        if kept:
            info = await self._connection.get_round(kept[-1].name)
            self._tensors = model_tensors(info.spec.tensors)
        self._kept = kept  # the last of all: a call that failed is made again

    def _tensors_with(
        self, changes: Mapping[str, Any], model: dict[str, Rows] | None, whole: bool
    ) -> dict[str, tuple[ModelTensor, int]]:
        """Returns the model's tensors, those of a new whole model where there is one."""
        if whole and any(isinstance(change, tuple) for change in changes.values()):
            raise InvalidArgumentError("a whole model is a mapping from names to arrays, without (keys, rows)")
        whole_rows = rows_of(changes, writable=False) if whole else model
        known = self._tensors
        if whole_rows is not None:
            known = {name: (rows.tensor, rows.num_words) for name, rows in whole_rows.items()}
        for name in changes:
            if name not in known and not whole and (isinstance(changes[name], tuple) or _has_values(changes[name])):
                names = ", ".join(map(repr, known))
                raise InvalidArgumentError(
                    f"unknown tensor {name!r}; model {self.name!r} has {names or 'no tensors yet'}"
                )
        if not known:
            raise InvalidArgumentError(f"model {self.name!r} has no tensors yet; begin with model=arrays or whole=True")
        return known

    def _wholes(self) -> list[_Kept]:
        return [each for each in self._kept or () if each.is_whole and each.remains(0.0)]

    def _is_due(
        self,
        base: _Kept | None,
        version: int,
        tensors: dict[str, tuple[ModelTensor, int]],
        update: Mapping[str, Any],
    ) -> bool:
        """Returns whether a whole model is worth its bytes: with this update, the changes since ``base`` have more."""
        if base is None or not base.remains(0.5):
            return True
        changed: int = sum(each.num_bytes for each in self._kept or () if base.version < each.version < version)
        changed += sum(change[1].nbytes for change in update.values() if change is not None)
        return changed > _num_bytes(tensors)

    async def _put(
        self, kind: str, version: int, tensors: dict[str, tuple[ModelTensor, int]], update: Mapping[str, Any]
    ) -> _Kept:
        """Makes a round of words, and removes what there is of it after an error."""
        is_dense = {name: change is not None and change[0] is None for name, change in update.items()}
        specs = [
            tensor.spec(num_words, "dense" if is_dense[name] else "sparse")
            for name, (tensor, num_words) in tensors.items()
        ]
        # It counts the publisher's submission alone: a client could be quicker than the publisher with another one.
        spec = RoundSpec(specs, op="sum", min_submissions=1, keep_submissions=True, result_ttl=self._result_ttl)
        request = create_request(spec, f"{self.name}-{kind}{version:018}")
        opened = Round(self._connection, RoundInfo._from_proto(await self._connection.call("CreateRound", request)))
        words = {
            tensors[name][0].wire_name: change[1] if is_dense[name] else change[:2]
            for name, change in update.items()
            if change is not None
        }
        was_done = opened.info.ended
        try:
            await opened.submit(_PUBLISHER, words)
            await opened.start_merge(only=[_PUBLISHER])
            info = await opened.wait()
            raise_if_failed(info)
        except SparseaggError:
            if not was_done:  # a version that is known stays
                with contextlib.suppress(SparseaggError):
                    await opened.delete()
            raise
        return _Kept.of(version, info)

    async def _rebuilt(
        self, base: _Kept | None, tensors: dict[str, tuple[ModelTensor, int]], version: int
    ) -> dict[str, Rows]:
        """Returns the whole model at a version that is published, read back from the server, from ``base`` on."""
        assert base is not None
        rows = {name: Rows.of_words(tensor, num_words) for name, (tensor, num_words) in tensors.items()}
        names = [base.name.partition("/")[2]]
        names += [f"{self.name}-v{at:018}" for at in range(base.version + 1, version + 1)]
        for name in names:
            if not await self._write(name, rows, None):
                raise FailedPreconditionError(
                    f"the server has no round {name!r} any more; publish the model with model=arrays or whole=True"
                )
        return rows

    async def _evict(self, tensors: dict[str, tuple[ModelTensor, int]]) -> None:
        """Removes whole models that are superseded, and the oldest rounds beyond keep_bytes."""
        assert self._kept is not None
        self._kept.sort()
        base = max(each for each in self._kept if each.is_whole)  # expired or not: time has passed since publish began
        newest = self._kept[-1].version
        keep = _WHOLES_KEPT * _num_bytes(tensors) if self._keep_bytes is None else self._keep_bytes
        excess = sum(each.num_bytes for each in self._kept) - keep
        kept = []
        for each in self._kept:
            is_needed = each == base or each.version > base.version or (each.is_change and each.version == newest)
            is_superseded = not each.is_change and each != base
            if (each == base or each.remains(0.0)) and (is_needed or not (is_superseded or excess > 0)):
                kept.append(each)
                continue
            await self._remove(each)
            excess -= each.num_bytes
        self._kept = kept

    async def _remove(self, each: _Kept) -> None:
        with contextlib.suppress(NotFoundError):  # its result_ttl is over
            await self._connection.call("DeleteRound", pb.DeleteRoundRequest(name=each.name))

    async def _is_done(self, round_id: str) -> bool:
        try:
            return (await self._connection.get_round(f"rounds/{round_id}")).state == "done"
        except NotFoundError:
            return False

    async def _write(self, round_id: str, rows: Mapping[str, Rows], keys: tuple[int, int | None] | None) -> bool:
        """Writes the rows of a round into the caller's arrays; returns False, without effect, if there is none."""
        try:
            info = await self._connection.get_round(f"rounds/{round_id}")
            if info.state != "done":
                return False
            known = {tensor.name for tensor in info.spec.tensors}
            for each in rows.values():
                if each.tensor.wire_name not in known:
                    raise InvalidArgumentError(
                        f"model {self.name!r} has no tensor {each.tensor.name!r} of {each.tensor.dtype} and shape "
                        f"{each.tensor.shape}; it has {', '.join(sorted(known))}"
                    )
            names = [each.tensor.wire_name for each in rows.values()]
            result = await Round(self._connection, info).result(names, keys=keys)
        except (NotFoundError, RoundFailedError, AbortedError):  # removed meanwhile
            return False
        for each in rows.values():
            await self._connection.transport.convert(each.write, result[each.tensor.wire_name])
        return True


def _has_values(array: Any) -> bool:
    return bool(rows_of({"": array}, writable=False))


def _num_bytes(tensors: Mapping[str, tuple[ModelTensor, int]]) -> int:
    """Returns the bytes of a whole model."""
    return sum(tensor.num_rows * num_words * 4 for tensor, num_words in tensors.values())
