"""The coordinator of the training rounds: opens a round, lets clients submit, applies the merged gradient."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time

import numpy as np

from sparseagg._internal.client.blocking_client import Client, Round
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.commands.demo.model import ClientData, Model, Submitted, client_gradient
from sparseagg._internal.results.result import Result
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.cluster import Cluster, ClusterRound


@dataclasses.dataclass(frozen=True)
class RoundReport:
    """The figures of a round; times are in milliseconds.

    ``compute_ms`` and ``upload_ms`` are summed over the clients, several of which work at the same time. ``merge_ms``
    is the server's time from the close to the result, ``wall_ms`` the time of the whole round.
    """

    number: int
    clients: int
    tuples: int
    keys: int
    bytes_sparse: int
    bytes_dense: int
    compute_ms: float
    upload_ms: float
    merge_ms: float
    download_ms: float
    apply_ms: float
    wall_ms: float


class Coordinator:
    """Trains ``model`` on the clients' texts through the server, or the servers of a cluster.

    A round takes the mean weighted by the number of examples, in which a client without a token counts as zero. This is
    exactly the gradient of the mean loss over the examples of all clients, as if all text were in one place. The
    gradient is small at rare tokens, for which Adagrad makes up: it divides by the size of past gradients.
    """

    def __init__(
        self,
        client: Client | Cluster,
        *,
        model: Model,
        names: list[str],
        data: list[ClientData],
        max_pairs: int,
        concurrency: int,
        seed: int,
    ) -> None:
        self._client = client
        self._model = model
        self._names = names
        self._data = data
        self._max_pairs = max_pairs
        self._concurrency = concurrency
        self._seed = seed
        self.spec = RoundSpec(
            tensors=[TensorSpec(name, dtype="float32", shape=table.shape) for name, table in model.tables.items()],
            op="mean",
            weighting="by_weight",
            return_counts=True,
        )

    def run_round(
        self, number: int, label: str, *, keep: bool = False
    ) -> tuple[RoundReport, Result, dict[str, Submitted]]:
        """Runs round ``number``, from 1 on. Returns the submissions by client id, too, if ``keep``."""
        start = time.perf_counter()
        opened = self._client.create_round(self.spec)
        compute_s = upload_s = 0.0
        submitted: dict[str, Submitted] = {}
        with (
            ProgressBar(label, len(self._data), "clients") as bar,
            concurrent.futures.ThreadPoolExecutor(self._concurrency) as pool,
        ):
            parts = pool.map(lambda k: self._take_part(opened, number, k), range(len(self._data)))
            for name, (update, computed_s, uploaded_s) in zip(self._names, parts):
                compute_s, upload_s = compute_s + computed_s, upload_s + uploaded_s
                if keep and update is not None:
                    submitted[name] = update
                bar.advance()
        closing = time.perf_counter()
        result = opened.finish()
        merge_s = result.info.timeline.finish
        download_s = time.perf_counter() - closing - merge_s
        applying = time.perf_counter()
        keys = 0
        for name, tensor in result.items():
            if tensor.values is not None:
                self._model.apply(name, tensor.keys, tensor.values)
            keys += len(tensor)
        apply_s = time.perf_counter() - applying
        opened.delete()
        info = result.info
        row_bytes = sum(table.nbytes for table in self._model.tables.values())
        report = RoundReport(
            number=number,
            clients=info.num_submissions,
            tuples=info.num_tuples,
            keys=keys,
            bytes_sparse=info.num_bytes,
            bytes_dense=row_bytes * info.num_submissions,
            compute_ms=1e3 * compute_s,
            upload_ms=1e3 * upload_s,
            merge_ms=1e3 * merge_s,
            download_ms=1e3 * max(0.0, download_s),
            apply_ms=1e3 * apply_s,
            wall_ms=1e3 * (time.perf_counter() - start),
        )
        return report, result, submitted

    def _take_part(self, opened: Round | ClusterRound, number: int, k: int) -> tuple[Submitted | None, float, float]:
        """Runs client k's part of a round. Returns the submission, if its text has an example, and the seconds."""
        start = time.perf_counter()
        gradient = client_gradient(
            self._model, self._data[k], self._max_pairs, np.random.default_rng([self._seed, number, k])
        )
        computed = time.perf_counter()
        if gradient is None:
            return None, computed - start, 0.0
        tensors = {
            "input": (gradient.input_keys, gradient.input_rows),
            "output": (gradient.output_keys, gradient.output_rows),
        }
        update = tensors, float(gradient.num_pairs)
        opened.submit(self._names[k], *update)
        return update, computed - start, time.perf_counter() - computed
