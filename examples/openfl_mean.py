"""OpenFL: a mean of dense tensors that has the same bits in every run.

An ``AggregationFunction`` of OpenFL 1.9 for the Workflow and Task Runner API. With this file beside the plan:

    tasks:
      train:
        aggregation_type:
          template: openfl_mean.ReproducibleMean

The mean is weighted as OpenFL weights it, folded in float64 in the order of the collaborators' names, and rounded once.
OpenFL's own mean depends on the order in which the collaborators answer.
"""

from __future__ import annotations

import numpy as np
import sparseagg as sa
from openfl.interface.aggregation_functions.core import AggregationFunction


class ReproducibleMean(AggregationFunction):
    """The weighted mean of the collaborators' tensors; of integers and bools in float64."""

    def call(self, local_tensors, db_iterator, tensor_name, fl_round, tags) -> np.ndarray:
        """Returns the mean of ``local_tensors``, which are (collaborator, array, weight), in the shape of the arrays.

        Raises:
            SparseaggError: an array has another shape or a value that is not finite; the message names its collaborator
                and ends the experiment.
        """
        first = np.asarray(local_tensors[0].tensor)
        if first.size == 0:
            return first
        dtype = first.dtype if first.dtype.kind == "f" else np.dtype(np.float64)
        tensor = sa.TensorSpec(tensor_name, dtype, shape=first.shape, layout="dense")
        updates = {
            str(name): ({tensor_name: np.asarray(array).astype(dtype, copy=False)}, weight)
            for name, array, weight in local_tensors
        }
        merged = sa.aggregate(updates, sa.RoundSpec([tensor], op="mean", weighting="by_weight"))
        return merged[tensor_name].dense()
