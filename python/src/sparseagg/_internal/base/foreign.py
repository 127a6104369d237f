"""Arrays of other libraries as NumPy's: what a thing is, bfloat16, and the package's floating-point environment."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import numbers
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union

import numpy as np

# Attributes of tables: of pandas, Polars, Arrow, Spark, DuckDB, Dask, and of the interchange protocol.
_TABLE_MARKS = ("columns", "column_names", "__dataframe__")
# What NumPy makes an array of without a guess.
_ARRAY_MARKS = ("__array__", "__array_interface__", "__array_struct__", "__dlpack__")

_PLAIN = (int, float, np.generic)


def has_attribute(thing: Any, *names: str) -> bool:
    """Returns whether the class of a thing has one of the attributes. No code of the thing's library runs.

    The columns of a frame and the labels of a series are attributes of the instance, with any names.
    """
    return any(hasattr(type(thing), name) for name in names)


def has_columns(thing: Any) -> bool:
    """Returns whether this is a table."""
    return has_attribute(thing, *_TABLE_MARKS)


def to_numpy(array: Any) -> Array:
    """Returns a NumPy array, which shares memory with ``array`` where its library can.

    Raises:
        Exception: of any kind, as the array's library raises them; ``ValueError`` for what NumPy takes for an array and
            reads as something else: the columns of a table, the keys of a mapping, bytes as numbers, entries that are
            masked or missing as values, axes with labels.
    """
    if isinstance(array, np.ndarray):
        return _unmasked(array)
    _refuse_other(array)
    if hasattr(array, "detach") and hasattr(array, "cpu"):  # torch
        array = array.detach().cpu()
        if hasattr(array, "resolve_neg"):
            array = array.resolve_neg()  # NumPy has no negated views
        if str(array.dtype) == "torch.bfloat16":
            array = array.float()  # exact; NumPy has no bfloat16
        return _unmasked(np.asanyarray(array.numpy()))
    if isinstance(array, (list, tuple, collections.deque)):
        return _from_sequence(array)
    _refuse_missing(array)
    if callable(getattr(array, "numpy", None)):  # TensorFlow
        return _unmasked(np.asanyarray(array.numpy()))
    if not hasattr(array, "__array__") and hasattr(array, "__dlpack__"):
        return np.asarray(np.from_dlpack(array))
    return _unmasked(np.asanyarray(array))


def _unmasked(array: Array) -> Array:
    """Returns the array; raises if it is of objects or has masked entries, whose values have no meaning.

    The array is of no subclass, such as a matrix, which has two axes in every shape. Without entries, any type will do.
    """
    if np.ma.is_masked(array):
        raise ValueError("some of its entries are masked")
    if array.dtype == object and array.size:
        raise ValueError("it is no array of numbers")
    return np.asarray(array)


def _refuse_other(thing: Any) -> None:
    """Raises for what is no array, and NumPy would make one of nevertheless."""
    if has_columns(thing):
        raise ValueError("it is a table; give one of its columns, or the whole table as the tensor")
    if isinstance(thing, Mapping):
        raise ValueError("it is a mapping, not an array")
    if isinstance(thing, (str, bytes, bytearray)):
        raise ValueError("it is text or raw bytes, whose type is not known; np.frombuffer makes an array")
    if has_attribute(thing, "dims") and len(getattr(thing, "indexes", ())):  # xarray
        raise ValueError("its axes have labels; give (labels, rows), or its values alone")
    if isinstance(thing, (numbers.Number, np.generic, Sequence)) or has_attribute(thing, *_ARRAY_MARKS):
        return
    if callable(getattr(thing, "numpy", None)):
        return
    try:
        memoryview(thing)
    except TypeError:
        raise ValueError("it is no array") from None


def _from_sequence(things: Any) -> Array:
    """Returns the array of a list, whose items may be numbers, lists or arrays."""
    if not _is_plain(things):
        things = [thing if isinstance(thing, _PLAIN) else to_numpy(thing) for thing in things]
    return _unmasked(np.asarray(things))


def _is_plain(things: Any) -> bool:
    """Returns whether these are numbers, or lists of numbers."""
    kinds = [kind for kind in set(map(type, things)) if not issubclass(kind, _PLAIN)]
    if not set(kinds) <= {list, tuple}:
        return False
    return not kinds or all(isinstance(thing, _PLAIN) or _is_plain(thing) for thing in things)


def _refuse_missing(array: Any) -> None:
    """Raises for entries that are missing, which NumPy reads as NaN: of arrays of Arrow, Polars and pandas."""
    if has_attribute(array, "null_count"):
        count = array.null_count
        missing = array.is_null() if (count() if callable(count) else count) else ()
    elif has_attribute(array, "isna") and not isinstance(getattr(array, "dtype", None), np.dtype):
        missing = array.isna()
    else:
        return
    positions = np.flatnonzero(np.asarray(missing))
    if len(positions):
        raise ValueError(f"it has a missing value at position {positions[0]}")


Array = np.ndarray[Any, Any]
Rows = Union[Array, list[Array]]  # a list: the columns, of any types, each of shape (n,)


@dataclasses.dataclass(frozen=True)
class Keyed:
    """A row at each key. Keys may come more than once."""

    keys: Array  # of any type, shape (n,)
    rows: Rows | None  # shape (n,) or (n, …); None if there are keys alone


# The device of an array that does not name its device: the CUDA Array Interface has no field for it.
ANY_DEVICE = -1

# Kinds of memory in DLPack that a CUDA device reads: its own, and managed memory.
_CUDA_KINDS = (2, 13)

# For errors of reading an array that is on a GPU.
READ_ON_GPU = (
    "; it is in the memory of a GPU: copy it to host memory, or merge it there with "
    "sparseagg.aggregate and the package sparseagg-cuda13, the wheel of `make cuda-wheel`"
)


def cuda_device(array: Any) -> int | None:
    """Returns the number of the CUDA device that an array is on, ``ANY_DEVICE`` if the array does not name it.

    None for arrays in host memory, and for things that are no arrays.
    """
    if isinstance(array, np.ndarray):
        return None
    try:
        if has_attribute(array, "__dlpack_device__"):
            kind, device = array.__dlpack_device__()
            return int(device) if int(kind) in _CUDA_KINDS else None
        # Libraries raise AttributeError where the array is in host memory.
        if has_attribute(array, "__cuda_array_interface__") and array.__cuda_array_interface__ is not None:
            return ANY_DEVICE
    except Exception:  # any kind of error that the array's library raises, such as of an array on several devices
        pass
    return None


def is_torch_coo(tensor: Any) -> bool:
    """Returns whether this is a sparse COO tensor of torch."""
    return str(getattr(tensor, "layout", "")) == "torch.sparse_coo"


def has_device_arrays(update: Any) -> bool:
    """Returns whether one of the arrays of an update is on a CUDA device.

    ``update``: as of ``Round.submit``, or with a weight. Numbers in lists are not looked at one by one.
    """
    if isinstance(update, np.ndarray):
        return False
    if isinstance(update, Mapping) and not hasattr(update, "tocoo"):  # SciPy's dok_matrix is a mapping
        return any(map(has_device_arrays, update.values()))
    if isinstance(update, tuple):
        return any(map(has_device_arrays, update))
    if isinstance(update, list):
        return bool(update) and hasattr(update[0], "shape") and any(map(has_device_arrays, update))
    if callable(getattr(update, "named_parameters", None)):
        return any(cuda_device(parameter.grad) is not None for _, parameter in update.named_parameters())
    return cuda_device(update) is not None


def is_table(thing: Any) -> bool:
    """Returns whether this is a frame or series of pandas, or has columns, which only a table does."""
    return not isinstance(thing, np.ndarray) and (_is_pandas(thing) or has_columns(thing) or _is_stream(thing))


def _is_pandas(thing: Any) -> bool:
    return has_attribute(thing, "iloc") and has_attribute(thing, "index")


def _is_stream(thing: Any) -> bool:
    """Returns whether this yields record batches, and not the pieces of one column."""
    return has_attribute(thing, "__arrow_c_stream__") and has_attribute(thing, "schema")


_ENVIRONMENT_BYTES = 512  # more than fenv_t has anywhere
_DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV of glibc and musl


def _load() -> ctypes.PyDLL | None:
    """Returns a library with fegetenv and fesetenv; None where FE_DFL_ENV is another pointer."""
    if not sys.platform.startswith("linux"):
        return None
    for name in (None, "libm.so.6"):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.PyDLL(name)
            library.fegetenv.argtypes = library.fesetenv.argtypes = (ctypes.c_void_p,)
            return library
    return None


_LIBRARY = _load()


@contextlib.contextmanager
def default_float_environment() -> Iterator[None]:
    """Makes this thread round to nearest and keep denormals, and restores the caller's environment afterwards.

    NumPy computes in the thread's environment. Callers may have changed theirs: ``torch.set_flush_denormal``, or any
    library that is compiled with -ffast-math, flushes denormals. Belongs around entries of the package that convert or
    compute, and not around the caller's code. Outside Linux it does nothing. Cost: about a microsecond.
    """
    if _LIBRARY is None:
        yield
        return
    before = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    _LIBRARY.fegetenv(before)
    _LIBRARY.fesetenv(_DEFAULT)
    try:
        yield
    finally:
        _LIBRARY.fesetenv(before)


_BLOCK = 1 << 15  # the intermediate arrays of so many values stay in the cache


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Returns whether this is the bfloat16 that ml_dtypes (JAX, TensorFlow) adds to NumPy."""
    return dtype.name == "bfloat16"


def bits_from_float(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Rounds float16, float32 or float64 values to bfloat16, once, to nearest even; overflow gives ±Inf."""
    return _in_blocks(_bits_from_float, values)


def _bits_from_float(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    with np.errstate(over="ignore", under="ignore"):
        narrow = values.astype(np.float32)
    bits = narrow.view(np.uint32)
    if values.dtype.itemsize > 4:
        # Rounding to float32 and then to bfloat16 would round twice. So the first rounding is to odd: toward zero, with
        # the lowest bit set where the value is not exact. The second one then rounds like a single one.
        finite = np.isfinite(values)
        with np.errstate(invalid="ignore"):
            above = finite & (np.abs(narrow.astype(np.float64)) > np.abs(values))
        bits = bits - above.astype(np.uint32)
        with np.errstate(invalid="ignore"):
            inexact = finite & (bits.view(np.float32).astype(np.float64) != values)
        bits = bits | inexact.astype(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(narrow), quiet, rounded).astype(np.uint16)


def bits_from_integer(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Rounds integers or bools to bfloat16, once, to nearest even; all 64-bit integers are within its range."""
    return _in_blocks(_bits_from_integer, values)


def _bits_from_integer(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    floats = values.astype(np.float64)
    if values.dtype.itemsize > 4:
        # Integers that float64 would round are rounded to odd at 53 bits first, as above.
        odd = ((values >> 11) | ((values & 0x7FF) != 0)).astype(np.float64) * 2.0**11
        floats = np.where(np.abs(floats) > 2.0**53, odd, floats)
    return _bits_from_float(floats)


def _in_blocks(
    convert: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, np.dtype[np.uint16]]], values: np.ndarray[Any, Any]
) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Converts values of any shape block by block: 20 times as fast as in one block that leaves the cache."""
    bits = np.empty(values.shape, np.uint16)
    flat, out = np.asarray(values).reshape(-1), bits.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        out[block] = convert(flat[block])
    return bits


def float_from_bits(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Widens bfloat16 bits, exactly: to ml_dtypes' bfloat16 where that package is there, else to float32."""
    try:
        import ml_dtypes
    except ImportError:
        wide = bits.astype(np.uint32)
        wide <<= np.uint32(16)  # in place: the result of a merge may be large
        return wide.view(np.float32)
    return bits.view(ml_dtypes.bfloat16)
