"""The merged tensors of a round, in the memory of a GPU."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sparseagg._internal.results import forms as result_forms
from sparseagg._internal.spec.shapes import shape_of_rows

if TYPE_CHECKING:
    from sparseagg._engine import DeviceColumn

__all__ = ["DeviceTensorResult"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DeviceTensorResult:
    """One tensor's result in the memory of the GPU that merged it, with the bits of ``TensorResult``.

    Each column is an array for DLPack (``torch.from_dlpack``, ``cupy.from_dlpack``, ``jax.dlpack.from_dlpack``) and,
    but for bfloat16, for version 3 of the CUDA Array Interface (Numba). It is lent, not copied, and complete, so that
    any stream may read it. The memory is given back when the columns and all arrays that were made of them are gone;
    then the GPU has to finish what it is doing.

    Attributes:
        name, layout, dtype, num_rows, row_width, fixed_point_shift, fill, shape: as of ``TensorResult``.
        keys: shape (n,), ascending and unique; uint32 where num_rows allows, else uint64. None for a dense result,
            which has all keys.
        values: shape (n,) if ``row_width`` is 1, else (n, row_width). None for a union.
        counts: uint32, shape (n,); None without ``return_counts``.
        weights: float64, shape (n,); None without ``return_weights``.
    """

    name: str
    layout: str
    dtype: str
    num_rows: int
    row_width: int
    keys: DeviceColumn | None
    values: DeviceColumn | None
    counts: DeviceColumn | None
    weights: DeviceColumn | None
    fixed_point_shift: int | None
    fill: float
    shape: tuple[int, ...] | None

    def __post_init__(self) -> None:
        if self.shape is None:
            object.__setattr__(self, "shape", shape_of_rows(self.num_rows, self.row_width))

    def __len__(self) -> int:
        return self.num_rows if self.keys is None else self.keys.shape[0]

    def __repr__(self) -> str:
        return f"DeviceTensorResult({self.name!r}, {self.layout}, {self.dtype}, {len(self)} rows of {self.row_width})"

    def to_torch(self) -> Any:
        """Returns a torch tensor on the GPU: of all values if the result is dense, else a coalesced COO tensor.

        It has the tensor's ``shape``. The axes that make the keys are sparse, and those of a row are dense. Values are
        not copied; keys are, into int64.

        Raises:
            FailedPreconditionError: there are no values (union), or num_rows is 0 or does not fit int64.
        """
        return result_forms.device_to_torch(self)
