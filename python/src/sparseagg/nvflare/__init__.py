"""NVFlare: an aggregator of sparse updates, and filters that make updates sparse on both ways.

    recipe = FedAvgRecipe(..., aggregator=SparseAggregator(sparse=["embedding.weight"]))  # the server
    flare.send(sparse_diff(received, trained, sparse=["embedding.weight"]))               # the client's script

The rows of a sparse tensor travel as two arrays, ``name:keys`` and ``name:rows``, which every NVFlare filter, converter
and transport takes. ``add_sparse_filters(recipe, sparse=[...])`` leaves the client's script as it is, and makes the way
down sparse, too. ``SparseFedBuff`` has no rounds: a stream merges the results of sites that are always busy.

The export of a job copies the modules of its components, and what they import by full module name. So these modules
import others as ``from sparseagg._internal.spec import options``; the job uses the sparseagg that is installed where it
runs.
"""

from sparseagg.nvflare.aggregator import SparseAggregator
from sparseagg.nvflare.arrays import MergedRows, sparse_diff
from sparseagg.nvflare.fedbuff import SparseFedBuff
from sparseagg.nvflare.filters import ReceiveChangedRows, SendChangedRows, SendSparseDiff, add_sparse_filters

__all__ = [
    "MergedRows",
    "ReceiveChangedRows",
    "SendChangedRows",
    "SendSparseDiff",
    "SparseAggregator",
    "SparseFedBuff",
    "add_sparse_filters",
    "sparse_diff",
]
