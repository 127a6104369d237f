"""Arrays of a GPU's libraries, as far as the package looks at them. Their memory is the host's, which the device of the
test plug-in reads.

An array is written only when it is lent, as by a kernel that was still running. Its memory is overwritten as soon as it
is given back, so that a merge that still reads it gives wrong bits.
"""

from __future__ import annotations

import ctypes
import dataclasses
import threading
import weakref
from typing import Any, ClassVar

import numpy as np
import sparseagg as sa

_CODES = {"i": 0, "u": 1, "f": 2, "V": 4, "c": 5, "b": 6}
_POISON = 0xA5

# All that C++ may still use: memory that is read too late is no crash, nor is a deleter that is called too late.
_KEPT: list[Any] = []


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("manager_context", ctypes.c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype = ctypes.c_int
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]


@dataclasses.dataclass
class Library:
    """What has been lent and given back.

    Attributes:
        device: of its arrays.
        kind: of memory, in DLPack; 2 is CUDA's.
        version: of DLPack; None: the one without versions.
        streams: that arrays were lent for.
        returned: how often each loan was given back.
        threads: on which it was.
        host_copies: how often somebody has asked for an array in host memory.
        device_copies: how often somebody has copied an array on the device.
    """

    device: int = 0
    kind: int = 2
    version: int | None = 1
    streams: list[Any] = dataclasses.field(default_factory=list)
    returned: list[int] = dataclasses.field(default_factory=list)
    threads: set[int] = dataclasses.field(default_factory=set)
    host_copies: int = 0
    device_copies: int = 0
    _lock: Any = dataclasses.field(default_factory=threading.RLock, repr=False)  # a collection may give back meanwhile

    @property
    def lent(self) -> int:
        return len(self.returned)

    @property
    def all_are_back(self) -> bool:
        return all(times == 1 for times in self.returned)

    def lend(self) -> int:
        """Returns the number of a new loan."""
        with self._lock:
            self.returned.append(0)
            return len(self.returned) - 1

    def take_back(self, loan: int, memory: np.ndarray) -> None:
        with self._lock:
            self.returned[loan] += 1
        self.threads.add(threading.get_ident())
        memory.view(np.uint8)[...] = _POISON

    def array(self, contents: Any) -> DlpackArray:
        return DlpackArray(contents, self)

    def tensor(self, contents: Any) -> TorchTensor:
        return TorchTensor(contents, self)


def _memory_like(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns poisoned memory, and an array in it of the strides of another array, one item behind its beginning."""
    spans = [stride * (size - 1) for stride, size in zip(array.strides, array.shape)]
    memory = np.full(2 * array.itemsize + (sum(spans) if array.size else 0), _POISON, np.uint8)
    return memory, np.ndarray(array.shape, array.dtype, memory.data, array.itemsize, array.strides)


class DlpackArray:
    """An array that speaks DLPack, such as CuPy's."""

    def __init__(self, contents: Any, library: Library) -> None:
        self._contents, self._library = np.asarray(contents), library

    @property
    def shape(self) -> tuple[int, ...]:
        return self._contents.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._library.kind, self._library.device

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        library = self._library
        if library.version is None and options:
            raise TypeError(f"unexpected keyword arguments {list(options)}")
        if stream is None:  # NumPy asks so, and cannot read it
            library.host_copies += 1
            raise BufferError("it is not in host memory")
        library.streams.append(stream)
        name, managed, deleter = self._lend(library.version)

        def destroy(capsule: int) -> None:
            if _is_valid(capsule, name):  # nobody has taken the tensor
                deleter(_pointer_of(capsule, name))

        destructor = _Destructor(destroy)
        _KEPT.append((destructor, name))
        return _new_capsule(ctypes.addressof(managed), name, destructor)

    def _lend(self, version: int | None) -> tuple[bytes, Any, Any]:
        library, contents = self._library, self._contents
        memory, array = _memory_like(contents)
        shape = (ctypes.c_int64 * contents.ndim)(*contents.shape)
        strides = (ctypes.c_int64 * contents.ndim)(*(stride // contents.itemsize for stride in contents.strides))
        code = _CODES[contents.dtype.kind]
        tensor = _Tensor(memory.ctypes.data, _Device(library.kind, library.device), contents.ndim)
        tensor.dtype = _DataType(code, 8 * contents.itemsize, 1)
        tensor.shape, tensor.strides, tensor.byte_offset = shape, strides, contents.itemsize
        # Where the kernel would have written, had the consumer waited for its stream.
        array[...] = contents
        loan = library.lend()
        deleter = _Deleter(lambda _: library.take_back(loan, memory))
        name: bytes
        managed: Any
        if version is None:
            name, managed = b"dltensor", _Managed(tensor, None, deleter)
        else:
            name, managed = b"dltensor_versioned", _Versioned(version, 0, None, deleter, 0, tensor)
        _KEPT.append((memory, shape, strides, managed, deleter))
        return name, managed, deleter


class TorchTensor(DlpackArray):
    """A torch tensor on a GPU."""

    layout, is_sparse = "torch.strided", False

    @property
    def dtype(self) -> str:
        return f"torch.{self._contents.dtype}"

    def detach(self) -> TorchTensor:
        return self

    def cpu(self) -> TorchTensor:
        self._library.host_copies += 1
        return TorchTensor(self._contents, Library(kind=1))

    def numpy(self) -> np.ndarray:
        return self._contents

    def clone(self) -> TorchTensor:
        self._library.device_copies += 1
        return self._of(self._contents.copy())

    def contiguous(self) -> TorchTensor:
        return self._of(np.ascontiguousarray(self._contents))

    def any(self) -> bool:
        return bool(self._contents.any())

    def __len__(self) -> int:
        return len(self._contents)

    def __getitem__(self, index: Any) -> TorchTensor:
        return self._of(self._contents[index])

    def __lt__(self, other: Any) -> TorchTensor:
        return self._of(self._contents < other)

    def __ge__(self, other: Any) -> TorchTensor:
        return self._of(self._contents >= other)

    def __or__(self, other: TorchTensor) -> TorchTensor:
        return self._of(self._contents | other._contents)

    def __mul__(self, other: int) -> TorchTensor:
        return self._of(self._contents * other)

    def __add__(self, other: TorchTensor) -> TorchTensor:
        return self._of(self._contents + other._contents)

    def _of(self, contents: np.ndarray) -> TorchTensor:
        return TorchTensor(contents, self._library)


_LendFunction = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
_StreamFunction = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class _ExchangeApi(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("earlier", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("lend", _LendFunction),
        ("to_array", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
        ("work_stream", _StreamFunction),
    ]


def exchange_api(major: int = 1, earlier: int = 0) -> tuple[_ExchangeApi, Any]:
    """Returns DLPack's C functions of an ``ExchangeTensor``, and the capsule for its type."""

    def lend(array: Any, out: Any) -> int:
        if array.fails:
            return -1
        out[0] = ctypes.addressof(array._lend(array._library.version or 1)[1])
        return 0

    def work_stream(kind: int, device: int, out: Any) -> int:
        ExchangeTensor.asked.append((kind, device))
        out[0] = ExchangeTensor.stream
        return 0

    api = _ExchangeApi(major, 3, earlier, None, _LendFunction(lend), None, None, _StreamFunction(work_stream))
    _KEPT.append(api)
    return api, _new_capsule(ctypes.addressof(api), b"dlpack_exchange_api", _Destructor())


class ExchangeTensor(TorchTensor):
    """A tensor of a torch that has the C functions of DLPack 1.3.

    Attributes:
        stream: that the library works on.
        asked: for which kinds and numbers of devices it was asked for its stream.
        fails: whether it cannot be lent.
    """

    __dlpack_c_exchange_api__ = exchange_api()[1]
    stream: int | None = None
    asked: ClassVar[list[tuple[int, int]]] = []
    fails = False

    def _of(self, contents: np.ndarray) -> ExchangeTensor:
        return ExchangeTensor(contents, self._library)


class TorchCoo:
    """A sparse COO tensor of torch on a GPU, perhaps with dense axes."""

    layout, is_sparse = "torch.sparse_coo", True

    def __init__(self, indices: Any, values: Any, shape: tuple[int, ...], library: Library) -> None:
        self._parts = np.asarray(indices), np.asarray(values)
        self.shape, self._library = shape, library

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._library.kind, self._library.device

    def detach(self) -> TorchCoo:
        return self

    def cpu(self) -> TorchCoo:
        self._library.host_copies += 1
        return TorchCoo(*self._parts, self.shape, Library(kind=1))

    def _indices(self) -> TorchTensor:
        return TorchTensor(self._parts[0], self._library)

    def _values(self) -> TorchTensor:
        return TorchTensor(self._parts[1], self._library)


class InterfaceArray:
    """An array that has only the CUDA Array Interface, such as Numba's. It is written where it is made."""

    def __init__(self, contents: Any, library: Library, stream: int | None = None) -> None:
        contents = np.asarray(contents)
        memory, self._array = _memory_like(contents)
        self._array[...] = contents
        self._stream = stream
        _KEPT.append(memory)
        weakref.finalize(self, library.take_back, library.lend(), memory)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = None if self._array.flags.c_contiguous else self._array.strides
        return {
            "shape": self._array.shape,
            "typestr": self._array.dtype.str,
            "data": (self._array.ctypes.data if self._array.size else 0, False),
            "strides": strides,
            "version": 3,
            "stream": self._stream,
        }


def taken(array: Any, *, version: tuple[int, int] | None = (1, 0)) -> np.ndarray:
    """Returns a copy of an array that is lent by DLPack, after giving it back. 16-bit floats of bfloat16 are uint16."""
    options = {} if version is None else {"max_version": version}
    capsule = array.__dlpack__(stream=1, **options)
    name = b"dltensor" if version is None else b"dltensor_versioned"
    managed = (_Managed if version is None else _Versioned).from_address(_pointer_of(id(capsule), name))
    assert _rename(capsule, b"used_" + name) == 0
    tensor = managed.tensor
    shape = tuple(tensor.shape[d] for d in range(tensor.ndim))
    dtype = np.dtype(f"{'iufcu'[tensor.dtype.code]}{tensor.dtype.bits // 8}")
    size = int(np.prod(shape)) * dtype.itemsize
    contents = ctypes.string_at(tensor.data, size) if size else b""
    copy = np.frombuffer(contents, dtype).reshape(shape)
    assert tuple(tensor.strides[d] * dtype.itemsize for d in range(tensor.ndim)) == copy.strides or not size
    managed.deleter(ctypes.addressof(managed))
    return copy


def drop_released() -> None:
    """Gives back what the engine has released on threads of its own; the next call of any aggregator would."""
    sa.Aggregator(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1)]))
