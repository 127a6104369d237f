"""Updates and results in .npz files: arrays ``TENSOR.keys`` and ``TENSOR.values``, or ``TENSOR`` if dense."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import zipfile
from collections.abc import Iterator
from typing import IO, Any, Union

import numpy as np
import numpy.lib.format as npy

from sparseagg._internal.base.foreign import Array, is_bfloat16
from sparseagg._internal.base.state_files import is_stream, replaced
from sparseagg._internal.commands.parser import put
from sparseagg._internal.results.result import Result
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.errors import InvalidArgumentError

Path = Union[str, "os.PathLike[str]"]
# Of results, besides keys and values.
_COLUMNS = ("counts", "weights", "moments")
ArrayHeader = tuple[tuple[int, ...], "np.dtype[Any]"]


class NpzFile:
    """The arrays of an open .npz file, by ``names`` in the file's order. Each is read when the caller asks for it;
    pickled objects are refused.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = os.fspath(path)
        self._archive = archive
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in self._members:
                raise InvalidArgumentError(f"{self.path} has array {name!r} twice")
            self._members[name] = member
        self.names = list(self._members)

    def header(self, name: str) -> ArrayHeader:
        """Returns shape and dtype of an array, from its header alone; ``InvalidArgumentError`` if it is no array of
        numbers.
        """
        with self._open(name) as member:
            return self._header(name, member)

    def read(self, name: str) -> Array:
        """Returns an array. Errors are those of ``header``."""
        self.header(name)
        with self._open(name) as member:
            return np.asarray(npy.read_array(member, allow_pickle=False))

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        try:
            with self._archive.open(self._members[name]) as member:
                yield member
        except InvalidArgumentError:
            raise
        except Exception as error:  # zipfile, its decompressors and NumPy have many for malformed files
            raise InvalidArgumentError(f"{self.path}: array {name!r} cannot be read: {error}") from error

    def _header(self, name: str, member: IO[bytes]) -> ArrayHeader:
        version = npy.read_magic(member)
        if version == (1, 0):
            shape, _, dtype = npy.read_array_header_1_0(member)
        elif version == (2, 0):
            shape, _, dtype = npy.read_array_header_2_0(member)
        else:  # (3, 0) is for structured types with names beyond ASCII
            raise ValueError(f"it is of version {version} of the .npy format, which is not that of numbers")
        if dtype.hasobject:
            raise InvalidArgumentError(f"{self.path}: array {name!r} holds Python objects, not numbers")
        # Checked before read_array allocates the array.
        expected, found = math.prod(shape) * dtype.itemsize, self._members[name].file_size - member.tell()
        if expected != found:
            raise ValueError(f"{shape} of {dtype} take {expected} bytes, and there are {found}")
        return shape, dtype


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Opens a file that ``numpy.savez`` or ``savez_compressed`` wrote; ``InvalidArgumentError`` if it is malformed."""
    with open(path, "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
        except Exception as error:  # likewise
            raise InvalidArgumentError(
                f"{os.fspath(path)} is no .npz file, as numpy.savez writes them: {error}"
            ) from error
        with archive:
            yield NpzFile(path, archive)


def read_update(path: Path, spec: RoundSpec) -> dict[str, Any]:
    """Returns the update in a file, as an update of ``Round.submit``. Keys without values are a tensor of a union.

    A dense tensor may have keys, which then are all keys in order. Raises ``InvalidArgumentError`` for a malformed
    file, an array of no tensor of the round, values without keys, or a tensor that is there both dense and with keys.
    """
    update: dict[str, Any] = {}
    with open_npz(path) as file:
        left = set(file.names)
        for tensor in spec.tensors:
            keys, values = f"{tensor.name}.keys", f"{tensor.name}.values"
            if values in left and keys not in left:
                raise InvalidArgumentError(f"{file.path} has {values}, but no {keys}")
            if tensor.name in left and keys in left:
                raise InvalidArgumentError(f"{file.path} has {tensor.name} as well as {keys}")
            if tensor.name in left:
                update[tensor.name] = _values(tensor, file.read(tensor.name))
            elif keys in left:
                rows = _values(tensor, file.read(values)) if values in left else None
                update[tensor.name] = _rows(tensor, file.read(keys), rows)
            left -= {tensor.name, keys, values}
        if left:
            known = ", ".join(tensor.name for tensor in spec.tensors)
            unknown = ", ".join(name for name in file.names if name in left)
            raise InvalidArgumentError(f"{file.path} has arrays of no tensor: {unknown}; the round has {known}")
    return update


def _values(tensor: TensorSpec, values: Array) -> Array:
    """Returns the values; bfloat16 of ml_dtypes, which a .npy file has as two bytes without a type, as its bits."""
    return values.view("<u2") if tensor.dtype == "bfloat16" and values.dtype == np.dtype("V2") else values


def _rows(tensor: TensorSpec, keys: Array, values: Array | None) -> Any:
    is_whole = tensor.layout == "dense" and keys.shape == (tensor.num_rows,) and values is not None
    if is_whole and np.array_equal(keys, np.arange(tensor.num_rows)):
        return values
    return keys, values


def check_output(path: Path) -> None:
    """Raises ``InvalidArgumentError`` if the file's folder does not exist, or if the path is a folder."""
    output = os.fspath(path)
    folder = os.path.dirname(os.path.realpath(output) if os.path.islink(output) else output)
    if folder and not os.path.isdir(folder):
        raise InvalidArgumentError(f"--output {output}: there is no folder {folder}")
    if os.path.isdir(output):
        raise InvalidArgumentError(f"--output {output} is a folder")


def print_rows(path: Path, result: Result) -> None:
    """Prints a line for each tensor; on standard error if ``path`` is a stream, which may be standard output."""
    for name, tensor in result.items():
        put(f"{name}: {len(tensor)} rows, {tensor.layout}", to=sys.stderr if is_stream(path) else sys.stdout)


def write_result(path: Path, result: Result) -> None:
    """Writes the arrays ``TENSOR.keys``, ``.values``, ``.counts``, ``.weights`` and ``.moments`` that the result has.

    A dense result of a tensor with dense layout is one array ``TENSOR`` of the tensor's shape, as in an update, instead
    of keys and values, so that the file can be merged again. bfloat16, which the format does not know, is widened to
    float32, exactly.
    """
    taken = {f"{name}.{column}" for name in result for column in ("keys", "values", *_COLUMNS)}
    arrays: dict[str, Array | None] = {}
    for name, tensor in result.items():
        is_whole = tensor.layout == "dense" and len(tensor) == tensor.num_rows and tensor.values is not None
        # Not under a name that is also another tensor's column.
        if is_whole and result.info.spec.tensor(name).layout == "dense" and name not in taken:
            arrays[name] = _numbers(tensor.dense())
        else:
            arrays.update({f"{name}.keys": tensor.keys, f"{name}.values": _numbers(tensor.values)})
        arrays.update({f"{name}.{column}": getattr(tensor, column) for column in _COLUMNS})
    # Not with numpy.savez, whose own arguments cannot be names of arrays.
    with replaced(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            if array is not None:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, array, allow_pickle=False)


def _numbers(values: Array | None) -> Array | None:
    if values is not None and is_bfloat16(values.dtype):
        return values.astype(np.float32)
    return values
