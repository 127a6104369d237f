"""Results of a cluster's rounds, kept on the servers as ranges with a list that names them, and read from there.

A coordinator puts ranges under the clients that count (``only``) and the cut into ranges (``plan``): those of
coordinators that have died, or count other clients, are beside them. The list comes last: a result is there when the
first server has its list, and then takes no other one.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import importlib
import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sparseagg._internal.base.arguments import Timeout, shown
from sparseagg._internal.base.foreign import Array
from sparseagg._internal.base.state_files import replaced
from sparseagg._internal.client.blocking_client import Round
from sparseagg._internal.client.result_reader import ResultReader
from sparseagg._internal.client.retry import call_seconds
from sparseagg._internal.results.info import raise_if_failed
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.cluster.exchange import put_result_range, result_range
from sparseagg.cluster.plan import COLUMNS, KeyRange, concatenated, dense, is_cut, is_dense, rows_between
from sparseagg.errors import FailedPreconditionError, InternalError, NotFoundError, UnimplementedError
from sparseagg.v1 import aggregation_pb2 as pb

_BLOCK_BYTES = 3 << 20  # of a page; the largest message of a server is 4 MiB by default
_HEAD_BYTES = 4096  # of a request besides the columns of its page


@dataclasses.dataclass(frozen=True)
class Part:
    """A range of a tensor's result."""

    tensor: str
    # keys of the range; an end of None is behind the last key
    begin: int
    end: int | None
    server: int  # index of the server that has it
    num_rows: int
    dtype: str
    blocks: Sequence[int]  # the keys at which the pages begin that the server has of the range
    seconds: float = 0.0  # that export, merge and write of the range took


Listed = tuple[list[Part], dict[str, Any]]  # the ranges of a result, and what was written beside them


@dataclasses.dataclass(frozen=True)
class RangeStore:
    """Where the ranges of a result go: to all servers in turn."""

    # name the result
    only: str
    plan: str
    block_bytes: int

    @classmethod
    def of(cls, only: str, ranges: dict[str, list[KeyRange]], message_bytes: Iterable[int]) -> RangeStore:
        """Returns the store of a result; ``message_bytes``: of the servers, 0 for no limit."""
        limits = [limit - _HEAD_BYTES for limit in message_bytes if limit]
        block_bytes = max(1, min(_BLOCK_BYTES, *limits, _BLOCK_BYTES))
        plan = hashlib.sha256(json.dumps([ranges, block_bytes]).encode()).hexdigest()[:32]
        return cls(only, plan, block_bytes)

    def write(self, result: TensorResult, keys: KeyRange, number: int, rounds: Sequence[Round]) -> Part:
        """Writes range ``number`` of a result, in the sparse layout; returns where. Safe to repeat, anywhere."""
        server = number % len(rounds)
        created = rounds[server].info.create_time
        assert created is not None
        columns = _columns_of(result)
        row_bytes = sum(column[:1].nbytes for column in columns.values()) or 1
        rows = max(1, self.block_bytes // row_bytes)
        firsts = range(rows, len(result), rows)
        blocks = [keys[0], *(int(result.keys[first]) for first in firsts)]
        for first, begin, end in zip([0, *firsts], blocks, [*blocks[1:], keys[1]]):
            page = _page_of(result, columns, slice(first, first + rows))
            put_result_range(rounds[server], page, created=created, only=self.only, plan=self.plan, keys=(begin, end))
        return Part(result.name, *keys, server, len(result), result.dtype, blocks)


def name_of_clients(counted: frozenset[str] | None) -> str:
    """Returns the name of the clients that count; "" for all."""
    return "" if counted is None else hashlib.sha256("\n".join(sorted(counted)).encode()).hexdigest()[:32]


def read_part(part: Part, rounds: Sequence[Round], keys: KeyRange = (0, None)) -> TensorResult:
    """Returns the rows of a range, or those of them with some keys, in the sparse layout; ``NotFoundError`` if they are
    lost.
    """
    opened = rounds[part.server]
    reader = ResultReader()
    met = [begin for begin, end in zip(part.blocks, [*part.blocks[1:], part.end]) if _meets(begin, end, keys)]
    for number, begin in enumerate(met or part.blocks[:1]):
        page = result_range(opened, part.tensor, begin)
        if number > 0:
            page.head.ClearField("summary")  # each page has one, since reading may begin anywhere
        reader.add(page)
    whole = reader.result(opened.info)[part.tensor]
    return whole if keys == (0, None) else rows_between(whole, keys)


def _meets(begin: int, end: int | None, keys: KeyRange) -> bool:
    return (keys[1] is None or begin < keys[1]) and (end is None or end > keys[0])


def end_round(opened: Round, deadline: float | None, listed: Listed | None = None) -> None:
    """Ends a server's round, with the list of the result's ranges; None: the result is elsewhere. Safe to repeat."""
    page, names = pb.ResultPage(), {}
    if listed is not None:
        parts, about = listed
        # Keys as text where they must be exact: numbers of JavaScript are rounded beyond 2^53.
        each = [{**dataclasses.asdict(part), "blocks": [str(key) for key in part.blocks]} for part in parts]
        page.ranges = json.dumps({"parts": each, **about})
        names = {"only": about["only"], "plan": about["plan"]}
    created = opened.info.create_time
    assert created is not None
    put_result_range(opened, page, created=created, **names, timeout=call_seconds(deadline))


def read_list(opened: Round, deadline: float | None = None) -> Listed | None:
    """Returns the list that a server has; None if it has none."""
    try:
        text = result_range(opened, timeout=call_seconds(deadline)).head.ranges
    except NotFoundError:
        return None
    try:
        about: dict[str, Any] = json.loads(text)
        known = {field.name for field in dataclasses.fields(Part)}  # another version may have written more
        parts = [Part(**{name: each[name] for name in known if name in each}) for each in about.pop("parts")]
        return [dataclasses.replace(part, blocks=[int(key) for key in part.blocks]) for part in parts], about
    except (ValueError, TypeError, KeyError) as error:
        raise InternalError(f"{opened.name} has a list of ranges that is wrong, {error}: {shown(text)}") from error


def wait_for_list(opened: Round, timeout: Timeout) -> Listed:
    """Returns the list of a server's round, as soon as the round has ended.

    Raises ``DeadlineExceededError`` after ``timeout``, ``RoundFailedError`` if the round was cancelled,
    ``FailedPreconditionError`` if it has ended without a list, ``NotFoundError`` if it has been deleted.
    """
    raise_if_failed(opened.wait(timeout))
    found = read_list(opened)
    if found is None:
        raise FailedPreconditionError(
            f"{opened.name} was ended by finish(), which leaves no result: start_merge() does"
        )
    return found


def read_tensor(
    spec: RoundSpec, tensor: TensorSpec, listed: Sequence[Part], rounds: Sequence[Round], keys: KeyRange
) -> TensorResult:
    """Returns the rows of a tensor with keys of a range, from the ranges that ``listed`` has of it, as
    ``read_part``.
    """
    own = [part for part in listed if part.tensor == tensor.name]
    met = [part for part in own if _meets(part.begin, part.end, keys)] or own[:1]
    with concurrent.futures.ThreadPoolExecutor(len(rounds)) as pool:
        parts = list(pool.map(lambda part: read_part(part, rounds, keys), met))
    whole = concatenated(spec, tensor, parts)
    if not is_cut(spec, tensor) and is_dense(spec, tensor, whole.dtype, sum(part.num_rows for part in own)):
        return dense(whole, keys)
    return whole


def _columns_of(result: TensorResult) -> dict[str, Array]:
    """Returns the columns of a sparse result as they are sent, each with a row for each key."""
    found = {}
    for name in COLUMNS:
        column = getattr(result, name)
        if column is None:
            continue
        array = np.ascontiguousarray(column)
        if name == "values" and result.dtype == "bfloat16" and array.dtype == np.float32:  # widened, without ml_dtypes
            array = (array.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        found[name] = array
    return found


def _page_of(result: TensorResult, columns: dict[str, Array], rows: slice) -> pb.ResultPage:
    sent: dict[str, Any] = {name: column[rows].tobytes() for name, column in columns.items()}
    has: dict[str, Any] = {f"has_{name}": name in sent for name in COLUMNS[1:]}
    values = result.dtype.upper() if "values" in sent else "NONE"
    return pb.ResultPage(
        slice=pb.TensorSlice(
            tensor=result.name,
            key_encoding=f"KEY_ENCODING_U{8 * columns['keys'].itemsize}",
            keys=sent["keys"],
            value_encoding=f"VALUE_ENCODING_{values}",
            values=sent.get("values"),
        ),
        summary=pb.TensorSummary(
            name=result.name,
            num_keys=len(result),
            layout=pb.TENSOR_LAYOUT_SPARSE,
            dtype=f"DTYPE_{result.dtype.upper()}",
            row_width=result.row_width,
            num_rows=result.num_rows,
            **has,
        ),
        **{name: sent.get(name) for name in COLUMNS[2:]},
    )


def write_parts(
    folder: str | os.PathLike[str], kind: str, parts: Sequence[Part], rounds: Sequence[Round]
) -> list[pathlib.Path]:
    """Writes a file of a kind, "npz" or "parquet", for each range; returns the files in order of keys.

    Holds as many ranges as there are servers. Raises ``UnimplementedError`` for "parquet" without PyArrow.
    """
    if kind == "parquet":
        _pyarrow()
    target = pathlib.Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / f"part-{number:05d}.{kind}" for number in range(len(parts))]

    def write(path: pathlib.Path, part: Part) -> None:
        rows = read_part(part, rounds)
        with replaced(path) as file:
            if kind == "npz":
                np.savez(file, **_arrays(rows))
            else:
                importlib.import_module("pyarrow.parquet").write_table(arrow_table(rows), file)

    with concurrent.futures.ThreadPoolExecutor(max(1, len(rounds))) as pool:
        list(pool.map(write, paths, parts))
    return paths


def dataset_of(parts: Sequence[Part], rounds: Sequence[Round]) -> Any:
    """Returns a Ray Dataset whose blocks are the ranges, in order, which tasks of Ray read when it is used."""
    _pyarrow()
    need = 'a data set needs Ray: pip install "ray[data]"'
    ray, data, block = (_module(name, need) for name in ("ray", "ray.data", "ray.data.block"))
    lent = ray.put(list(rounds))  # not in the arguments of tasks: it has the clients' tokens

    def task_of(part: Part) -> Any:
        about = block.BlockMetadata(num_rows=part.num_rows, size_bytes=None, input_files=None, exec_stats=None)
        return data.ReadTask(lambda: [arrow_table(read_part(part, ray.get(lent)))], about)

    class Ranges(data.Datasource):  # type: ignore[misc, name-defined]
        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, *_: Any, **__: Any) -> list[Any]:
            return [task_of(part) for part in parts]

    # Reading waits for servers, and actors may have all CPUs.
    found = data.read_datasource(
        Ranges(), num_cpus=0, concurrency=max(1, len(rounds)), override_num_blocks=max(1, len(parts))
    )
    found.context.execution_options.preserve_order = True
    return found


def arrow_table(rows: TensorResult) -> Any:
    """Returns an Arrow table with the columns that the result has; rows of several values are fixed-size lists.

    bfloat16 values are widened to float32, exactly.
    """
    pyarrow = _pyarrow()
    columns = {}
    for name, array in _arrays(rows).items():
        flat = pyarrow.array(array.reshape(-1))
        wide = array.ndim == 2
        columns[name] = pyarrow.FixedSizeListArray.from_arrays(flat, array.shape[1]) if wide else flat
    return pyarrow.table(columns)


def _arrays(rows: TensorResult) -> dict[str, Any]:
    found = {name: getattr(rows, name) for name in COLUMNS}
    arrays = {name: np.asarray(column) for name, column in found.items() if column is not None}
    if rows.dtype == "bfloat16" and "values" in arrays:  # NumPy alone has no such type
        arrays["values"] = arrays["values"].astype(np.float32)
    return arrays


def _pyarrow() -> Any:
    return _module("pyarrow", "Parquet and data sets need PyArrow: pip install pyarrow")


def _module(name: str, need: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnimplementedError(f"{need} ({error})") from error
