"""Results of a cluster's rounds as files and as data sets: for tables that are too large for one machine."""

from __future__ import annotations

import concurrent.futures
import importlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparseagg._internal.base.state_files import replaced
from sparseagg._internal.client.blocking_client import Round
from sparseagg._internal.results.result import TensorResult
from sparseagg.cluster.join import COLUMNS
from sparseagg.cluster.published import Part, read_part
from sparseagg.errors import UnimplementedError


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
