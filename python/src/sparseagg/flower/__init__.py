"""Flower (``flwr`` from 1.41 on): strategies that merge sparse updates, and a mod for their clients.

    strategy = SparseFedAvg(sparse=["embedding.weight"])   # the ServerApp: in the place of FedAvg()
    app = ClientApp(mods=[sparse_mod])                     # the ClientApp

Clients send the rows that training has changed, and are sent those that other clients have changed. Other tensors
travel and are averaged as with FedAvg, in float64, in an order that no run changes: ten runs give the same bits.

With ``SparseFedAvg(server="host:port")`` clients upload to a sparseagg server while others still train.
``SparseFedBuff`` has no rounds: it keeps clients busy, and a stream merges their updates as they come.
``sparseagg.flower.legacy`` is for strategies of ``flwr.server.strategy``.
"""

from sparseagg.flower.checkpoint import Checkpointed
from sparseagg.flower.fedbuff import SparseFedBuff
from sparseagg.flower.mod import sparse_mod
from sparseagg.flower.strategies import (
    SparseFedAdagrad,
    SparseFedAdam,
    SparseFedAvgM,
    SparseFedMedian,
    SparseFedTrimmedAvg,
    SparseFedYogi,
    SparseKrum,
    SparseMultiKrum,
)
from sparseagg.flower.strategy import SparseFedAvg, SparseMixin

__all__ = [
    "Checkpointed",
    "SparseFedAdagrad",
    "SparseFedAdam",
    "SparseFedAvg",
    "SparseFedAvgM",
    "SparseFedBuff",
    "SparseFedMedian",
    "SparseFedTrimmedAvg",
    "SparseFedYogi",
    "SparseKrum",
    "SparseMixin",
    "SparseMultiKrum",
    "sparse_mod",
]
