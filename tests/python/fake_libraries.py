"""Tensors of libraries that are not installed here, as far as the package looks at them."""

from __future__ import annotations

import numpy as np


class FakeTorch:
    """A torch tensor as far as we look at one."""

    def __init__(self, array=None, *, indices=None, values=None, shape=None, csr=None, dtype="torch.float32"):
        self.array, self.shape, self.dtype = array, shape, dtype
        self._sparse, self._csr = (indices, values), csr
        self.is_sparse = indices is not None
        self.layout = "torch.sparse_csr" if csr else ("torch.sparse_coo" if self.is_sparse else "torch.strided")

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return FakeTorch(self.array.astype(np.float32))

    def numpy(self):
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.array

    def _indices(self):
        return FakeTorch(np.asarray(self._sparse[0]))

    def _values(self):
        return FakeTorch(np.asarray(self._sparse[1]))

    def crow_indices(self):
        return FakeTorch(np.asarray(self._csr[0]))

    def col_indices(self):
        return FakeTorch(np.asarray(self._csr[1]))

    def values(self):
        return FakeTorch(np.asarray(self._csr[2]))


class FakeTensorFlow:
    def __init__(self, array):
        self._array = np.asarray(array)

    def numpy(self):
        return self._array
