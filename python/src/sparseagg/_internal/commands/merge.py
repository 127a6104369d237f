"""The command ``sparseagg merge``, which merges .npz files in this process."""

from __future__ import annotations

import argparse
import contextlib
import enum
import math
import os
import pathlib
import re
from collections.abc import Iterator, Sequence

from sparseagg._internal.commands import npz
from sparseagg._internal.commands.rounds import SPEC_HELP, read_spec
from sparseagg._internal.local.aggregator import Aggregator
from sparseagg._internal.spec.options import dtype_name, words_of
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.errors import InvalidArgumentError, SparseaggError, error_of

DESCRIPTION = """Merges updates in .npz files, which hold arrays TENSOR.keys and TENSOR.values, or TENSOR for a dense
tensor. The spec comes from --spec, or from the other options and the arrays: dtype, row_width, and the shape of dense
tensors, which must be the same in all files. A result without TENSOR.counts, TENSOR.weights and TENSOR.moments is an
update, too; with them it is refused. Files are summed in the bytewise order of their names, whatever their order on the
command line."""

_OPTIONS = {
    "op": "how updates are combined (default: sum)",
    "result_layout": "auto is the smaller of the two (default: that of the tensor)",
    "numerics": "canonical sums are float64 in the order of files; binned ones have no order (default: canonical)",
    "on_nonfinite": "what to do with NaN and infinities (default: reject their file)",
    "result_dtype": "dtype of the result's floats (default: that of the tensor)",
}

# numpy.savez gives such names to arrays without a name.
_UNNAMED = re.compile(r"arr_\d+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="the .npz file of an update")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the .npz file to write")
    parser.add_argument("--spec", type=pathlib.Path, help=SPEC_HELP)
    for name, text in _OPTIONS.items():
        choices = ["float32", "float64"] if name == "result_dtype" else words_of(name)
        parser.add_argument(f"--{name.replace('_', '-')}", choices=choices, help=text)
    parser.add_argument(
        "--num-rows",
        action="append",
        metavar="[TENSOR=]N",
        help="number of rows: keys are below N; may be repeated, for each tensor (default: any 64-bit keys)",
    )
    parser.add_argument(
        "--weights",
        metavar="W,W,…",
        help="weights of the files as listed here; sets the weighting by_weight, which a --spec must have itself",
    )
    parser.add_argument(
        "--counts", action="store_true", help="write TENSOR.counts, the number of files that list each key"
    )
    parser.add_argument("--min-contributors", type=int, metavar="N", help="leave out keys that fewer than N files list")
    parser.add_argument("--prune-zeros", action="store_true", help="leave out keys whose result is all zeros")
    parser.add_argument(
        "--fill", type=float, metavar="VALUE", help="value at absent keys of a dense result (default: 0)"
    )
    parser.add_argument("--modular", action="store_true", help="let sums of unsigned integers wrap")
    parser.add_argument("--threads", type=int, metavar="N", help="number of threads (default: one per core)")
    parser.add_argument(
        "--memory-limit",
        type=_size,
        metavar="SIZE",
        help="limit of the memory of updates, partial sums and result, such as 2GiB: files are merged as they are read",
    )


def main(arguments: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    weights = _weights(arguments)
    updates = sorted(zip(arguments.files, weights), key=lambda update: os.fsencode(update[0]))
    npz.check_output(arguments.output)
    _check_files([file for file, _ in updates], arguments.output)
    spec = _spec(arguments)
    aggregator = Aggregator(spec, threads=arguments.threads, memory_limit=arguments.memory_limit)
    for position, (file, weight) in enumerate(updates):
        update = npz.read_update(file, spec)
        try:
            # A file name may be too long for a client id, or not UTF-8. Positions have the same order.
            client_id = f"{position:020}"
            aggregator.add(client_id, update, weight)
        except SparseaggError as error:
            what = str(error).removeprefix(f"client {client_id!r}: ")
            raise error_of(error.code, f"{file}: {what}") from error
    result = aggregator.finish()
    npz.write_result(arguments.output, result)
    npz.print_rows(arguments.output, result)
    return 0


def _check_files(files: Sequence[str], output: str) -> None:
    """Refuses a file that is given twice, also under two names, or that is the output, too."""
    names: dict[tuple[int, int], str] = {}
    for file in files:
        identity = _identity(file)
        if identity in names:
            other = names[identity]
            raise InvalidArgumentError(f"{file} is given twice" + (f", also as {other}" if other != file else ""))
        names[identity] = file
    if os.path.exists(output) and _identity(output) in names:
        raise InvalidArgumentError(f"--output {output} is one of the files")


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def guess_tensors(files: Sequence[str], num_rows_of: dict[str | None, int], modular: bool = False) -> list[TensorSpec]:
    """Returns the tensors of the files, in order of name. Reads the headers of the arrays only.

    Arrays without rows, and keys without values, count only if no file has rows of the tensor. Raises
    ``InvalidArgumentError`` if files disagree, or have a tensor that cannot be merged; the message names files and
    tensor.
    """
    # By tensor name and by what the array tells: the tensors found, with the first file that has each.
    shown: dict[str, dict[_Worth, dict[TensorSpec, str]]] = {}
    for path in files:
        with npz.open_npz(path) as file:
            for tensor, worth in _tensors_of(file, num_rows_of, modular):
                shown.setdefault(tensor.name, {}).setdefault(worth, {}).setdefault(tensor, file.path)
    unknown = [str(name) for name in num_rows_of if name is not None and name not in shown]
    if unknown:
        raise InvalidArgumentError(f"--num-rows: no tensor {', '.join(unknown)}; the files have {', '.join(shown)}")
    tensors: list[TensorSpec] = []
    for name in sorted(shown):
        found = shown[name][max(shown[name])]
        if len(found) > 1:
            (tensor, path), (other, other_path), *_ = found.items()
            raise InvalidArgumentError(
                f"tensor {name!r} is {_description(tensor)} in {path}, and {_description(other)} in {other_path}; "
                "what it is to be, --spec can say"
            )
        ((tensor, path),) = found.items()
        if tensor.layout == "dense" and tensor.num_rows == 0:
            raise InvalidArgumentError(f"{path}: array {name!r} has no rows, and a dense tensor has one at least")
        tensors.append(tensor)
    return tensors


class _Worth(enum.IntEnum):
    """How much an array tells about its tensor."""

    KEYS = 0
    NO_ROWS = 1
    ROWS = 2


def _tensors_of(
    file: npz.NpzFile, num_rows_of: dict[str | None, int], modular: bool
) -> Iterator[tuple[TensorSpec, _Worth]]:
    names = set(file.names)
    for array in file.names:
        name, _, column = array.rpartition(".")
        if column == "values" and name:
            if f"{name}.keys" not in names:
                raise InvalidArgumentError(f"{file.path} has {array}, but no {name}.keys")
            continue
        is_dense = column != "keys" or name == ""
        if is_dense:
            _check_dense_name(file, array)
            name = array
        num_rows = num_rows_of.get(name, num_rows_of.get(None, 0))
        values = array if is_dense else f"{name}.values"
        if values not in names:  # a union's keys
            yield TensorSpec(name, "float32", num_rows=num_rows), _Worth.KEYS
            continue
        shape, dtype = file.header(values)
        length = shape[0] if shape else int(is_dense)
        try:
            tensor = TensorSpec(
                name,
                dtype_name(dtype),
                num_rows=length if is_dense else num_rows,
                row_width=math.prod(shape[1:]),
                shape=shape if is_dense and length else None,
                layout="dense" if is_dense else "sparse",
                modular=modular and dtype.kind == "u",
            )
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{file.path}: array {values!r}: {error}") from error
        yield tensor, _Worth.ROWS if length else _Worth.NO_ROWS


def _check_dense_name(file: npz.NpzFile, array: str) -> None:
    """Refuses an array that is a column of a tensor with keys, and would be merged as a dense tensor."""
    name, _, column = array.rpartition(".")
    beside = [other for other in (f"{name}.keys", name) if other in file.names]
    if column in ("counts", "weights", "moments") and beside:
        raise InvalidArgumentError(
            f"{file.path} has {array} beside {beside[0]}, as results have; an update has keys and values alone. A "
            "tensor of that name has to be in a --spec"
        )
    if column == "keys" or _UNNAMED.fullmatch(array):
        raise InvalidArgumentError(
            f"{file.path} has {array}, which names no tensor; arrays are TENSOR.keys and TENSOR.values. A dense tensor "
            "of that name has to be in a --spec"
        )


def _description(tensor: TensorSpec) -> str:
    if tensor.shape is not None:
        return f"dense, {tensor.dtype} of shape {tensor.shape}"
    layout = f"dense, of {tensor.num_rows} rows, " if tensor.layout == "dense" else ""
    return f"{layout}{tensor.dtype} of row_width {tensor.row_width}"


def _spec(arguments: argparse.Namespace) -> RoundSpec:
    options = {
        **{name: getattr(arguments, name) for name in _OPTIONS},
        "return_counts": arguments.counts or None,
        "min_contributors": arguments.min_contributors,
        "prune_zeros": arguments.prune_zeros or None,
        "fill": arguments.fill,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if arguments.spec is not None:
        besides = {**given, "num_rows": arguments.num_rows, "modular": arguments.modular or None}
        for name in [name for name, value in besides.items() if value is not None]:
            raise InvalidArgumentError(f"--spec says everything, so --{name.replace('_', '-')} cannot be given with it")
        spec = read_spec(arguments.spec)
        is_weighted = any(spec.aggregation_of(tensor).weighting == "by_weight" for tensor in spec.tensors)
        if arguments.weights is not None and not is_weighted:
            raise InvalidArgumentError("--weights are given, but --spec weighs no tensor by_weight")
        return spec
    return RoundSpec(
        guess_tensors(arguments.files, _num_rows_of(arguments.num_rows or []), arguments.modular),
        weighting=None if arguments.weights is None else "by_weight",
        max_submissions=len(arguments.files),
        **given,
    )


def _num_rows_of(given: Sequence[str]) -> dict[str | None, int]:
    num_rows_of: dict[str | None, int] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        try:
            num_rows_of[name if equals else None] = int(number)
        except ValueError:
            raise InvalidArgumentError(f"--num-rows must be [TENSOR=]N, got {text!r}") from None
    return num_rows_of


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+) ?([KMGT]iB|B|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"a size must be a number of bytes, or of KiB, MiB, GiB or TiB, got {text!r}")
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
        raise InvalidArgumentError(f"--weights must be numbers, got {text!r}")
    if len(weights) != len(arguments.files):
        raise InvalidArgumentError(f"{len(weights)} weights for {len(arguments.files)} files")
    return weights
