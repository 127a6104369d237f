"""Damages sparse arrays of other libraries at random, and compares what is read of them with a slow reading.

    foreign_damage.py LIBRARY SEED COUNT

A program of its own, because a reader that follows a wrong pointer ends the process. Prints each case before it is
read, and at the end how many were read and refused. An array that the slow reading finds inconsistent has to be
refused, and any other one has to be read as it says.
"""

from __future__ import annotations

import ctypes
import pathlib
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SHAPE = (6, 4)
BLOCK = (3, 2)
WILD = [-(2**63), -(2**31), -7, -1, 0, 1, 2, 3, 4, 5, 6, 7, 24, 1000, 2**31 - 1, 2**40, 2**62, 2**63 - 1]

Arrays = dict[str, np.ndarray]
Sums = dict[int, float]  # by the position of the element, row after row


class Inconsistent(Exception):
    """The slow reading finds an array that makes no sense."""


def need(condition: bool) -> None:
    if not condition:
        raise Inconsistent


def total(entries: Iterator[tuple[int, int, float]]) -> Sums:
    sums: defaultdict[int, float] = defaultdict(float)
    for row, column, value in entries:
        need(0 <= row < SHAPE[0] and 0 <= column < SHAPE[1])
        sums[row * SHAPE[1] + column] += value
    return dict(sums)


def compressed(arrays: Arrays, by_row: bool, blocks: bool = False, room: bool = False) -> Sums:
    """Reads CSR, CSC, BSR and BSC. ``room``: there may be more entries than the last pointer says."""
    pointers, indices = arrays["pointers"].tolist(), arrays["indices"].tolist()
    values = arrays["values"].tolist()
    height, width = BLOCK if blocks else (1, 1)
    lines, places = SHAPE[0] // height, SHAPE[1] // width
    if not by_row:
        lines, places = places, lines
    need(len(pointers) == lines + 1 and pointers[0] == 0 and len(indices) == len(values))
    need(pointers == sorted(pointers))
    need(pointers[-1] <= len(indices) if room else pointers[-1] == len(indices))

    def entries() -> Iterator[tuple[int, int, float]]:
        for line in range(lines):
            for at in range(pointers[line], pointers[line + 1]):
                need(0 <= indices[at] < places)
                row, column = (line, indices[at]) if by_row else (indices[at], line)
                for r in range(height):
                    for c in range(width):
                        yield row * height + r, column * width + c, values[at][r][c] if blocks else values[at]

    return total(entries())


def coordinates(arrays: Arrays, padding: bool = False) -> Sums:
    rows, columns, values = (arrays[name].tolist() for name in ("rows", "columns", "values"))
    need(len(rows) == len(columns) == len(values))

    def entries() -> Iterator[tuple[int, int, float]]:
        for row, column, value in zip(rows, columns, values):
            is_inside = 0 <= row <= SHAPE[0] and 0 <= column <= SHAPE[1]
            if not (padding and is_inside and (row == SHAPE[0] or column == SHAPE[1])):
                yield row, column, value

    return total(entries())


def diagonals(arrays: Arrays) -> Sums:
    offsets, values = arrays["offsets"].tolist(), arrays["values"].tolist()
    need(len(offsets) == len(values))
    cells = [(at - offset, at, value) for offset, line in zip(offsets, values) for at, value in enumerate(line)]
    return total(cell for cell in cells if cell[2] and 0 <= cell[0] < SHAPE[0] and cell[1] < SHAPE[1])


# Arrays to damage.


def make_compressed(rng: np.random.Generator, by_row: bool, blocks: bool = False) -> Arrays:
    height, width = BLOCK if blocks else (1, 1)
    lines, places = SHAPE[0] // height, SHAPE[1] // width
    if not by_row:
        lines, places = places, lines
    present = rng.random((lines, places)) < 0.5
    indices = np.nonzero(present)[1]
    values = rng.integers(1, 9, (len(indices), height, width) if blocks else len(indices)).astype(np.float32)
    return {"pointers": np.concatenate([[0], np.cumsum(present.sum(axis=1))]), "indices": indices, "values": values}


def make_coordinates(rng: np.random.Generator) -> Arrays:
    count = int(rng.integers(1, 12))
    rows, columns = rng.integers(0, SHAPE[0], count), rng.integers(0, SHAPE[1], count)
    return {"rows": rows, "columns": columns, "values": rng.integers(1, 9, count).astype(np.float32)}


def make_diagonals(rng: np.random.Generator) -> Arrays:
    offsets = rng.choice(np.arange(-5, 4), 3, replace=False)
    return {"offsets": offsets, "values": rng.integers(0, 9, (3, 4)).astype(np.float32)}


def damaged(rng: np.random.Generator, arrays: Arrays) -> tuple[Arrays, list[str]]:
    """Returns the arrays with none to two changes, and what these are."""
    arrays, done = dict(arrays), []
    for _ in range(int(rng.choice([0, 1, 1, 1, 2]))):
        name = str(rng.choice(list(arrays)))
        array = arrays[name].copy()
        how = str(rng.choice(["set", "set", "set", "cut", "extend", "swap"]))
        if len(array) == 0 or (how == "set" and array.dtype.kind == "f"):
            how = "extend"
        if how == "set":
            array[rng.integers(len(array))] = rng.choice(np.array(WILD, np.int64))
        elif how == "cut":
            array = array[: rng.integers(len(array))]
        elif how == "extend":
            array = np.concatenate([array, array[-1:] if len(array) else np.zeros((1, *array.shape[1:]), array.dtype)])
        else:
            array = array[rng.permutation(len(array))]
        arrays[name] = array
        done.append(f"{how} {name}")
    return arrays, done


# The libraries: for each format, how arrays are made, how a tensor is made of them, and what they mean.

Format = tuple[Callable[[np.random.Generator], Arrays], Callable[[Arrays], Any], Callable[[Arrays], Sums]]


def int32_or_same(array: np.ndarray) -> np.ndarray:
    fits = array.size == 0 or (array.min() >= -(2**31) and array.max() < 2**31)
    return array.astype(np.int32) if fits and array.size % 2 else array


def scipy_formats() -> dict[str, Format]:
    import scipy.sparse

    def of_compressed(kind: str) -> Callable[[Arrays], Any]:
        def build(arrays: Arrays) -> Any:
            options = {"blocksize": BLOCK} if kind == "bsr" else {}
            matrix = getattr(scipy.sparse, f"{kind}_matrix")(np.ones(SHAPE, np.float32), **options)
            matrix.indptr, matrix.indices = (int32_or_same(arrays[name]) for name in ("pointers", "indices"))
            matrix.data = arrays["values"]
            return matrix

        return build

    def of_coordinates(arrays: Arrays) -> Any:
        matrix = scipy.sparse.coo_matrix(SHAPE, dtype=np.float32)
        matrix.coords, matrix.data = (arrays["rows"], arrays["columns"]), arrays["values"]
        return matrix

    def of_diagonals(arrays: Arrays) -> Any:
        matrix = scipy.sparse.dia_matrix(SHAPE, dtype=np.float32)
        matrix.offsets, matrix.data = arrays["offsets"], arrays["values"]
        return matrix

    def of_lists(arrays: Arrays) -> Any:
        matrix = scipy.sparse.lil_matrix(SHAPE, dtype=np.float32)
        bounds = arrays["pointers"].tolist()
        for at in range(min(SHAPE[0], len(bounds) - 1)):
            matrix.rows[at] = arrays["indices"].tolist()[slice(*bounds[at : at + 2])]
            matrix.data[at] = arrays["values"].tolist()[slice(*bounds[at : at + 2])]
        return matrix

    def lists(arrays: Arrays) -> Sums:
        matrix = of_lists(arrays)
        need(all(len(a) == len(b) for a, b in zip(matrix.rows, matrix.data)))
        return total((r, c, v) for r in range(SHAPE[0]) for c, v in zip(matrix.rows[r], matrix.data[r]))

    made = {
        kind: (
            lambda rng, kind=kind: make_compressed(rng, kind != "csc", kind == "bsr"),
            of_compressed(kind),
            lambda arrays, kind=kind: compressed(arrays, kind != "csc", kind == "bsr", room=True),
        )
        for kind in ("csr", "csc", "bsr")
    }
    made["coo"] = make_coordinates, of_coordinates, coordinates
    made["dia"] = make_diagonals, of_diagonals, diagonals
    made["lil"] = (lambda rng: make_compressed(rng, True)), of_lists, lists
    return made


def torch_formats() -> dict[str, Format]:
    for library in pathlib.Path(sys.prefix, "torch-stand-ins").glob("*.so*"):
        ctypes.CDLL(str(library))
    import torch

    def of_compressed(kind: str) -> Callable[[Arrays], Any]:
        def build(arrays: Arrays) -> Any:
            parts = [torch.from_numpy(arrays[name].copy()) for name in ("pointers", "indices", "values")]
            layout = getattr(torch, f"sparse_{kind}")
            return torch.sparse_compressed_tensor(*parts, SHAPE, layout=layout, check_invariants=False)

        return build

    def of_coordinates(arrays: Arrays) -> Any:
        indices = torch.from_numpy(np.stack([arrays["rows"], arrays["columns"]]))
        return torch.sparse_coo_tensor(indices, torch.from_numpy(arrays["values"]), SHAPE, check_invariants=False)

    made = {
        kind: (
            lambda rng, kind=kind: make_compressed(rng, kind[2] == "r", kind[0] == "b"),
            of_compressed(kind),
            lambda arrays, kind=kind: compressed(arrays, kind[2] == "r", kind[0] == "b"),
        )
        for kind in ("csr", "csc", "bsr", "bsc")
    }
    made["coo"] = make_coordinates, of_coordinates, coordinates
    return made


def jax_formats() -> dict[str, Format]:
    import jax
    from jax.experimental import sparse

    jax.config.update("jax_enable_x64", True)

    def of_coordinates(arrays: Arrays) -> Any:
        indices = np.stack([arrays["rows"], arrays["columns"]], axis=1)
        return sparse.BCOO((jax.numpy.asarray(arrays["values"]), jax.numpy.asarray(indices)), shape=SHAPE)

    def of_compressed(arrays: Arrays) -> Any:
        parts = (jax.numpy.asarray(arrays[name]) for name in ("values", "indices", "pointers"))
        return sparse.BCSR(tuple(parts), shape=SHAPE)

    def rows_of(arrays: Arrays) -> Sums:
        used = arrays["pointers"][-1:].tolist()
        need(len(used) == 1 and 0 <= used[0] <= len(arrays["indices"]))
        need((arrays["indices"][used[0] :] == SHAPE[1]).all())  # what is behind the last pointer is padding
        return compressed(arrays, True, room=True)

    return {
        "bcoo": (make_coordinates, of_coordinates, lambda arrays: coordinates(arrays, padding=True)),
        "bcsr": (lambda rng: make_compressed(rng, True), of_compressed, rows_of),
    }


def tensorflow_formats() -> dict[str, Format]:
    import tensorflow as tf

    def of_coordinates(arrays: Arrays) -> Any:
        return tf.SparseTensor(np.stack([arrays["rows"], arrays["columns"]], axis=1), arrays["values"], SHAPE)

    return {"sparse": (make_coordinates, of_coordinates, coordinates)}


def pydata_formats() -> dict[str, Format]:
    import sparse

    def of_coordinates(arrays: Arrays) -> Any:
        array = sparse.COO(np.zeros((2, 0), np.int64), np.zeros(0, np.float32), SHAPE)
        array.coords, array.data = np.stack([arrays["rows"], arrays["columns"]]), arrays["values"]
        return array

    return {"coo": (make_coordinates, of_coordinates, coordinates)}


FORMATS = {
    "jax": jax_formats,
    "scipy": scipy_formats,
    "sparse": pydata_formats,
    "tensorflow": tensorflow_formats,
    "torch": torch_formats,
}


def read(tensor: Any) -> Sums:
    import sparseagg as sa
    from sparseagg._internal.updates.arrays import tensor_data

    data = tensor_data(sa.TensorSpec("v", "float32", shape=SHAPE, row_width=1), tensor)
    assert (data.keys.shape, data.values.shape) == ((data.num_keys,), (data.num_keys, 1))
    sums: defaultdict[int, float] = defaultdict(float)
    for key, value in zip(data.keys.tolist(), data.values.reshape(-1).tolist()):
        sums[key] += value
    return dict(sums)


def main() -> None:
    import sparseagg as sa

    library, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    formats = FORMATS[library]()
    rng = np.random.default_rng(seed)
    outcomes = {"read": 0, "refused": 0, "not made": 0}
    for case in range(count):
        kind = list(formats)[case % len(formats)]
        make, build, meaning = formats[kind]
        arrays, done = damaged(rng, make(rng))
        print(f"seed {seed}, case {case}: {library} {kind}, {done}", flush=True)
        try:
            tensor = build(arrays)
        except Exception:  # the library refuses, with errors of any kind
            outcomes["not made"] += 1
            continue
        try:
            expected: Sums | None = meaning(arrays)
        except Inconsistent:
            expected = None
        text = "tensor 'v': "
        try:
            found: Sums | None = read(tensor)
        except sa.InvalidArgumentError as error:
            found, text = None, str(error)
        assert text.startswith("tensor 'v': "), text
        assert found == expected, f"{found} instead of {expected} of {arrays}"
        outcomes["refused" if found is None else "read"] += 1
    print(outcomes)
    assert min(outcomes["read"], outcomes["refused"]) > 0, outcomes


if __name__ == "__main__":
    main()
