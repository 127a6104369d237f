"""OpenFL: a mean of dense tensors that has the same bits in every run.

In an experiment of the Workflow or Task Runner API, name ``ReproducibleMean`` as the aggregation function of a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from openfl.interface.aggregation_functions.core import AggregationFunction

import sparseagg as sa

__all__ = ["ReproducibleMean"]


class ReproducibleMean(AggregationFunction):
    """The mean of the collaborators' tensors, weighted as OpenFL weights them.

    Sums are folded in float64, in the order of the collaborators' names, and rounded once to the tensors' dtype.
    Integers and bools give float64, as with OpenFL's ``WeightedAverage``. Thread-safe.
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
            InvalidArgument: the tensors differ in shape or dtype, or a value is not finite; the message names
            collaborator and tensor.
            FailedPrecondition: the weights add up to zero.
        """
        if not local_tensors:
            raise sa.InvalidArgument(f"tensor {tensor_name!r} of round {fl_round} has no collaborators")
        first = np.asarray(local_tensors[0].tensor)
        updates = {}
        for collaborator, tensor, weight in local_tensors:
            array = np.asarray(tensor)
            if (array.shape, array.dtype) != (first.shape, first.dtype):
                raise sa.InvalidArgument(
                    f"collaborator {collaborator!r}: tensor {tensor_name!r} is {array.dtype} of shape {array.shape}, "
                    f"not {first.dtype} of shape {first.shape}"
                )
            if collaborator in updates:
                raise sa.InvalidArgument(f"collaborator {collaborator!r} comes twice for tensor {tensor_name!r}")
            array = array if array.dtype.kind == "f" else array.astype(np.float64)
            updates[collaborator] = {tensor_name: array}, weight
        if first.size == 0:
            return first.copy()
        dtype = first.dtype if first.dtype.kind == "f" else np.float64
        tensors = [sa.TensorSpec(tensor_name, dtype, first.size, layout="dense")]
        merged = sa.aggregate(updates, sa.RoundSpec(tensors, op="mean", weighting="by_weight"))[tensor_name]
        return np.asarray(merged.values).reshape(first.shape)
