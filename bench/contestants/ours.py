"""This project: sa.aggregate, the same path in C++ without Python around it, and two native ways that are not ours."""

from __future__ import annotations

import functools
from typing import Any

import native
import numpy as np
import sparseagg as sa
from sparseagg import _engine

from contestants import SEPARATE, Contestant, Data, Reference

MODES = ("canonical", "canonical+counts", "fixed_point")
INT64_KEYS = ", int64 keys"


def release_memory() -> None:
    """Gives back what the engine, in either form, keeps for its next columns."""
    _engine.release_memory()
    native.load().sab_release_memory()


def contestants(data: Data, threads: int) -> list[Contestant]:
    library = native.load()
    workload = native.Workload(library, data.name, data.seed, data.divide_clients)
    updates = [{"tensor": client} for client in workload.clients]
    # Keys as NumPy, torch, SciPy and TensorFlow make them.
    int64_keys = [data.keys64[data.client(index)] for index in range(data.num_clients)]
    int64_updates = [{"tensor": (keys, rows)} for keys, (_, rows) in zip(int64_keys, workload.clients)]
    # Of one update alone, with repeated keys, no row has more than one contributor, and no value is its own bound.
    modes = [0] if data.one_update else range(len(MODES))
    found = []
    for count in sorted({1, threads}):
        found.append(_python(library, workload, int64_updates, 0, False, count, INT64_KEYS))
        for mode in modes:
            found.append(_python(library, workload, updates, mode, False, count))
            if MODES[mode] != "fixed_point":
                found.append(_native(library, workload, mode, count))
        if data.no_dense() is None:
            found.append(_python(library, workload, updates, 0, True, count))
        if data.one_update:
            found.append(_bfloat16(data, count))
    for name, text in (("sort", "C++ sort, reduce"), ("hash", "absl::flat_hash_map")):
        found.append(_other(library, workload, name, text))
    return found


def spec_of(workload: native.Workload, mode: int, is_dense: bool) -> sa.RoundSpec:
    options: dict[str, Any] = {"return_counts": mode == 1, "result_layout": "dense" if is_dense else "sparse"}
    if mode == 2:
        options.update(numerics="fixed_point", value_bound=1.0, max_submissions=len(workload.clients))
    return sa.RoundSpec(
        [sa.TensorSpec("tensor", "float32", num_rows=workload.num_rows, row_width=workload.row_width)], **options
    )


def _label(mode: int, how: str) -> str:
    return f"{how} {MODES[mode]}"


def _python(
    library: Any,
    workload: native.Workload,
    updates: list[Any],
    mode: int,
    is_dense: bool,
    threads: int,
    suffix: str = "",
) -> Contestant:
    spec = spec_of(workload, mode, is_dense)

    def check(result: sa.Result, reference: Reference) -> str | None:
        tensor = result["tensor"]
        if mode == 1 and not np.array_equal(tensor.counts, reference.counts):
            return "other counts"
        output = Output(library, workload, mode, is_dense, threads)
        if tensor.values.tobytes() != output.engine_values():
            return "other bits than in C++"
        if is_dense:
            return reference.dense_error(tensor.values, workload.num_rows)
        return reference.error(tensor.keys, tensor.values)

    return Contestant(
        _label(mode, "sparseagg") + suffix,
        "dense" if is_dense else "sparse",
        threads,
        lambda: sa.aggregate(updates, spec, threads=threads),
        check,
        SEPARATE,
    )


def _bfloat16(data: Data, threads: int) -> Contestant:
    spec = sa.RoundSpec([sa.TensorSpec("tensor", "bfloat16", num_rows=data.num_rows, row_width=data.row_width)])
    values = (data.values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)  # exact: see Data.one_update
    updates = [{"tensor": (data.keys64, values)}]

    def check(result: sa.Result, reference: Reference) -> str | None:
        return reference.error(result["tensor"].keys, np.asarray(result["tensor"].values, np.float32), 7)

    return Contestant(
        _label(0, "sparseagg") + ", bfloat16, int64 keys",
        "sparse",
        threads,
        lambda: sa.aggregate(updates, spec, threads=threads),
        check,
        SEPARATE,
    )


class Output:
    """What a native contestant gave, freed with this."""

    def __init__(
        self,
        library: Any,
        workload: native.Workload,
        mode: int,
        is_dense: bool,
        threads: int,
        name: str = "engine",
    ) -> None:
        self._library, self._workload = library, workload
        self.handle = library.sab_run(workload.handle, name.encode(), mode, int(is_dense), threads)
        if not self.handle:
            raise RuntimeError(library.sab_error().decode())

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library.sab_free_output(self.handle)

    def engine_values(self) -> bytes:
        address = native.P()
        size = self._library.sab_engine_values(self.handle, native.ctypes.byref(address))
        return native.view(address.value, size, np.uint8).tobytes()

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        keys, values = native.P(), native.P()
        count = self._library.sab_rows(self.handle, native.ctypes.byref(keys), native.ctypes.byref(values))
        row_width = self._workload.row_width
        return native.view(keys.value, count, np.uint64), native.view(values.value, count * row_width, np.float32)


def _native(library: Any, workload: native.Workload, mode: int, threads: int) -> Contestant:
    def check(output: Output, reference: Reference) -> str | None:
        del reference  # the library has its own, which is exact
        return library.sab_difference(workload.handle, output.handle).decode() or None

    return Contestant(
        _label(mode, "sparseagg in C++"),
        "sparse",
        threads,
        functools.partial(Output, library, workload, mode, False, threads),
        check,
        SEPARATE,
    )


def _other(library: Any, workload: native.Workload, name: str, text: str) -> Contestant:
    return Contestant(
        text,
        "sparse",
        1,
        functools.partial(Output, library, workload, 0, False, 1, name),
        lambda output, reference: reference.error(*output.rows()),
        SEPARATE,
    )
