"""Results as the extension gives them, as the package's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparseagg._internal.base import bfloat16
from sparseagg._internal.results.device_result import DeviceTensorResult
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec

if TYPE_CHECKING:
    from sparseagg._engine import RawDeviceResult, RawResult

__all__ = ["device_result", "tensor_result"]


def tensor_result(spec: RoundSpec, tensor: TensorSpec, raw: RawResult) -> TensorResult:
    """Returns a tensor's result as the extension gives it; its arrays are views of the engine's memory."""
    columns = _columns(spec, tensor, raw)
    columns["moments"] = raw["moments"] if spec.aggregation_of(tensor).return_moments else None
    if raw["values"] is not None and raw["dtype"] == "bfloat16":
        columns["values"] = bfloat16.float_from_bits(raw["values"])
    return TensorResult(**columns)


def device_result(spec: RoundSpec, tensor: TensorSpec, raw: RawDeviceResult) -> DeviceTensorResult:
    """The same for a result in the memory of a GPU."""
    return DeviceTensorResult(**_columns(spec, tensor, raw))


def _columns(spec: RoundSpec, tensor: TensorSpec, raw: RawResult | RawDeviceResult) -> dict[str, Any]:
    how = spec.aggregation_of(tensor)
    return {
        "keys": raw["keys"],
        "name": tensor.name,
        "layout": raw["layout"],
        "dtype": raw["dtype"],
        "num_rows": tensor.num_rows,
        "row_width": tensor.row_width,
        "values": raw["values"],
        "counts": raw["counts"] if how.return_counts or how.op == "union" else None,
        "weights": raw["weights"] if how.return_weights else None,
        "fixed_point_shift": raw["fixed_point_shift"],
        "fill": how.fill,
        "shape": tensor.shape,
    }
