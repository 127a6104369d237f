"""Results of a cluster's rounds, kept on the servers: a round for each range of keys, and one with the list of them.

A range's round has one submission: the rows of the result, whose bits are those of unsigned integers, so that they come
back as they were. Its name has the range, so that another coordinator that merges the same range writes the same round.
The list is written last: a result is there when its list is.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparseagg._internal.base import bfloat16
from sparseagg._internal.base.durations import Seconds
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.blocking_round import Round
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.options import DTYPES
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.updates.arrays import Array
from sparseagg.cluster.plan import KeyRange
from sparseagg.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError

__all__ = ["Part", "PartStore", "RangeStore", "belongs_to", "read_list", "read_part", "remove_all", "write_list"]

_ROWS = "rows"  # client id of a range's submission


@dataclasses.dataclass(frozen=True)
class Part:
    """A range of a tensor's result.

    Attributes:
        tensor: its name.
        begin, end: keys of the range; an end of None is behind the last key.
        server: index of the server that has it.
        num_rows: of the result in the range.
        name: of the round there.
        head: of ``TensorResult``, without its columns.
        seconds: that export, merge and write of the range took.
    """

    tensor: str
    begin: int
    end: int | None
    server: int
    num_rows: int
    name: str
    head: dict[str, Any]
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class RangeStore:
    """Where the result of a range goes: see ``PartStore``."""

    round_id: str
    tensor_index: int
    keys: KeyRange
    server: int
    result_ttl: Seconds | None

    def write(self, result: TensorResult, clients: Sequence[Client]) -> Part:
        """Writes a range's result, in the sparse layout; returns where. Safe to repeat, anywhere."""
        columns = _columns_of(result)
        begin, end = self.keys
        name = f"{self.round_id}.{self.tensor_index}.{begin:x}-{'' if end is None else f'{end:x}'}"
        opened = clients[self.server].create_round(_spec_of(result, columns, self.result_ttl), name)
        _write_once(opened, {each: (result.keys, column) for each, column in columns.items()})
        head = {field: getattr(result, field) for field in ("dtype", "num_rows", "row_width", "fixed_point_shift")}
        return Part(result.name, begin, end, self.server, len(result), name, head)


@dataclasses.dataclass(frozen=True)
class PartStore:
    """Which servers keep the result of a round: its ranges go to all of them in turn."""

    round_id: str
    num_servers: int
    result_ttl: Seconds | None

    def of(self, tensor_index: int, keys: KeyRange, number: int) -> RangeStore:
        """Returns where range ``number`` goes."""
        return RangeStore(self.round_id, tensor_index, keys, number % self.num_servers, self.result_ttl)


def read_part(part: Part, tensor: TensorSpec, clients: Sequence[Client], keys: KeyRange | None = None) -> TensorResult:
    """Returns the rows of a range, or those of them with some keys, in the sparse layout.

    Raises:
        NotFoundError: the server has lost the rows, or their result_ttl is over.
    """
    found = clients[part.server].get_round(part.name).result(keys=keys)
    columns = {name: found[name] for name in found}
    shape = (-1,) if tensor.row_width == 1 else (-1, tensor.row_width)
    keys_of = next(iter(columns.values())).keys

    def column(name: str, dtype: str, shape: tuple[int, ...]) -> Array | None:
        words = columns.get(name)
        return None if words is None else _from_words(np.asarray(words.values), dtype, shape)

    head = part.head
    return TensorResult(
        name=part.tensor,
        layout="sparse",
        keys=keys_of,
        values=column("values", head["dtype"], shape),
        counts=column("counts", "uint32", (-1,)),
        weights=column("weights", "float64", (-1,)),
        moments=column("moments", "float64", shape),
        shape=tensor.shape,
        **head,
    )


def write_list(
    round_id: str, parts: Sequence[Part], about: dict[str, Any], client: Client, ttl: Seconds | None
) -> None:
    """Writes the list of all ranges, by which readers know that the result is there. A list that is there stays."""
    text = json.dumps({"parts": [dataclasses.asdict(part) for part in parts], **about}).encode()
    words = np.frombuffer(text + b" " * (-len(text) % 4), "<u4")
    spec = RoundSpec([TensorSpec("list", "uint32", num_rows=0, modular=True)], result_ttl=ttl)
    opened = client.create_round(spec, _list_name(round_id))
    _write_once(opened, {"list": (np.arange(len(words), dtype=np.uint64), words)})


def read_list(round_id: str, client: Client) -> tuple[list[Part], dict[str, Any]] | None:
    """Returns the list of a round's ranges, and what was written beside it; None if the result is not there."""
    try:
        opened = client.get_round(_list_name(round_id))
    except NotFoundError:
        return None
    if opened.info.state not in ("done", "finalizing"):
        return None
    words = np.asarray(opened.result()["list"].values)
    about: dict[str, Any] = json.loads(words.astype("<u4").tobytes().decode())
    known = {field.name for field in dataclasses.fields(Part)}  # another version may have written more
    parts = [{name: value for name, value in part.items() if name in known} for part in about.pop("parts")]
    return [Part(**part) for part in parts], about


def remove_all(round_id: str, clients: Sequence[Client]) -> None:
    """Removes the list and the ranges of a round's result from all servers."""
    for client in clients:
        for found in list(client.list_rounds()):
            if belongs_to(found.name, round_id):
                try:
                    found.delete()
                except NotFoundError:
                    continue


def belongs_to(name: str, round_id: str) -> bool:
    """Returns whether a round's name is that of the list or of a range of another round's result."""
    return re.fullmatch(rf"rounds/{re.escape(round_id)}\.(result|\d+\.[0-9a-f]+-[0-9a-f]*)", name) is not None


def _list_name(round_id: str) -> str:
    return f"{round_id}.result"


def _write_once(opened: Round, tensors: dict[str, Any]) -> None:
    """Submits and closes, unless somebody else has done so."""
    if opened.info.state == "open":
        try:
            opened.submit(_ROWS, tensors)
        except AlreadyExistsError:
            pass  # the list of another coordinator, with other ranges of the same result
        except FailedPreconditionError:  # closed meanwhile, by another coordinator
            if opened.refresh().state == "open":
                raise
        opened.close()
    opened.wait()


def _columns_of(result: TensorResult) -> dict[str, Array]:
    found = {}
    for name in ("values", "counts", "weights", "moments"):
        column = getattr(result, name)
        if column is None:
            continue
        array = np.asarray(column)
        if name == "values" and result.dtype == "bfloat16" and array.dtype == np.float32:  # widened, without ml_dtypes
            array = (np.ascontiguousarray(array).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        found[name] = _to_words(array)
    return found


def _spec_of(result: TensorResult, columns: dict[str, Array], ttl: Seconds | None) -> RoundSpec:
    tensors = [
        TensorSpec(
            name,
            str(words.dtype),
            num_rows=result.num_rows,
            row_width=1 if words.ndim == 1 else words.shape[1],
            modular=True,
        )
        for name, words in columns.items()
    ]
    return RoundSpec(tensors, result_ttl=ttl)


def _to_words(column: Array) -> Array:
    """Returns the bits of rows as unsigned integers of 4 or 8 bytes; rows of 2-byte values are filled up with a 0."""
    rows = np.ascontiguousarray(column).reshape(
        len(column), -1 if len(column) else int(np.prod(column.shape[1:], initial=1))
    )
    if rows.dtype.itemsize == 2:
        wide = np.zeros((len(rows), -(-rows.shape[1] // 2) * 2), np.uint16)
        wide[:, : rows.shape[1]] = rows.view(np.uint16)
        rows = wide.view(np.uint32)
    else:
        rows = rows.view(f"u{rows.dtype.itemsize}")
    return rows[:, 0] if rows.shape[1] == 1 else rows


def _from_words(words: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    rows = np.ascontiguousarray(words)
    if DTYPES.get(dtype) == 2:
        width = 1 if len(shape) == 1 else shape[1]
        bits = rows.reshape(len(rows), -1 if len(rows) else -(-width // 2)).view(np.uint16)[:, :width].reshape(shape)
        return bfloat16.float_from_bits(bits) if dtype == "bfloat16" else np.ascontiguousarray(bits).view(np.float16)
    return rows.view(dtype).reshape(shape if len(rows) else (0, *shape[1:]))
