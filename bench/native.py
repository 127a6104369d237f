"""The native side of the comparison, bench/merge/native.cc: workloads, memory speeds, native contestants."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

P = ctypes.c_void_p
U64 = ctypes.c_uint64
TEXT = ctypes.c_char_p

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "sab_error": (TEXT, []),
    "sab_workload": (P, [TEXT, U64, ctypes.c_int]),
    "sab_free_workload": (None, [P]),
    "sab_description": (TEXT, [P]),
    "sab_num_rows": (U64, [P]),
    "sab_row_width": (ctypes.c_uint32, [P]),
    "sab_clients": (U64, [P]),
    "sab_key_bytes": (ctypes.c_int, [P]),
    "sab_client": (U64, [P, U64, ctypes.POINTER(P), ctypes.POINTER(P)]),
    "sab_run": (P, [P, TEXT, ctypes.c_int, ctypes.c_int, ctypes.c_int]),
    "sab_free_output": (None, [P]),
    "sab_rows": (U64, [P, ctypes.POINTER(P), ctypes.POINTER(P)]),
    "sab_engine_values": (U64, [P, ctypes.POINTER(P)]),
    "sab_difference": (TEXT, [P, P]),
    "sab_memory": (None, [ctypes.c_int] + [ctypes.POINTER(ctypes.c_double)] * 3),
    "sab_release_memory": (None, []),
    "sab_peak_bytes": (U64, []),
    "sab_reset_peak": (ctypes.c_int, []),
    "sab_cpu_name": (None, [TEXT, U64]),
}


def load(path: str | None = None) -> ctypes.CDLL:
    """Loads the library named by SPARSEAGG_BENCH_NATIVE."""
    library = ctypes.CDLL(path or os.environ["SPARSEAGG_BENCH_NATIVE"])
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def view(address: Any, count: int, dtype: Any) -> np.ndarray:
    """An array at an address, which somebody else keeps alive."""
    if count == 0:
        return np.empty(0, dtype)
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


class Workload:
    """One of merge_bench's workloads; `clients` are its very arrays: (keys, rows) of each client."""

    def __init__(self, library: ctypes.CDLL, name: str, seed: int, divide_clients: int) -> None:
        self._library = library
        self.handle = library.sab_workload(name.encode(), seed, divide_clients)
        if not self.handle:
            raise RuntimeError(library.sab_error().decode())
        self.name = name
        self.description = library.sab_description(self.handle).decode()
        self.num_rows = int(library.sab_num_rows(self.handle))
        self.row_width = int(library.sab_row_width(self.handle))
        self.clients = [self._client(i) for i in range(library.sab_clients(self.handle))]

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library.sab_free_workload(self.handle)

    def _client(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        keys, values = P(), P()
        count = self._library.sab_client(self.handle, index, ctypes.byref(keys), ctypes.byref(values))
        dtype = np.uint32 if self._library.sab_key_bytes(self.handle) == 4 else np.uint64
        rows = view(values.value, count * self.row_width, np.float32)
        return view(keys.value, count, dtype), rows if self.row_width == 1 else rows.reshape(count, self.row_width)


def memory_speed(library: ctypes.CDLL, threads: int) -> dict[str, float]:
    """Bytes a second that this many threads read, write and copy."""
    speeds = [ctypes.c_double() for _ in range(3)]
    library.sab_memory(threads, *map(ctypes.byref, speeds))
    return dict(zip(("read", "write", "memcpy"), (speed.value for speed in speeds)))


def cpu_name(library: ctypes.CDLL) -> str:
    """The processor's name, as the system gives it."""
    text = ctypes.create_string_buffer(256)
    library.sab_cpu_name(text, len(text))
    return text.value.decode()
