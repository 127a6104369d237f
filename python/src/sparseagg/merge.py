"""The command ``sparseagg merge``: .npz files in, one out, in this process."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import json_format

from sparseagg import bfloat16, npz
from sparseagg.engine import Aggregator
from sparseagg.errors import InvalidArgument
from sparseagg.spec import RoundSpec, TensorSpec
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["add_arguments", "guess_tensors", "main", "read_spec"]

DESCRIPTION = """Merges updates in .npz files, which hold arrays TENSOR.keys and TENSOR.values, or TENSOR for a dense
tensor. What to compute comes from --spec, or from the other options and from the arrays: dtype, width, and the
dimension of dense tensors. The files' names, as they are given, serve as client ids, so that their order does not
matter."""

_OPTIONS = {
    "op": ("sum", "mean", "coordinate_mean", "union", "min", "max"),
    "result": ("sparse", "dense", "auto"),
    "numerics": ("canonical", "fixed_point"),
    "on-bound": ("reject", "clip"),
    "on-nonfinite": ("reject", "propagate"),
    "result-dtype": ("float32", "float64"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="an update")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write the result")
    parser.add_argument("--spec", type=pathlib.Path, help="a file with a sparseagg.v1.RoundSpec in JSON")
    for name, choices in _OPTIONS.items():
        parser.add_argument(f"--{name}", choices=choices)
    parser.add_argument(
        "--dimension",
        action="append",
        metavar="[TENSOR=]N",
        help="keys are below N; by default any of 64 bits (may be given for each tensor)",
    )
    parser.add_argument("--weights", metavar="W,W,…", help="of the files, in their order; weighs by them")
    parser.add_argument("--counts", action="store_true", help="write TENSOR.counts, the files that list each key")
    parser.add_argument("--min-contributors", type=int, metavar="N", help="drop keys that fewer files list")
    parser.add_argument("--prune-zeros", action="store_true", help="drop keys whose rows are zero")
    parser.add_argument("--fill", type=float, help="absent keys of a dense result")
    parser.add_argument("--modular", action="store_true", help="unsigned sums, which wrap")
    parser.add_argument("--value-bound", type=float, help="of fixed_point: the largest value times weight")
    parser.add_argument("--weight-bound", type=float, help="of fixed_point: the largest weight")
    parser.add_argument("--threads", type=int, help="by default one per core")
    parser.add_argument(
        "--memory-limit",
        type=_size,
        metavar="SIZE",
        help="of updates, partial sums and result, such as 2GiB: files are then merged as they are read, any number",
    )


def main(arguments: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    weights = _weights(arguments)
    spec = _spec(arguments)
    aggregator = Aggregator(spec, threads=arguments.threads, memory_limit=arguments.memory_limit)
    updates = list(zip(arguments.files, weights))
    if arguments.memory_limit is not None:
        updates.sort(key=lambda update: os.fsencode(update[0]))  # the order in which they are summed
    for file, weight in updates:
        update = npz.read_update(file, spec)
        try:
            aggregator.add(file, update, weight)
        except InvalidArgument as error:
            raise InvalidArgument(f"{file}: {error}") from error
    result = aggregator.finish()
    npz.write_result(arguments.output, result)
    for name, tensor in result.items():
        print(f"{name}: {len(tensor)} rows, {tensor.layout}")
    return 0


def read_spec(path: pathlib.Path) -> RoundSpec:
    """Reads a RoundSpec in JSON; a ``ValueError`` names the file."""
    proto = pb.RoundSpec()
    try:
        json_format.Parse(path.read_text(encoding="utf-8"), proto)
    except json_format.ParseError as error:
        raise ValueError(f"{path}: {error}") from error
    return RoundSpec.from_proto(proto)


def guess_tensors(files: Sequence[str], dimensions: dict[str | None, int], modular: bool = False) -> list[TensorSpec]:
    """Returns the tensors of the files, by name, as the first file that has each of them shows it."""
    tensors: dict[str, TensorSpec] = {}
    for path in files:
        with np.load(path, allow_pickle=False) as file:
            names = set(file.files)
            for array in file.files:
                name, _, column = array.rpartition(".")
                if column == "values" and name:
                    if f"{name}.keys" not in names:
                        raise InvalidArgument(f"{path} has {array}, but no {name}.keys")
                    continue
                is_rows = column == "keys" and name != ""
                name = name if is_rows else array
                if name not in tensors:
                    values = file[f"{name}.values"] if is_rows and f"{name}.values" in names else None
                    tensors[name] = _tensor(name, values if is_rows else file[array], not is_rows, dimensions, modular)
    unknown = [str(name) for name in dimensions if name is not None and name not in tensors]
    if unknown:
        raise InvalidArgument(f"--dimension: no tensor {', '.join(unknown)}; the files have {', '.join(tensors)}")
    return [tensors[name] for name in sorted(tensors)]


def _tensor(name: str, values: Any, is_dense: bool, dimensions: dict[str | None, int], modular: bool) -> TensorSpec:
    dimension = dimensions.get(name, dimensions.get(None, 0))
    if values is None:  # a union's keys
        return TensorSpec(name, "float32", dimension)
    dtype = "bfloat16" if bfloat16.is_bfloat16(values.dtype) else values.dtype
    width = int(np.prod(values.shape[1:], dtype=np.int64))
    if is_dense:
        dimension = len(values) if values.ndim else 0
    is_modular = modular and getattr(dtype, "kind", "") == "u"
    return TensorSpec(name, dtype, dimension, width, layout="dense" if is_dense else "sparse", modular=is_modular)


def _spec(arguments: argparse.Namespace) -> RoundSpec:
    options = {
        **{name.replace("-", "_"): getattr(arguments, name.replace("-", "_")) for name in _OPTIONS},
        "return_counts": arguments.counts or None,
        "min_contributors": arguments.min_contributors,
        "prune_zeros": arguments.prune_zeros or None,
        "fill": arguments.fill,
        "value_bound": arguments.value_bound,
        "weight_bound": arguments.weight_bound,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if arguments.spec is not None:
        besides = {**given, "dimension": arguments.dimension, "modular": arguments.modular}
        for name in [name for name, value in besides.items() if value]:
            raise InvalidArgument(f"--spec says everything, so --{name.replace('_', '-')} cannot be given with it")
        return read_spec(arguments.spec)
    return RoundSpec(
        guess_tensors(arguments.files, _dimensions(arguments.dimension or []), arguments.modular),
        weighting=None if arguments.weights is None else "by_weight",
        max_submissions=len(arguments.files),
        **given,
    )


def _dimensions(given: Sequence[str]) -> dict[str | None, int]:
    dimensions: dict[str | None, int] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        try:
            dimensions[name if equals else None] = int(number)
        except ValueError:
            raise InvalidArgument(f"--dimension is [TENSOR=]N, not {text!r}") from None
    return dimensions


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+) ?([KMGT]iB|B|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"a size is a number of bytes, or of KiB, MiB, GiB or TiB, not {text!r}")
    number, unit = match.groups()
    return int(number) << 10 * " KMGT".index(unit[0] if len(unit) == 3 else " ")


def _weights(arguments: argparse.Namespace) -> list[float | None]:
    if arguments.weights is None:
        return [None] * len(arguments.files)
    weights: list[float | None] = []
    for text in arguments.weights.split(","):
        with contextlib.suppress(ValueError):
            weights.append(float(text))
            continue
        raise InvalidArgument(f"--weights are numbers, not {text!r}")
    if len(weights) != len(arguments.files):
        raise InvalidArgument(f"{len(weights)} weights for {len(arguments.files)} files")
    return weights
