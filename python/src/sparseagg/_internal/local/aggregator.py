"""A round in this process: the same merge as on a server, and the same bits, without one."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex, cast

import numpy as np

from sparseagg._internal.base import extension
from sparseagg._internal.base.arguments import END_OF_KEYS, checked_integer, checked_key_range, shown
from sparseagg._internal.base.text import plain
from sparseagg._internal.base.types import Update, Updates
from sparseagg._internal.local import cuda_plugin
from sparseagg._internal.local.columns import device_result, round_info, tensor_result
from sparseagg._internal.local.device_tensors import DeviceData, device_engine_data
from sparseagg._internal.results.forms import DeviceTensorResult
from sparseagg._internal.results.result import Result
from sparseagg._internal.spec.options import DTYPES
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec, checked_spec
from sparseagg._internal.updates.arrays import TensorData, engine_data, is_module
from sparseagg._internal.updates.contributors import (
    ClientId,
    checked_client_id,
    checked_updates,
    checked_weight,
    naming_client,
    split_weight,
)
from sparseagg._internal.wire.columns import Bulk
from sparseagg.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError

if TYPE_CHECKING:
    from sparseagg._engine import Piece

# Updates of an iterator that are asked for at a time.
_BATCH = 256

# Of a block of a partial.
_PARTIAL_BYTES = 1 << 20

_RELEASE_ID_BYTES = 16

# As many as a server takes; the memory of some millions could not be had.
_MOST_THREADS = 1024


def _interval(keys: tuple[int, int | None] | None) -> tuple[int, int]:
    """Returns the first and the last key of a range that is not empty."""
    begin, end = (0, END_OF_KEYS) if keys is None else checked_key_range(keys)
    if begin == end:
        raise InvalidArgumentError(f"the range of keys is empty: {shown(keys)}")
    return begin, end - 1


def _checked_secret(spec: RoundSpec, name: str, secret: Any, size: int | None = None) -> bytes:
    """Returns a key or an id as the extension takes it, which looks at a key's length; no bytes for None."""
    if secret is None:
        return b""
    if not isinstance(secret, (bytes, bytearray)) or size not in (None, len(secret)):
        got = shown(secret) if size else type(secret).__name__  # no error shows a key
        raise InvalidArgumentError(f"{name} must be {f'{size} ' if size else ''}bytes, got {got}")
    if spec.privacy is None:
        raise InvalidArgumentError(f"{name} has no effect: the spec has no privacy")
    return bytes(secret)


class Aggregator:
    """A round in this process: submissions are added one by one, in any order, and merged by ``finish``.

    Thread-safe: several threads may add at once, which prepares their updates side by side.

    Args:
        spec: what to compute. Its deadline and result_ttl have no meaning here.
        threads: that prepare and merge; 1024 at most, by default one per core. They leave no trace in the result.
        memory_limit: bytes that updates (copied keys, and values in the caller's arrays), partial sums and the result
            may take together; the working memory of merges comes on top. None: no limit. An update that would pass the
            limit makes the aggregator fold the updates before it and release them. From then on ``add`` takes clients
            in ascending order of id (bytewise) only, where canonical sums of floats are among the tensors. The result
            has the same bits as without a limit.
        device: "cuda" merges on the GPU, and needs the package ``sparseagg-cuda13``. "cpu" and None merge on the CPU.
            A GPU that fails later is replaced by the CPU. The result has the same bits everywhere.
        noise_key: for a spec with ``privacy``, which needs it: 32 random bytes or more, such as
            ``secrets.token_bytes(32)``. Whoever knows them can subtract the noise. One key may serve all rounds.
        release_id: of a spec with ``privacy``: 16 bytes that no other result under this key has. None (default): random
            ones, so that two results never share their noise. The same key, id, spec and updates give the same noise:
            for tests, and to compute the noise of a result again. ``Result.info`` has it.

    Raises:
        EngineMissingError: this installation has no engine, or none for the GPU; the message says what to install.
        UnavailableError: the GPU's engine does not work on this machine; the message says why.
        FailedPreconditionError: this process was forked from one that had used the GPU.
        InvalidArgumentError: the spec makes no sense, or a ``noise_key`` or ``release_id`` has no effect;
            the message names the field.
    """

    _IS_STORED = False  # whether a server has taken the round: an earlier release may have taken unused options

    def __init__(
        self,
        spec: RoundSpec,
        *,
        threads: SupportsIndex | None = None,
        memory_limit: SupportsIndex | None = None,
        device: str | None = None,
        noise_key: bytes | None = None,
        release_id: bytes | None = None,
    ) -> None:
        if threads is not None:
            what = f"threads must be a number of threads from 1 to {_MOST_THREADS}, or None for one per core"
            threads = checked_integer(what, threads, 1, _MOST_THREADS)
        if memory_limit is not None:
            what = "memory_limit must be a number of bytes, or None for no limit"
            memory_limit = checked_integer(what, memory_limit, 1, (1 << 63) - 1)
        message = self._message(checked_spec(spec))
        self.spec = spec.with_options()  # with table_columns of its own
        self._index = {tensor.name: index for index, tensor in enumerate(spec.tensors)}
        self._lock = threading.Lock()
        self._given = 0  # guarded by _lock: positions that add_all has taken
        self._is_limited = memory_limit is not None
        on_gpu = cuda_plugin.uses_gpu(device)
        with extension.errors():
            self._engine = extension.load().Aggregator(
                message.SerializeToString(),
                is_stored=self._IS_STORED,
                threads=threads or 0,
                memory_limit=memory_limit or 0,
                device=on_gpu,
                noise_key=_checked_secret(spec, "noise_key", noise_key),
                release_id=_checked_secret(spec, "release_id", release_id, _RELEASE_ID_BYTES),
            )
        if spec.keep_submissions and not self._IS_STORED:  # nothing is taken out of a round that has ended
            self._engine.defer_merges(leaves_keys=False)

    def __repr__(self) -> str:
        names = ", ".join(plain(tensor.name) for tensor in self.spec.tensors)
        return f"Aggregator({names})"

    def _message(self, spec: RoundSpec) -> Any:
        return spec.message

    def add(
        self, client_id: ClientId, update: Update, weight: SupportsFloat | None = None, *, copy: bool = False
    ) -> None:
        """Adds one client's update; when this returns, it counts, completely and once.

        Args:
            client_id: 1–256 bytes in UTF-8 without control characters, unique; an integer stands for its decimal text.
                Their order, bytewise, is that of the sums.
            update: as for ``Round.submit``.
            weight: ≥ 0; required with "by_weight". Where no tensor has that, None or 1.
            copy: copy the values, too. Keys are copied in any case, and may be changed as soon as this returns. By
                default, values of the tensor's dtype are read where they are until ``finish`` returns: other values
                written meanwhile give wrong sums, and never worse than that. Gradients of a module, which training
                changes, are copied in any case.

        Raises:
            InvalidArgumentError: the update is wrong; the message names client, tensor, key and value. Nothing of it
            counts.
            OutOfRangeError: an integer row overflows by itself. AlreadyExistsError: the client has a submission.
            ResourceExhaustedError: beyond a limit of the spec or the ``memory_limit``. FailedPreconditionError: there
            are ``max_submissions`` already, or the aggregator is finished, or the client's id comes before those that
            the ``memory_limit`` has made part of a sum.
        """
        client_id = checked_client_id(client_id)
        with naming_client(client_id):
            weight = checked_weight(weight)
        with extension.errors():
            self._engine.add_one(client_id, _Copied(update) if copy else update, weight, self._convert)

    def add_all(self, updates: Updates) -> None:
        """Adds many updates, preparing them side by side.

        The first one that is refused ends it; those before it are added. The ids of a mapping are looked at before all
        updates, of which those of lesser ids, bytewise, come first where there is a ``memory_limit``.

        Args:
            updates: as for ``aggregate``. Positions count on from one call to the next.
        """
        self._add_all(updates)

    def _add_all(self, updates: Updates, *, are_all: bool = False, leaves_keys: bool = False) -> None:
        """Adds many updates.

        ``are_all``: no others will come, and the caller keeps these. ``leaves_keys``: the merge may find that keys are
        not in order, and ``_finish`` then returns None.
        """
        updates = checked_updates(updates)
        if are_all and isinstance(updates, (list, Mapping)) and not self._is_limited:
            self._engine.defer_merges(leaves_keys=leaves_keys)
        if isinstance(updates, Mapping):
            named = [(checked_client_id(client_id), update) for client_id, update in updates.items()]
            if self._is_limited:
                named.sort(key=lambda pair: pair[0].encode())
            with extension.errors():
                self._engine.add_all(
                    [name for name, _ in named], 0, [update for _, update in named], self._convert_pair
                )
            return
        batches = [updates] if isinstance(updates, list) else _batches(updates, 1 if self._is_limited else _BATCH)
        for batch in batches:
            with self._lock:
                first = self._given
                self._given += len(batch)
            with extension.errors():
                self._engine.add_all(None, first, batch, self._convert_pair)

    def _add_pages(self, pages: Sequence[tuple[Any, Any]], is_weighted: bool) -> None:
        """Adds the whole submissions of one tensor that pages of an export have.

        ``pages``: each an ``ExportedPage`` of the client and the ``Roster`` of its server, which are above this folder.
        """
        columns = [
            (
                *(roster.ids, roster.weights if is_weighted else None, roster.counts),
                *(page.first, page.end, page.places, page.ends, page.keys, page.values),
            )
            for roster, page in pages
        ]
        with extension.errors():
            self._engine.add_pages(columns, self._is_limited and len(pages) > 1, self._convert)

    def merge(self, other: Aggregator) -> None:
        """Takes over all submissions of ``other``, which has the same spec and is spent afterwards.

        Raises:
            InvalidArgumentError: tensors or devices differ. AlreadyExistsError: a client has a submission in both.
            ResourceExhaustedError, FailedPreconditionError: together they are too many, or beyond the ``memory_limit``,
            or one of the two had to sum up some of its own to stay within it. Both aggregators stay as they were,
            unless the process has run out of memory ("out of memory: ..."): then they cannot be used any more.
        """
        if not isinstance(other, Aggregator):
            raise InvalidArgumentError(f"an aggregator is merged with another one, not with {type(other).__name__}")
        mine, theirs = _what_matters(self.spec), _what_matters(other.spec)
        for name in [*mine, *theirs]:
            if mine.get(name) != theirs.get(name):
                raise InvalidArgumentError(f"the aggregators differ in tensor {name!r}")
        if list(mine) != list(theirs):
            raise InvalidArgumentError("the aggregators differ in the order of their tensors")
        for name, columns in other.spec.table_columns.items():
            if self.spec.table_columns.setdefault(name, columns) != columns:
                raise InvalidArgumentError(
                    f"the aggregators differ in the columns of the tables for tensor {name!r}: "
                    f"{shown(self.spec.table_columns[name])} and {shown(columns)}"
                )
        with extension.errors():
            self._engine.merge(other._engine)

    def export_partial(
        self, tensor: str | None = None, *, keys: tuple[int, int | None] | None = None
    ) -> Iterator[bytes]:
        """Returns what all submissions so far add up to: a partial, for ``add_partial`` elsewhere.

        The aggregator stays as it is; nothing may be added until the iterator is used up. There are partials of the
        tensors whose result does not depend on the order of submissions: with numerics "binned", of
        integers, and with the ops "min", "max" and "union". ``b"".join(...)`` makes one piece of it, for a file.

        Args:
            tensor: name of a tensor; None for all tensors.
            keys: range of keys (begin, end) without end; an end of None is behind the last key. None for all keys.

        Returns:
            Blocks of up to 1 MiB, each made when it is asked for.

        Raises:
            InvalidArgumentError: the tensor is unknown, or ``keys`` is no range.
            FailedPreconditionError: the order of a tensor's submissions matters, or the spec has privacy; or the
                aggregator is spent.
            OutOfRangeError: integer weights of a mean add up to more than 2^53.
        """
        first, last = _interval(keys)
        if tensor is not None and tensor not in self._index:
            raise InvalidArgumentError(f"the spec has no tensor {shown(tensor)}")
        indices = list(self._index.values()) if tensor is None else [self._index[tensor]]
        return self._partial_blocks(indices, first, last)

    def _partial_blocks(self, tensors: list[int], first: int, last: int) -> Iterator[bytes]:
        for tensor in tensors:
            begin: int | None = first
            while begin is not None:
                with extension.errors():
                    block, begin = self._engine.export_partial(tensor, begin, last, _PARTIAL_BYTES)
                yield block

    def add_partial(
        self,
        client_id: ClientId,
        partial: Bulk | Iterable[Bulk],
        *,
        keys: tuple[int, int | None] | None = None,
    ) -> None:
        """Adds what submissions elsewhere add up to. When this returns, all of them count, completely and once.

        The result has the bits of an aggregator to which they were added one by one. Bounds of the spec are not
        applied to them.

        Args:
            client_id: of the sender; as in ``add``.
            partial: of ``export_partial`` for all tensors of the same spec, in one piece or in blocks.
            keys: the range that was exported.

        Raises:
            InvalidArgumentError: the partial is cut off, malformed, of another version or of another spec; the message
                names the byte at which the block begins, and the field.
            FailedPreconditionError: a tensor has no partials; there would be more than ``max_submissions``; or the
                aggregator is spent.
            AlreadyExistsError, ResourceExhaustedError, OutOfRangeError: as of ``add``.
        """
        first, last = _interval(keys)
        whole = isinstance(partial, (bytes, bytearray, memoryview))
        blocks = [cast(Bulk, partial)] if whole else list(cast("Iterable[Bulk]", partial))
        with extension.errors():
            self._engine.add_partial(checked_client_id(client_id), blocks, first, last)

    def withdraw(self, client_id: ClientId) -> bool:
        """Takes a client's submission out, as if it had never been added. The client may be added again.

        Returns:
            Whether there was a submission to withdraw.

        Raises:
            FailedPreconditionError: submissions have been merged already, so that none can be taken out: where the
                order does not matter ("binned", integers, "min", "max", "union"), those that take
                64 MiB, unless the spec has ``keep_submissions``; or beyond the ``memory_limit``. Or the aggregator is
                spent.
        """
        with extension.errors():
            return bool(self._engine.withdraw(checked_client_id(client_id)))

    def finish(self) -> Result:
        """Merges, and returns the result, whose arrays are views of the engine's memory. The aggregator is spent.

        Raises:
            OutOfRangeError: an integer sum leaves int64. FailedPreconditionError: weights that are divided by add up to
            zero; or the aggregator is spent; or there are fewer than ``min_submissions``, and more may be added.
        """
        result = self._finish([])
        assert result is not None
        return result

    def finish_on_device(self) -> dict[str, DeviceTensorResult]:
        """Merges on the GPU, and returns the results by name, with their arrays in its memory. The aggregator is spent.

        The bits are those of ``finish``. There is no CPU to go over to: the aggregator is spent after an error, too.

        Raises:
            FailedPreconditionError, OutOfRangeError: as of ``finish``; FailedPreconditionError also without
                ``device="cuda"``.
            ResourceExhaustedError: the results, or the updates, do not fit the GPU's memory.
            UnavailableError: the GPU has failed, or had no memory for a merge before, or the memory limit has made the
                CPU fold updates.
            UnimplementedError: a tensor has ``result_top_k``, ``result_min_norm`` or ``return_moments``, which the host
                computes.
        """
        if self._engine.device_stream is None:
            raise FailedPreconditionError('results on a GPU need Aggregator(spec, device="cuda")')
        with extension.errors():
            raw = self._engine.finish_on_device()
        return {tensor.name: device_result(self.spec, tensor, part) for tensor, part in zip(self.spec.tensors, raw)}

    def _finish(self, finite: Sequence[int]) -> Result | None:
        """The same, or None: a tensor in ``finite``, by position, has a value that is not; or see ``_add_all``."""
        try:
            with extension.errors():
                raw = self._engine.finish(finite)
        except ResourceExhaustedError as error:
            raise ResourceExhaustedError(f"{error}{_dense_bytes(self.spec)}") from error
        if raw is None:
            return None
        results = {tensor.name: tensor_result(self.spec, tensor, part) for tensor, part in zip(self.spec.tensors, raw)}
        return Result(results, round_info(self.spec, self._engine, results, raw))

    @property
    def num_submissions(self) -> int:
        """Submissions added so far."""
        return int(self._engine.num_submissions)

    @property
    def memory_bytes(self) -> int:
        """Bytes of updates and partial sums held: copied keys, and values in the caller's arrays included."""
        return int(self._engine.memory_bytes)

    def _convert(self, client_id: str, update: Any) -> tuple[list[Piece], float | None]:
        """For the extension: makes wire arrays of what it cannot read itself."""
        with naming_client(client_id):
            return self._pieces(update), None

    def _convert_pair(self, client_id: str, update: Any) -> tuple[list[Piece], float | list[float] | None]:
        """The same for many updates, which may come with a weight."""
        with naming_client(client_id):
            update, weight = split_weight(update)
            return self._pieces(update), checked_weight(weight)

    def _pieces(self, update: Any) -> list[Piece]:
        copy = isinstance(update, _Copied)
        update = update.update if copy else update
        copy = copy or is_module(update)
        if self._engine.device_stream is None:
            return [self._piece(data.copied() if copy else data) for data in engine_data(self.spec, update)]
        return [self._piece(data) for data in device_engine_data(self.spec, update, self._engine, copy=copy)]

    def _piece(self, data: TensorData | DeviceData) -> Piece:
        if isinstance(data, DeviceData):
            return self._index[data.spec.name], data.keys, data.values, data.num_keys
        keys, values = (
            None if array is None else np.require(array, requirements=["C", "A"]) for array in (data.keys, data.values)
        )
        return self._index[data.spec.name], keys, values, data.num_keys


@dataclasses.dataclass(frozen=True)
class _Copied:
    """An update to be copied."""

    update: Any


def _batches(updates: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yields the updates, so many at a time; fewer behind a module, whose gradients the next update may be made of."""
    batch = []
    for update in updates:
        batch.append(update)
        if len(batch) == size or is_module(split_weight(update)[0]):
            yield batch
            batch = []
    if batch:
        yield batch


def _dense_bytes(spec: RoundSpec) -> str:
    """Says how large the largest result is that the spec wants dense, for errors; nothing where there is none."""

    def value_bytes(tensor: TensorSpec) -> int:
        widened = "int64" if tensor.dtype in ("int32", "int64") else tensor.dtype
        return DTYPES[spec.aggregation_of(tensor).result_dtype or widened]

    sizes = {
        tensor.name: tensor.num_rows * tensor.row_width * value_bytes(tensor)
        for tensor in spec.tensors
        if spec.aggregation_of(tensor).result_layout == "dense" and spec.aggregation_of(tensor).op != "union"
    }
    if not sizes:
        return ""
    name = max(sizes, key=lambda tensor: sizes[tensor])
    return f"; the dense result of tensor {name!r} alone takes {sizes[name]} bytes"


def _what_matters(spec: RoundSpec) -> dict[str, Any]:
    """What is computed of each tensor, whether the round or the tensor says so."""
    names = ("dtype", "num_rows", "row_width", "layout", "modular", "clip")
    of_round = [spec.max_submissions, spec.clip, spec.privacy]
    return {
        tensor.name: [*(getattr(tensor, name) for name in names), spec.aggregation_of(tensor), *of_round]
        for tensor in spec.tensors
    }
