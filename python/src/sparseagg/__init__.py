"""Merges the sparse updates of many clients into one result per tensor. The same updates always give the same bits.

    import sparseagg as sa

    with sa.Client("localhost:8001") as client:
        spec = sa.RoundSpec([sa.TensorSpec("embedding", "float32", shape=(50_000, 16))], op="mean")
        rnd = client.create_round(spec)
        rnd.submit("client-7", {"embedding": (keys, rows)})  # shapes (n,) and (n, 16)
        result = rnd.finish()  # takes no more submissions, waits for the merge, and reads its result
        result["embedding"].keys, result["embedding"].values

Where rounds run: ``Client("host:port")`` uses a server, ``Client(":local:")`` starts one on this machine, and
``Client(":memory:")`` merges in this process. ``Server`` is such a local server as an object.

What a round computes: ``RoundSpec`` and ``TensorSpec``; ``ClipSpec`` bounds its submissions, ``PrivacySpec`` adds noise
for differential privacy (experimental), and ``PrivacyLedger`` says what that costs. What it returns: ``Result``, with a
``TensorResult`` for each tensor.

Who takes part: a coordinator makes a ``Round`` and sends ``Round.handle`` to its clients, which call
``Round.from_handle``. Or clients lease a ``Task`` each: ``Client.work``. A ``Model`` lives on the server: clients read
the ``Rows`` that they need, and merged updates take a step of the optimizer there.

Without rounds: ``aggregate`` and ``Aggregator`` merge in this process, on the CPU or on a GPU, in whose memory a result
can stay, as a ``types.DeviceTensorResult`` for each tensor. ``release_memory`` returns the memory that they keep for
the next merge. ``TopK`` chooses the largest parts of a dense update.

Modules: ``sparseagg.aio`` is the client for asyncio, ``sparseagg.errors`` has all error classes, ``sparseagg.types``
what methods return. ``sparseagg.flower``, ``sparseagg.nvflare`` and ``sparseagg.keras`` are adapters,
``sparseagg.optimizers`` has optimizers for merged rows, ``sparseagg.init`` the values that rows of a model begin with,
``sparseagg.robust`` weighs the clients of a sealed round by an ``Inspection``, ``sparseagg.certificates`` verifies what
a server has signed about a round. ``sparseagg._internal`` is private.
"""

from sparseagg import aio, certificates, errors, init, robust, staleness, types
from sparseagg._internal.base.credentials import TLS
from sparseagg._internal.base.extension import release_memory
from sparseagg._internal.client.blocking_client import Client, Model, Round, Stream
from sparseagg._internal.client.retry import RetryPolicy
from sparseagg._internal.local.aggregate import aggregate
from sparseagg._internal.local.aggregator import Aggregator
from sparseagg._internal.local.server import Server
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.results.tasks import NewTask, Outcome, Task
from sparseagg._internal.spec.bounds import ClipSpec, PrivacySpec
from sparseagg._internal.spec.privacy_ledger import AdaptiveClip, PrivacyLedger
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.updates.top_k import TopK
from sparseagg._internal.wire.model_spec import Rows
from sparseagg.errors import InvalidArgumentError, RoundClosedError, RoundFailedError, SparseaggError
from sparseagg.version import __version__ as __version__

__all__ = [
    "TLS",
    "AdaptiveClip",
    "Aggregator",
    "Client",
    "ClipSpec",
    "InvalidArgumentError",
    "Model",
    "NewTask",
    "Outcome",
    "PrivacyLedger",
    "PrivacySpec",
    "Result",
    "RetryPolicy",
    "Round",
    "RoundClosedError",
    "RoundFailedError",
    "RoundSpec",
    "Rows",
    "Server",
    "SparseaggError",
    "Stream",
    "Task",
    "TensorResult",
    "TensorSpec",
    "TopK",
    "aggregate",
    "aio",
    "certificates",
    "errors",
    "init",
    "release_memory",
    "robust",
    "staleness",
    "types",
]


def __getattr__(name: str) -> object:
    for module in (errors, types):
        if name in module.__all__:  # an ImportError: "from sparseagg import name" hides the text of an AttributeError
            raise ImportError(f"{name!r} is not in sparseagg itself, but in {module.__name__}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
