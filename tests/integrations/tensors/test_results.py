"""Results as the tensors of other libraries, and added to those of torch. Tests of missing libraries are skipped."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.base.foreign import bits_from_float
from sparseagg._internal.updates.arrays import tensor_data

SEED = 26
# Shape, and row_width: rows of one axis, of several, of none; single elements; one key.
SHAPES = [((12,), None), ((12, 4), None), ((12, 2, 2), None), ((12, 4), 1), ((3, 4, 2), 2), ((1, 5), None)]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64"]


def merged(shape: tuple, row_width: int | None, dtype: str = "float32", layout: str = "sparse") -> sa.TensorResult:
    spec = sa.TensorSpec("v", dtype, shape=shape, row_width=row_width)
    rng = np.random.default_rng(SEED)
    keys = np.arange(spec.num_rows)
    if layout == "sparse" and spec.num_rows > 1:
        keys = np.flatnonzero(rng.random(spec.num_rows) < 0.5)
    rows = rng.integers(1, 100, (len(keys), spec.row_width)).astype(np.float32)
    update = bits_from_float(rows) if dtype == "bfloat16" else rows.astype(dtype)
    return sa.aggregate([(keys, update)], sa.RoundSpec([spec], result_layout=layout))["v"]


def wide(array: Any) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def check_update(made: Any, result: sa.TensorResult, shape: tuple, row_width: int | None) -> None:
    """Checks that what was made of a result is an update with the same rows."""
    data = tensor_data(sa.TensorSpec("v", "float64", shape=shape, row_width=row_width), made)
    if data.keys is None:
        assert np.array_equal(data.values.reshape(shape), wide(result.dense()))
        return
    assert data.keys.tolist() == result.keys.tolist()
    assert np.array_equal(data.values.reshape(-1), wide(result.values).reshape(-1))


@pytest.mark.parametrize(("shape", "row_width"), SHAPES)
@pytest.mark.parametrize("layout", ["sparse", "dense"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_torch(shape: tuple, row_width: int | None, layout: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    result = merged(shape, row_width, dtype, layout)
    made = result.to_torch()
    assert (tuple(made.shape), str(made.dtype), made.is_sparse) == (shape, f"torch.{dtype}", layout == "sparse")
    whole = made.to_dense() if layout == "sparse" else made
    assert np.array_equal(wide(whole.to(torch.float64)), wide(result.dense()))
    check_update(made, result, shape, row_width)


@pytest.mark.parametrize(("shape", "row_width"), SHAPES)
@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_to_jax(shape: tuple, row_width: int | None, layout: str) -> None:
    jax = pytest.importorskip("jax")
    result = merged(shape, row_width, layout=layout)
    made = result.to_jax()
    assert (made.shape, made.dtype) == (shape, np.float32)
    whole = made.todense() if layout == "sparse" else made
    assert np.array_equal(wide(whole), wide(result.dense()))
    check_update(made, result, shape, row_width)
    assert merged(shape, row_width, "bfloat16", layout).to_jax().dtype == jax.numpy.bfloat16
    with pytest.raises(sa.errors.FailedPreconditionError, match="tensor 'v' is float64, which JAX would make float32"):
        merged(shape, row_width, "float64", layout).to_jax()


def test_to_jax_of_indices_beyond_32_bits_is_refused() -> None:
    pytest.importorskip("jax")
    result = dataclasses.replace(merged((12, 4), None), num_rows=1 << 31, shape=(1 << 31, 4))
    with pytest.raises(sa.errors.FailedPreconditionError, match=r"tensor 'v' of shape .* has indices beyond int32"):
        result.to_jax()


@pytest.mark.parametrize(("shape", "row_width"), SHAPES)
@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_to_tf(shape: tuple, row_width: int | None, layout: str) -> None:
    tf = pytest.importorskip("tensorflow")
    result = merged(shape, row_width, layout=layout)
    if row_width == 2 and layout == "sparse":
        with pytest.raises(sa.errors.FailedPreconditionError, match="has 2 axes of keys before its rows"):
            result.to_tf()
        return
    made = result.to_tf()
    assert tuple(made.shape) == shape
    if isinstance(made, tf.SparseTensor):
        assert row_width == 1
        whole = tf.sparse.to_dense(made)
    else:
        whole = tf.convert_to_tensor(made)
    assert np.array_equal(wide(whole), wide(result.dense()))
    check_update(made, result, shape, row_width)


@pytest.mark.parametrize(("shape", "row_width"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_pandas(shape: tuple, row_width: int | None, dtype: str) -> None:
    pytest.importorskip("pandas")
    result = merged(shape, row_width, dtype)
    made = result.to_pandas()
    assert (made.index.name, made.index.tolist()) == ("key", result.keys.tolist())
    assert list(made.columns) == (["value"] if result.row_width == 1 else list(range(result.row_width)))
    check_update(made, result, shape, row_width)
    if dtype in ("float32", "float64", "int64"):
        assert np.shares_memory(made.to_numpy(), result.values)


@pytest.mark.parametrize(("shape", "row_width"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_arrow(shape: tuple, row_width: int | None, dtype: str) -> None:
    pytest.importorskip("pyarrow")
    result = merged(shape, row_width, dtype)
    made = result.to_arrow()
    assert made.column_names == ["key", "value"]
    assert made.column("key").to_pylist() == result.keys.tolist()
    check_update(made, result, shape, row_width)
    check_update(made.to_batches()[0], result, shape, row_width)
    key, value = (made.column(name).chunk(0) for name in made.column_names)
    assert key.buffers()[1].address == result.keys.ctypes.data
    if dtype in ("float32", "float64", "int64"):
        assert value.buffers()[-1].address == result.values.ctypes.data


@pytest.mark.parametrize(("shape", "row_width"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES[:-1])
@pytest.mark.parametrize("is_contiguous", [True, False])
def test_add_to_torch(shape: tuple, row_width: int | None, dtype: str, is_contiguous: bool) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(SEED)
    result = merged(shape, row_width)
    start = torch.randn(shape).to(getattr(torch, dtype))
    target = torch.zeros([size if is_contiguous else 2 * size for size in shape], dtype=start.dtype)
    target = target[tuple(slice(size) for size in shape)].copy_(start)
    parameter = torch.nn.Parameter(target)
    result.add_to(parameter, 0.25)
    # Of 16 bits, torch rounds float64 twice, by way of float32. NumPy does so once.
    exact = start.double().numpy() + 0.25 * wide(result.dense())
    rounded = bits_from_float(exact) if dtype == "bfloat16" else exact.astype(dtype)
    found = parameter.detach()
    found = found.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else found.numpy()
    touched = wide(merged(shape, row_width).dense(fill=-1)) != -1
    assert np.array_equal(found[touched], rounded[touched]), f"seed {SEED}"
    assert torch.equal(parameter.detach()[torch.from_numpy(~touched)], start[torch.from_numpy(~touched)])


def test_add_to_other_torch_tensors_says_why() -> None:
    torch = pytest.importorskip("torch")
    result = merged((12,), None)
    for target, text in [
        (torch.zeros(12, dtype=torch.bool), "rows cannot be added in place: unknown dtype torch.bool"),
        (torch.zeros(12).to_sparse(), "rows cannot be added in place: the tensor's layout is torch.sparse_coo"),
        (torch.zeros(12, 1), r"tensor 'v' has shape \(12,\), and the array to add to has \(12, 1\)"),
        (torch.zeros(12, dtype=torch.int64), "1.0 × float32 does not add to int64"),
    ]:
        with pytest.raises(sa.InvalidArgumentError, match=text):
            result.add_to(target)


def test_tied_weights_are_one_tensor_and_added_to_once() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(SEED)

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.head = torch.nn.Embedding(12, 4), torch.nn.Linear(4, 12, bias=False)
            self.head.weight = self.wte.weight

    module = Tied()
    before = module.wte.weight.detach().clone()
    for name in ("wte.weight", "head.weight"):
        assert [(t.name, t.layout) for t in sa.RoundSpec.like(module, name).tensors] == [("wte.weight", "sparse")]
        spec = sa.RoundSpec.like(module.state_dict(), name)
        assert [(t.name, t.layout) for t in spec.tensors] == [("wte.weight", "sparse"), ("head.weight", "sparse")]
    module.head(module.wte(torch.tensor([3, 7]))).sum().backward()
    merged = sa.aggregate([module], spec)
    assert list(merged) == ["wte.weight", "head.weight"]
    for model in (module, module.state_dict()):
        merged.add_to(model, -0.5)
    assert torch.allclose(module.wte.weight, before - module.wte.weight.grad)
    rows = ([3], np.ones((1, 4)))
    different = sa.aggregate([{"wte.weight": rows, "head.weight": ([3], np.zeros((1, 4)) - 1)}], spec)
    with pytest.raises(sa.InvalidArgumentError, match=r"'wte.weight' and 'head.weight' are one array of the model"):
        different.add_to(module)
    alone = sa.aggregate([{"wte.weight": rows}], spec)
    alone.add_to(module.state_dict())
    assert torch.allclose(module.head.weight[3], before[3] - module.wte.weight.grad[3] + 1)
