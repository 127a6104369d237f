"""Server optimisers that change only the rows that a round's result has.

The step of "Adaptive Federated Optimization" (Reddi et al. 2021, arXiv 2003.00295, Algorithm 2), taken for the rows
that are present. With Δ the merged difference of a row, x the row of the model, m and v its state:

    SGD                                        x ← x + learning_rate·Δ
    FedAvgM     m ← momentum·m + Δ             x ← x + learning_rate·m       (Hsu et al. 2019, arXiv 1909.06335)
    FedAdagrad  v ← v + Δ²                     x ← x + learning_rate·m / (√v + tau)
    FedAdam     v ← beta_2·v + (1 − beta_2)·Δ²                 the same x
    FedYogi     v ← v − (1 − beta_2)·Δ²·sign(v − Δ²)           the same x

with m ← beta_1·m + (1 − beta_1)·Δ in the last three. m and v begin with 0, as in Flower; in the paper, v begins with
tau² or more. Everything is computed in float64; model and state are rounded once a step. The engine computes the steps,
here as for models on a server, whose ``optimizer`` is one of these, too: models.proto has the definition to the bit.
``Assign`` sets rows to Δ.

    optimizer = FedAdam(learning_rate=0.01)
    for result in rounds:
        optimizer.step("embedding", model["embedding"], result["embedding"])

The usual, dense form takes Δ = 0 for an absent row. The row still moves, by the momentum that it has, and its m and v
decay. That form is here for comparison: ``dense=True``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sparseagg._internal.base import extension
from sparseagg._internal.base.arguments import is_number, shown
from sparseagg._internal.base.foreign import Array, default_float_environment, is_bfloat16, to_numpy
from sparseagg._internal.results.result import TensorResult
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import models_pb2

__all__ = ["SGD", "Assign", "FedAdagrad", "FedAdam", "FedAvgM", "FedYogi", "RowOptimizer"]

_BLOCK = 1 << 18  # values that are gathered at a time

Slots = dict[str, Array]  # m and v


@dataclasses.dataclass
class _TensorState:
    """The state of one tensor."""

    powers: tuple[float, float] | None  # of beta_1 and beta_2, after the steps so far
    slots: Slots  # m and v by name, of shape (num_rows, row_width); rows never touched are zeros, which take no memory


class RowOptimizer:
    """A server optimiser, with its state for any number of tensors.

    Pickles, and saves its state in arrays (``state_dict``); a copy continues with the same bits. Not thread-safe.
    Deterministic. Takes steps where the installation has the engine; a model on a server needs none.

    Args:
        learning_rate: of the server.
        dense: move also the rows that the result does not have, as dense optimisers do.
        gradients: the merged rows are gradients, whose negative the step takes.

    Raises:
        InvalidArgumentError: a parameter is no number, or outside its range.
    """

    _KIND: ClassVar[str]  # of OptimizerKind
    _OPTIONS: ClassVar[tuple[str, ...]] = ("learning_rate",)  # attributes that OptimizerSpec has, too

    def __init__(self, *, learning_rate: float, dense: bool = False, gradients: bool = False) -> None:
        self.learning_rate = _checked("learning_rate", learning_rate)
        self.dense = dense
        self.gradients = gradients
        self._states: dict[str, _TensorState] = {}

    @default_float_environment()
    def step(self, name: str, target: Any, delta: Any, alpha: float = 1.0) -> None:
        """Takes one step of one tensor, in place.

        Args:
            name: of the tensor, which has its own state.
            target: the model's tensor: a C-contiguous NumPy array of floats, or a torch tensor on the CPU.
            delta: the merged differences: a ``TensorResult``; or (keys, rows), each key once; or an array of the whole
                tensor. A dense result with counts has the rows whose count is not 0; without counts, it has all rows.
            alpha: factor of ``delta``; −1 for merged gradients.

        Raises:
            InvalidArgumentError: the target cannot be changed, or delta does not fit it. Nothing has changed.
        """
        array = _writable(name, target)
        keys, rows = _rows_of(name, array, delta)
        self._check_width(name, array.size, rows.shape[1])
        table = array.reshape(-1, rows.shape[1])
        if self.dense:
            whole = np.zeros(table.shape)
            whole[slice(None) if keys is None else keys] = rows
            keys, rows = None, whole
        steps, slots = self._begin_step(name, table.shape, table.dtype)
        size = max(1, _BLOCK // table.shape[1])
        for begin in range(0, len(rows), size):
            part = slice(begin, begin + size)
            where = part if keys is None else keys[part]
            table[where] = self._move(steps, slots, where, table[where], rows[part], alpha)

    @default_float_environment()
    def step_rows(self, name: str, num_rows: int, keys: Any, rows: Any, delta: Any, alpha: float = 1.0) -> Array:
        """Takes one step of rows that the caller holds: for tables that are not arrays of this process.

        Args:
            name: of the tensor, which has its own state.
            num_rows: number of rows of the whole table.
            keys: of the rows, each once.
            rows: the model's rows at ``keys``; shape (n, row_width).
            delta: their merged differences, of the same shape.
            alpha: factor of ``delta``; −1 for merged gradients.

        Returns:
            The rows after the step, in the dtype of ``rows``.

        Raises:
            InvalidArgumentError: the optimiser is dense, or keys, rows and delta do not fit. Nothing has changed.
        """
        if self.dense:
            raise InvalidArgumentError("a dense optimiser moves all rows of a tensor: call step")
        keys, rows, delta = (to_numpy(part) for part in (keys, rows, delta))
        keys = _checked_keys(name, keys, num_rows)
        if rows.ndim != 2 or rows.shape != delta.shape or len(rows) != len(keys):
            raise InvalidArgumentError(
                f"tensor {name!r}: {len(keys)} keys, rows of shape {rows.shape} and differences of shape {delta.shape}"
            )
        self._check_width(name, num_rows * rows.shape[1], rows.shape[1])
        steps, slots = self._begin_step(name, (num_rows, rows.shape[1]), rows.dtype)
        return self._move(steps, slots, keys, rows, delta, alpha)

    def state_dict(self) -> dict[str, Array]:
        """Returns a copy of the state as arrays by name, which ``numpy.savez(file, **state)`` writes.

        "kind" is the name of the class. A tensor has "NAME:powers", those of beta_1 and beta_2, and, for its m and v,
        "NAME:m:keys" and "NAME:m:rows": the rows that are not 0, of "NAME:m:num_rows".
        """
        state = {"kind": np.array(type(self).__name__)}
        for name, of_tensor in self._states.items():
            state[f"{name}:powers"] = np.array(of_tensor.powers)
            for slot, table in of_tensor.slots.items():
                keys = np.flatnonzero(table.view(f"u{table.itemsize}").any(axis=1))  # -0.0 is not 0
                parts = {"keys": keys, "rows": table[keys], "num_rows": np.array(len(table))}
                state.update({f"{name}:{slot}:{part}": array for part, array in parts.items()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes a state in the place of its own. With the same arguments, steps then have the same bits.

        Args:
            state: of ``state_dict``, or a file of it as ``numpy.load`` opens it (which needs no ``allow_pickle``).

        Raises:
            InvalidArgumentError: it is no state of an optimiser of this class. Nothing has changed.
        """
        kind = str(state["kind"]) if "kind" in state else "no optimiser"
        if kind != type(self).__name__:
            raise InvalidArgumentError(f"the state is of {kind}, and cannot be loaded into {type(self).__name__}")
        names = [name for name, _, part in (key.rpartition(":") for key in state) if part == "powers"]
        try:
            self._states = {name: _loaded(state, name) for name in names}
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"the state of {kind} is incomplete or damaged: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_states": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.load_state_dict(state["_states"])

    def _to_proto(self) -> models_pb2.OptimizerSpec:
        """Returns the optimizer of a model. Raises ``InvalidArgumentError`` if this one is dense."""
        if self.dense:
            raise InvalidArgumentError("a model's optimizer moves touched rows only, and this one has dense=True")
        return self._spec()

    def _spec(self) -> models_pb2.OptimizerSpec:
        options = {name: getattr(self, name) for name in self._OPTIONS}
        return models_pb2.OptimizerSpec(kind=self._KIND, gradients=self.gradients, **options)

    def _check_width(self, name: str, size: int, row_width: int) -> None:
        state = self._states.get(name)
        for table in state.slots.values() if state else ():
            if table.shape != (size // row_width, row_width):
                raise InvalidArgumentError(
                    f"tensor {name!r}: {size // row_width} rows of {row_width} values, but the steps before had "
                    f"{table.shape[0]} of {table.shape[1]}"
                )

    def _begin_step(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, Slots]:
        """Returns the engine's ``OptimizerSteps`` of the next step of a tensor, and the tensor's state."""
        state = self._states.get(name)
        with extension.errors():
            steps = extension.load().OptimizerSteps(self._spec().SerializeToString(), state and state.powers)
        steps.advance()
        if state is None:
            kept = np.float64 if dtype.itemsize > 4 else np.float32
            state = self._states[name] = _TensorState(None, {slot: np.zeros(shape, kept) for slot in steps.slots})
        state.powers = steps.powers
        return steps, state.slots

    def _move(self, steps: Any, slots: Slots, where: Any, rows: Array, delta: Array, alpha: float) -> Array:
        """Returns some rows after the step, and changes their state, which is at ``where`` in the slots."""
        dtype = "bfloat16" if is_bfloat16(rows.dtype) else rows.dtype.name
        after = np.array(rows, order="C")
        states = {name: np.ascontiguousarray(table[where]) for name, table in slots.items()}
        if delta.dtype not in (np.float32, np.float64):
            delta = delta.astype(np.float64)
        words = after.view(f"u{after.itemsize}")
        delta = np.ascontiguousarray(delta)
        factor = -alpha if self.gradients else alpha
        steps.take(dtype, words, states.get("m"), states.get("v"), delta, factor)
        for name, values in states.items():
            slots[name][where] = values
        return after


class SGD(RowOptimizer):
    """Adds the merged differences, times the learning rate. The optimizer of a model that has none of its own."""

    _KIND = "OPTIMIZER_KIND_SGD"

    def __init__(self, *, learning_rate: float = 1.0, gradients: bool = False) -> None:
        super().__init__(learning_rate=learning_rate, gradients=gradients)


class Assign(RowOptimizer):
    """Sets rows to the merged ones: for models whose coordinator computes the new rows itself."""

    _KIND = "OPTIMIZER_KIND_ASSIGN"
    _OPTIONS = ()

    def __init__(self) -> None:
        super().__init__(learning_rate=0.0)


class FedAvgM(RowOptimizer):
    """Momentum; the defaults are those of Flower but for the momentum, without which this is ``SGD``."""

    _KIND = "OPTIMIZER_KIND_FEDAVGM"
    _OPTIONS = ("learning_rate", "momentum")

    def __init__(self, *, learning_rate: float = 1.0, momentum: float = 0.9, **options: bool) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self.momentum = _checked("momentum", momentum, below=1.0)


class _Adaptive(RowOptimizer):
    """What FedAdagrad, FedAdam and FedYogi have in common."""

    _OPTIONS: ClassVar[tuple[str, ...]] = ("learning_rate", "beta_1", "beta_2", "tau")

    def __init__(
        self, learning_rate: float, beta_1: float, beta_2: float, tau: float, options: dict[str, bool]
    ) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self.beta_1 = _checked("beta_1", beta_1, below=1.0)
        self.beta_2 = _checked("beta_2", beta_2, below=1.0)
        self.tau = _checked("tau", tau)
        if self.tau == 0:
            raise InvalidArgumentError("tau must be a number above 0, got 0: a row of zeros would be divided by 0")


class FedAdagrad(_Adaptive):
    """The only one of the four that, even in its dense form, moves no row that nobody touched (with beta_1 = 0)."""

    _KIND = "OPTIMIZER_KIND_FEDADAGRAD"
    _OPTIONS = ("learning_rate", "beta_1", "tau")

    def __init__(self, *, learning_rate: float = 0.1, beta_1: float = 0.0, tau: float = 1e-3, **options: bool) -> None:
        super().__init__(learning_rate, beta_1, 0.0, tau, options)


class FedAdam(_Adaptive):
    """Adam.

    Args:
        bias_correction: multiply the learning rate by √(1 − beta_2^(t+1)) / (1 − beta_1^(t+1)) in step t = 1, 2, … of a
            tensor, as Flower does; the paper does not. As in other sparse forms of Adam, t counts the steps of the
            tensor, and not how often a row was touched.
    """

    _KIND = "OPTIMIZER_KIND_FEDADAM"
    _OPTIONS = (*_Adaptive._OPTIONS, "bias_correction")

    def __init__(
        self,
        *,
        learning_rate: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        bias_correction: bool = True,
        **options: bool,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, tau, options)
        self.bias_correction = bias_correction


class FedYogi(_Adaptive):
    """Yogi."""

    _KIND = "OPTIMIZER_KIND_FEDYOGI"

    def __init__(
        self,
        *,
        learning_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        **options: bool,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, tau, options)


def _loaded(state: Mapping[str, Any], name: str) -> _TensorState:
    """Returns the state of a tensor. Raises ``KeyError``, ``TypeError`` or ``ValueError`` if it is not complete."""
    beta_1, beta_2 = (float(power) for power in state[f"{name}:powers"])
    slots: Slots = {}
    for slot in ("m", "v"):
        if f"{name}:{slot}:keys" not in state:
            continue
        keys, rows, num_rows = (np.asarray(state[f"{name}:{slot}:{part}"]) for part in ("keys", "rows", "num_rows"))
        keys = _checked_keys(name, keys, int(num_rows))
        if rows.dtype not in (np.float32, np.float64) or rows.ndim != 2 or len(rows) != len(keys):
            raise ValueError(f"tensor {name!r} has {slot} of {rows.dtype} and shape {rows.shape} at {len(keys)} keys")
        slots[slot] = np.zeros((int(num_rows), rows.shape[1]), rows.dtype)
        slots[slot][keys] = rows
    return _TensorState((beta_1, beta_2), slots)


def _checked(what: str, value: Any, below: float = np.inf) -> float:
    if not is_number(value) or not 0 <= value < below:
        raise InvalidArgumentError(f"{what} must be a number from 0 to below {below:g}, got {shown(value)}")
    return float(value)


def _writable(name: str, target: Any) -> Array:
    """Returns the target as an array that shares its memory."""
    try:
        array: Array = target.detach().numpy() if hasattr(target, "detach") else target
    except (TypeError, RuntimeError) as error:  # torch: on a GPU, or bfloat16
        raise InvalidArgumentError(f"tensor {name!r}: the target cannot be changed in place: {error}") from error
    if not isinstance(array, np.ndarray):
        kind = type(array).__name__
        raise InvalidArgumentError(f"tensor {name!r}: the target must be a NumPy array or a torch tensor, got {kind}")
    if array.dtype.kind != "f" and not is_bfloat16(array.dtype):
        raise InvalidArgumentError(f"tensor {name!r}: the target must have floats of 16 to 64 bits, got {array.dtype}")
    if not array.flags.writeable or not array.flags.c_contiguous:
        what = "C-contiguous" if array.flags.writeable else "writable"
        raise InvalidArgumentError(f"tensor {name!r}: the target of shape {array.shape} is not {what}: give a copy")
    return array


def _rows_of(name: str, target: Array, delta: Any) -> tuple[Array | None, Array]:
    """Returns keys and rows, of shape (n, row_width), of differences; keys are None for all rows of the target."""
    row_width = math.prod(target.shape[1:])
    if isinstance(delta, TensorResult):
        rows = delta.as_update()
        keys, rows = rows if isinstance(rows, tuple) else (None, rows)
        if rows is None:
            raise InvalidArgumentError(f"tensor {name!r}: a union has no values")
        if delta.num_rows and delta.num_rows * delta.row_width != target.size:
            raise InvalidArgumentError(
                f"tensor {name!r}: a result of num_rows {delta.num_rows} × row_width {delta.row_width} does not fit "
                f"a target of shape {target.shape}"
            )
        rows = np.asarray(rows).reshape(-1, delta.row_width)
        if delta.layout == "dense" and delta.counts is not None:
            present = np.flatnonzero(delta.counts)
            keys, rows = (present if keys is None else keys[present]), rows[present]
        return (None if keys is None else _checked_keys(name, keys, target.size // delta.row_width)), rows
    if not isinstance(delta, tuple):
        rows = to_numpy(delta)
        if rows.shape != target.shape:
            raise InvalidArgumentError(
                f"tensor {name!r}: differences of shape {rows.shape} do not fit a target of shape {target.shape}"
            )
        return None, rows.reshape(-1, max(1, row_width))
    keys, rows = (to_numpy(part) for part in delta)
    if rows.size != len(keys) * row_width or (rows.ndim > 1 and len(rows) != len(keys)):
        raise InvalidArgumentError(
            f"tensor {name!r}: rows of shape {rows.shape} do not go with {len(keys)} keys of a target of shape "
            f"{target.shape}"
        )
    return _checked_keys(name, keys, target.size // row_width if row_width else 0), rows.reshape(
        len(keys), max(1, row_width)
    )


def _checked_keys(name: str, keys: Array, num_rows: int) -> Array:
    """Returns keys as indices; refuses those outside the table, and those given twice."""
    if keys.ndim != 1 or (keys.size and keys.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"tensor {name!r}: keys must be integers in one dimension, got {keys.dtype} of {keys.shape}"
        )
    outside = (keys < 0) | (keys >= num_rows)
    if outside.any():
        at = int(np.argmax(outside))
        raise InvalidArgumentError(f"tensor {name!r}: key {keys[at]} at position {at} is not in [0, {num_rows})")
    indices: Array = keys.astype(np.int64)
    if not (keys[1:] > keys[:-1]).all():
        ordered = np.sort(indices)
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(repeated):
            raise InvalidArgumentError(f"tensor {name!r}: key {repeated[0]} is given twice; merge first")
    return indices
