"""Client of the sparseagg server, which merges the sparse updates of many clients into one sparse vector per tensor.

    import sparseagg as sa

    with sa.Client("localhost:8001") as client:
        spec = sa.RoundSpec([sa.TensorSpec("embedding", dtype="float32", shape=(50_000, 16))], op="mean")
        rnd = client.create_round(spec)
        rnd.submit("client-7", {"embedding": (keys, rows)})
        result = rnd.finish()
        result["embedding"].keys, result["embedding"].values

``Client(":memory:")`` has rounds in this process, without a server. ``Client(":local:")`` starts a server of its own.
``sparseagg.aggregate`` and ``sparseagg.Aggregator`` merge in this process, without rounds.
``sparseagg.release_memory`` returns the memory that these keep for the next merge. ``sparseagg.TopK`` chooses the
largest parts of a dense update. ``sparseagg.worker`` fetches and does tasks of coordinators. ``sparseagg.aio`` has the
client for asyncio, ``sparseagg.errors`` all error classes.
"""

from sparseagg import aio, errors
from sparseagg.client.blocking_client import Client, open_round
from sparseagg.client.blocking_round import Round
from sparseagg.client.blocking_worker import worker
from sparseagg.client.published_model import PublishedModel
from sparseagg.client.retry import RetryPolicy
from sparseagg.credentials import TLS
from sparseagg.errors import InvalidArgumentError, RoundClosedError, RoundFailedError, SparseaggError
from sparseagg.info import Refusal, RoundInfo, ServerInfo, ServerLimits, StageTime, Submission, Timeline
from sparseagg.local.engine import Aggregator, aggregate, release_memory
from sparseagg.local.server import Server
from sparseagg.result import Result, TensorResult
from sparseagg.spec import RoundSpec, TensorSpec
from sparseagg.tasks import NewTask, Outcome, Task
from sparseagg.top_k import TopK
from sparseagg.types import DTypeLike, Update
from sparseagg.version import __version__ as __version__

__all__ = [
    "TLS",
    "Aggregator",
    "Client",
    "DTypeLike",
    "InvalidArgumentError",
    "NewTask",
    "Outcome",
    "PublishedModel",
    "Refusal",
    "Result",
    "RetryPolicy",
    "Round",
    "RoundClosedError",
    "RoundFailedError",
    "RoundInfo",
    "RoundSpec",
    "Server",
    "ServerInfo",
    "ServerLimits",
    "SparseaggError",
    "StageTime",
    "Submission",
    "Task",
    "TensorResult",
    "TensorSpec",
    "Timeline",
    "TopK",
    "Update",
    "aggregate",
    "aio",
    "errors",
    "open_round",
    "release_memory",
    "worker",
]


def __getattr__(name: str) -> object:
    return errors.__getattr__(name)
