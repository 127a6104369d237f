"""The floating-point environment in which the package converts, rounds and adds."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

__all__ = ["default_float_environment"]

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
