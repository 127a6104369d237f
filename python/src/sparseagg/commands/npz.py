"""Updates and results as .npz files: arrays ``TENSOR.keys`` and ``TENSOR.values``, or ``TENSOR`` for a dense one."""

from __future__ import annotations

import contextlib
import lzma
import math
import os
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, Union

import numpy as np
import numpy.lib.format as npy

from sparseagg import bfloat16
from sparseagg.arrays import Array
from sparseagg.errors import InvalidArgument
from sparseagg.result import Result, TensorResult
from sparseagg.spec import RoundSpec, TensorSpec

__all__ = ["ArrayHeader", "NpzFile", "Path", "check_output", "open_npz", "print_rows", "read_update", "write_result"]

Path = Union[str, "os.PathLike[str]"]
ArrayHeader = tuple[tuple[int, ...], "np.dtype[Any]"]

# What zipfile, its decompressors and NumPy's parser of headers raise on bytes that are not what they should be.
_WRONG_BYTES = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    EOFError,
    IndexError,
    KeyError,
    OSError,  # a place before the file's beginning; bytes that bzip2 does not know
    RuntimeError,  # encrypted, or NotImplementedError: compressed in a way that this Python does not know
    SyntaxError,
    TypeError,
    ValueError,
)


class NpzFile:
    """The arrays of a .npz file, each of which is read when it is asked for. Pickled objects never are.

    Attributes:
        path: of the file.
        names: of the arrays, in their order; each is there once.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = os.fspath(path)
        self._archive = archive
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in self._members:
                raise InvalidArgument(f"{self.path} has array {name!r} twice")
            self._members[name] = member
        self.names = list(self._members)

    def header(self, name: str) -> ArrayHeader:
        """Returns shape and dtype of an array, and reads no more than that.

        Raises:
            InvalidArgument: it is no array of numbers; the message names file and array.
        """
        with self._open(name) as member:
            return self._header(name, member)

    def read(self, name: str) -> Array:
        """Returns an array; errors are those of ``header``."""
        self.header(name)
        with self._open(name) as member:
            return np.asarray(npy.read_array(member, allow_pickle=False))

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        try:
            with self._archive.open(self._members[name]) as member:
                yield member
        except InvalidArgument:
            raise
        except _WRONG_BYTES as error:
            raise InvalidArgument(f"{self.path}: array {name!r} cannot be read: {error}") from error

    def _header(self, name: str, member: IO[bytes]) -> ArrayHeader:
        version = npy.read_magic(member)
        if version == (1, 0):
            shape, _, dtype = npy.read_array_header_1_0(member)
        elif version == (2, 0):
            shape, _, dtype = npy.read_array_header_2_0(member)
        else:  # (3, 0) is for fields with names that are not ASCII
            raise ValueError(f"it is of version {version} of the .npy format, which is not that of numbers")
        if dtype.hasobject:
            raise InvalidArgument(f"{self.path}: array {name!r} holds Python objects, not numbers")
        # Before an array of that size is made.
        expected, found = math.prod(shape) * dtype.itemsize, self._members[name].file_size - member.tell()
        if expected != found:
            raise ValueError(f"{shape} of {dtype} take {expected} bytes, and there are {found}")
        return shape, dtype


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Opens a file that ``numpy.savez`` or ``savez_compressed`` wrote.

    Raises:
        InvalidArgument: it is no such file, or has an array twice; the message names it.
        OSError: it cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
        except _WRONG_BYTES as error:
            raise InvalidArgument(f"{os.fspath(path)} is no .npz file, as numpy.savez writes them: {error}") from error
        with archive:
            yield NpzFile(path, archive)


def read_update(path: Path, spec: RoundSpec) -> dict[str, Any]:
    """Returns the update in a file, as ``Round.submit`` takes it. Keys without values are those of a union.

    All keys of a dense tensor, in their order, are those of its rows.

    Raises:
        InvalidArgument: no .npz file, an array that belongs to no tensor of the round, values without keys, or a tensor
            that is given twice, dense and with keys.
        OSError: it cannot be opened.
    """
    update: dict[str, Any] = {}
    with open_npz(path) as file:
        left = set(file.names)
        for tensor in spec.tensors:
            keys, values = f"{tensor.name}.keys", f"{tensor.name}.values"
            if values in left and keys not in left:
                raise InvalidArgument(f"{file.path} has {values}, but no {keys}")
            if tensor.name in left and keys in left:
                raise InvalidArgument(f"{file.path} has {tensor.name} as well as {keys}")
            if tensor.name in left:
                update[tensor.name] = _values(tensor, file.read(tensor.name))
            elif keys in left:
                rows = _values(tensor, file.read(values)) if values in left else None
                update[tensor.name] = _rows(tensor, file.read(keys), rows)
            left -= {tensor.name, keys, values}
        if left:
            known = ", ".join(tensor.name for tensor in spec.tensors)
            unknown = ", ".join(name for name in file.names if name in left)
            raise InvalidArgument(f"{file.path} has arrays of no tensor: {unknown}; the round has {known}")
    return update


def _values(tensor: TensorSpec, values: Array) -> Array:
    """bfloat16 of ml_dtypes, for which the format has no name, is two bytes of no type there: its bits."""
    return values.view("<u2") if tensor.dtype == "bfloat16" and values.dtype == np.dtype("V2") else values


def _rows(tensor: TensorSpec, keys: Array, values: Array | None) -> Any:
    is_whole = tensor.layout == "dense" and keys.shape == (tensor.dimension,) and values is not None
    if is_whole and np.array_equal(keys, np.arange(tensor.dimension)):
        return values
    return keys, values


def check_output(path: Path) -> None:
    """Raises ``InvalidArgument`` where ``write_result`` will find no folder for the file, or a folder in its place."""
    output = os.fspath(path)
    folder = os.path.dirname(os.path.realpath(output) if os.path.islink(output) else output)
    if folder and not os.path.isdir(folder):
        raise InvalidArgument(f"--output {output}: there is no folder {folder}")
    if os.path.isdir(output):
        raise InvalidArgument(f"--output {output} is a folder")


def _is_stream(path: Path) -> bool:
    """Whether this is a pipe or a device, which ``write_result`` leaves what it is."""
    return os.path.exists(path) and not os.path.isfile(path)


def print_rows(path: Path, result: Result) -> None:
    """Says what has been written to ``path``: on standard error where that is a stream, for it may be the other one."""
    for name, tensor in result.items():
        print(f"{name}: {len(tensor)} rows, {tensor.layout}", file=sys.stderr if _is_stream(path) else sys.stdout)


def write_result(path: Path, result: Result) -> None:
    """Writes ``TENSOR.keys``, ``.values``, ``.counts`` and ``.weights``, those that there are.

    A dense result of a tensor that is sent dense is ``TENSOR`` in place of keys and values, as in updates, so that the
    file can be merged with others. bfloat16, for which the format has no name, is widened to float32, exactly.
    """
    taken = {f"{name}.{column}" for name in result for column in ("keys", "values", "counts", "weights")}
    arrays: dict[str, Array | None] = {}
    for name, tensor in result.items():
        is_whole = tensor.layout == "dense" and len(tensor) == tensor.dimension and tensor.values is not None
        # A name that another tensor's column may have leaves it at keys and values.
        if is_whole and result.info.spec.tensor(name).layout == "dense" and name not in taken:
            arrays[name] = _numbers(tensor)
        else:
            arrays.update({f"{name}.keys": tensor.keys, f"{name}.values": _numbers(tensor)})
        arrays.update({f"{name}.counts": tensor.counts, f"{name}.weights": tensor.weights})
    # Not by numpy.savez, whose own arguments are no names of arrays.
    with _replaced(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            if array is not None:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, array, allow_pickle=False)


def _numbers(tensor: TensorResult) -> Array | None:
    values = tensor.values
    if values is not None and bfloat16.is_bfloat16(values.dtype):
        return values.astype(np.float32)
    return values


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file that takes the place of ``path`` when it is complete, and leaves nothing behind if it is not."""
    if _is_stream(path):
        with open(path, "wb") as file:  # by the name given: that of a pipe behind /dev/stdout opens nothing
            yield file
        return
    target = os.path.realpath(path)
    part = f"{target}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(part)
        raise
