"""OpenFL: a mean of dense tensors that has the same bits in every run.

In an experiment of the Workflow or Task Runner API, name ``ReproducibleMean`` as the aggregation function of a task.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from openfl.interface.aggregation_functions.core import AggregationFunction

import sparseagg as sa
from sparseagg._internal.spec import shapes
from sparseagg._internal.updates import nonfinite

__all__ = ["ReproducibleMean"]

_LOG = logging.getLogger(__name__)


class ReproducibleMean(AggregationFunction):
    """The mean of the collaborators' tensors, weighted as OpenFL weights them.

    Sums are folded in float64, in the order of the collaborators' names, and rounded once to the tensors' dtype.
    Integers and bools give float64, as with OpenFL's ``WeightedAverage``. Thread-safe.

    OpenFL ends the experiment on an error here. So a tensor is left out, with a warning that names collaborator, tensor
    and value, if its shape (but for axes of length 1) or dtype are not those of most collaborators, or a value is not
    finite. A value that most collaborators have alike, such as −inf in a mask, stays as it is.
    """

    def call(
        self,
        local_tensors: Sequence[Any],
        db_iterator: Iterator[Any],
        tensor_name: str,
        fl_round: int,
        tags: tuple[str, ...],
    ) -> np.ndarray[Any, Any]:
        """Returns the mean, in the shape of the tensors.

        Args:
            local_tensors: ``openfl.utilities.LocalTensor``s: name of the collaborator, array and weight.
            db_iterator: tensors of earlier rounds; not used.
            tensor_name: of the tensor.
            fl_round: number of the round; not used.
            tags: of the tensor; not used.

        Raises:
            InvalidArgumentError: there is no tensor that can be taken; the message says why the first one cannot.
            FailedPreconditionError: the weights add up to zero.
        """
        if not local_tensors:
            raise sa.InvalidArgumentError(f"tensor {tensor_name!r} of round {fl_round} has no collaborators")
        tensors = [(str(name), np.asarray(tensor), weight) for name, tensor, weight in local_tensors]
        tensors.sort(key=lambda each: each[0])
        forms = collections.Counter((array.shape, array.dtype) for _, array, _ in tensors)
        (shape, dtype), _ = forms.most_common(1)[0]  # of two as frequent that of the first name
        arrays = {}
        refused: list[str] = []
        for name, array, weight in tensors:
            if name in arrays:
                refused.append(f"collaborator {name!r} comes twice for tensor {tensor_name!r}")
            elif array.dtype != dtype or not shapes.is_like(array.shape, shape):
                refused.append(
                    f"collaborator {name!r}: tensor {tensor_name!r} is {array.dtype} of shape {array.shape}, not "
                    f"{dtype} of shape {shape}"
                )
            else:
                arrays[name] = array.reshape(shape), weight
        mean = _mean(tensor_name, arrays, refused)
        for reason in refused:
            _LOG.warning("round %s: %s; it is left out", fl_round, reason)
        if mean is None:
            raise sa.InvalidArgumentError(refused[0])
        return mean


def _mean(tensor: str, arrays: dict[str, tuple[Any, Any]], refused: list[str]) -> np.ndarray[Any, Any] | None:
    """Returns the mean of arrays of one form, given with their weights; None if none can be taken."""
    first, _ = next(iter(arrays.values()))
    if first.size == 0:
        return np.array(first)
    if first.dtype.kind not in "biuf":
        refused.append(f"collaborator {next(iter(arrays))!r}: tensor {tensor!r} is {first.dtype}, which has no mean")
        return None
    dtype = first.dtype if first.dtype.kind == "f" else np.dtype(np.float64)
    usual = _usual_nonfinite([array for array, _ in arrays.values()])
    specs = [
        sa.TensorSpec(tensor, dtype, num_rows=first.size, layout="dense"),
        *([] if usual is None else [usual.spec(tensor)]),
    ]
    aggregator = sa.Aggregator(sa.RoundSpec(specs, op="mean", weighting="by_weight"))
    for name, (array, weight) in arrays.items():
        try:
            array = array.reshape(-1).astype(dtype, copy=False)
            aggregator.add(name, {tensor: array} if usual is None else usual.update(tensor, array), weight)
        except (sa.SparseaggError, TypeError, ValueError) as error:  # such as words in the place of numbers
            refused.append(str(error).replace("client", "collaborator", 1))
    if not aggregator.num_submissions:
        return None
    merged = aggregator.finish()
    values = np.asarray(merged[tensor].values)
    if usual is not None:
        values = usual.restored(values, merged[tensor + nonfinite.KEPT].indices)
    return values.reshape(first.shape)


def _usual_nonfinite(arrays: list[Any]) -> nonfinite.Nonfinite | None:
    """Returns the values that are not finite, and that most arrays have alike."""
    found = [each for each in map(nonfinite.Nonfinite.of, arrays) if each is not None]
    if not found:
        return None
    positions = np.unique(np.concatenate([each.positions for each in found]))
    values = np.stack([array.reshape(-1)[positions] for array in arrays])
    usual = np.zeros(len(positions), values.dtype)
    for value, alike in ((np.nan, np.isnan(values)), (np.inf, values == np.inf), (-np.inf, values == -np.inf)):
        usual[2 * alike.sum(axis=0) > len(arrays)] = value
    kept = usual != 0
    return nonfinite.Nonfinite(arrays[0].size, positions[kept], usual[kept]) if kept.any() else None
