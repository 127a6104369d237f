"""Whole rounds of sparseagg: in memory, on a server, over a cluster's servers, and as a version of a stream."""

from __future__ import annotations

from typing import Any

import sparseagg as sa
from rounds import Stages, Sums, Updates, contestant
from sparseagg.cluster import Cluster

from contestants import Contestant

FLAGS = ["--memory-limit", "12GiB", "--max-bytes-per-submission", "0", "--max-tuples-per-submission", "0"]
MANY = 1000  # clients, beyond which updates are submitted in batches


def contestants(updates: Updates, server: str | None) -> list[Contestant]:
    """The contestants. ``server``: the program; the installed one without it."""
    expected = updates.expected()

    def servers(number: int) -> list[sa.Server]:
        return [sa.Server(program=server, options=FLAGS).start() for _ in range(number)]

    peers = {
        "sparseagg, server": Rounds(updates, servers(1)),
        "sparseagg, in memory": Rounds(updates, []),
        "sparseagg, stream": StreamVersions(updates, servers(1)),
        "sparseagg, 4 servers": ClusterRounds(updates, servers(4)),
    }
    return [contestant(name, updates, expected, peer) for name, peer in peers.items()]


class Rounds:
    """Rounds on a server, or in this process without one."""

    is_exact = True

    def __init__(self, updates: Updates, servers: list[sa.Server]) -> None:
        self._updates, self._servers = updates, servers
        self.server_pids = [server.pid for server in servers]
        layout = "dense" if updates.is_dense else "sparse"
        shape = {"num_rows": updates.num_rows, "row_width": updates.row_width}
        self._spec = sa.RoundSpec([sa.TensorSpec("t", "float32", layout=layout, **shape)])
        self._client = self._connect([server.address for server in servers])

    def _connect(self, addresses: list[str]) -> Any:
        return sa.Client(addresses[0] if addresses else ":memory:")

    def _submit(self, opened: Any, **options: Any) -> None:
        updates = self._updates
        if updates.num_clients > MANY:
            receipt = opened.submit_batch(updates.ids, {"t": (updates.offsets, updates.keys, updates.rows)}, **options)
            assert receipt.num_submissions == updates.num_clients
        else:
            for client_id, update in updates:
                opened.submit(client_id, {"t": update}, **options)

    def round(self, stages: Stages) -> Sums:
        opened = self._client.create_round(self._spec)
        stages.end("create")
        self._submit(opened)
        stages.end("submit")
        merged = self._merged(opened, stages)
        stages.end("read")
        opened.delete()
        return None if self._updates.is_dense else merged.keys, merged.values

    def _merged(self, opened: Any, stages: Stages) -> sa.TensorResult:
        opened.start_merge()
        opened.wait()
        stages.end("merge")
        return opened.result()["t"]

    def close(self) -> None:
        self._client.close()
        for server in self._servers:
            server.stop()


class ClusterRounds(Rounds):
    """Rounds over several servers, whose ranges of keys are merged apart."""

    def _connect(self, addresses: list[str]) -> Any:
        return Cluster(addresses, reducers=2)

    def _merged(self, opened: Any, stages: Stages) -> sa.TensorResult:
        merged: sa.TensorResult = opened.finish()["t"]  # of which nothing stays on the servers
        stages.end("merge")
        return merged


class StreamVersions(Rounds):
    """A version of a stream, cut as the last commit arrives."""

    def round(self, stages: Stages) -> Sums:
        stream = self._client.create_stream(self._spec, buffer=self._updates.num_clients, staleness=[1.0])
        stages.end("create")
        self._submit(stream, base_version=0)
        stages.end("submit")
        stream.watch(0)
        stages.end("merge")
        merged = stream.result(1)["t"]
        stages.end("read")
        stream.delete()
        return None if self._updates.is_dense else merged.keys, merged.values
