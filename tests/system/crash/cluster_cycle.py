"""A cycle of the crash test of a cluster: one round on several servers, from its creation to its deletion."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import sparseagg as sa
from sparseagg.cluster import Cluster

from crash.armed_starts import ArmedStarts
from crash.failure import Failure
from crash.updates import SPEC, Client, check_round, digest_of

RETRY = sa.RetryPolicy(attempts=2000, initial=0.02, maximum=0.2)  # five minutes: a node may take two to start
CLUSTER_SPEC = dataclasses.replace(SPEC, certificate=False)

# What the process of a coordinator does: it kills itself before call number `at` of those that change something.
COORDINATOR = """
import itertools, os, signal, sys
import sparseagg as sa
from sparseagg._internal.client.blocking_client import Round
from sparseagg.cluster import Cluster, cluster_round, published, range_merge
from crash.cluster_cycle import RETRY

addresses, name, ranges, at = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
options = {"reducers": 2}
if ray_address := sys.argv[5]:
    import ray
    ray.init(address=ray_address, log_to_driver=False)
    options.update(executor="ray", reducer_cpus=0)
calls = itertools.count(1)

def deadly(call):
    def counted(*args, **kwargs):
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return counted

Round.seal = deadly(Round.seal)
range_merge.count_keys = deadly(range_merge.count_keys)
published.put_result_range = deadly(published.put_result_range)
range_merge.run_task = deadly(range_merge.run_task)
cluster_round.end_round = deadly(cluster_round.end_round)
if ray_address:  # its actors merge, and end with it
    ray.util.ActorPool.submit = deadly(ray.util.ActorPool.submit)
    ray.util.ActorPool.get_next = deadly(ray.util.ActorPool.get_next)
with Cluster(addresses, ranges=ranges, retry=RETRY, **options) as cluster:
    cluster.resume(name).start_merge()
"""


class ClusterCycle:
    """One round. Kills servers under the uploads, then servers and coordinators under the close, then before a read.

    Args:
        cluster: of the test: its calls are repeated while servers are away.
        kill: kills something of the cluster with SIGKILL; the cluster starts it again by itself.
        number: of the cycle.
        rng: of the kills.
        clients: of the round.
        kills_coordinators: whether processes that close the round are killed, at each of their steps.
        ray_address: of the Ray that these processes use; "": they merge by themselves.
        armed: of the servers. One dies in the close, after it has written a range and before it answers.
    """

    def __init__(
        self,
        cluster: Cluster,
        kill: Callable[[random.Random], None],
        number: int,
        rng: random.Random,
        clients: list[Client],
        kills_coordinators: bool,
        ray_address: str,
        armed: ArmedStarts,
    ) -> None:
        self._cluster = cluster
        self._kill = kill
        self._rng = rng
        self._id = f"round-{number}-{rng.getrandbits(32):08x}"
        self._clients = clients
        self._kills_coordinators = kills_coordinators
        self._ray_address = ray_address
        self._armed = armed
        self.num_kills = 0
        self.num_coordinators = 0

    def run(self) -> tuple[frozenset[str], str]:
        """Returns who is in the result, and its hash."""
        opened = self._cluster.create_round(CLUSTER_SPEC, self._id)
        threads = [
            threading.Thread(target=self._submit, args=(opened.handle, who), daemon=True) for who in self._clients
        ]
        with self._killing():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for who in self._clients:
            if who.error is not None:
                raise Failure(f"{who.id} failed: {who.error!r}") from who.error
        self._armed.arm("range_written", self._rng.choice([1, 2]))
        self._kill_one()
        with self._killing():
            if self._kills_coordinators:
                self._close_by_processes()
            else:
                opened.start_merge()
        first = digest_of(opened.result()["v"])
        self._kill_one()
        second = digest_of(self._cluster.resume(self._id).result()["v"])
        listed = frozenset(each.client_id for each in opened.submissions())
        opened.delete()
        check_round(self._clients, listed, first, second)
        return listed, first

    def _submit(self, handle: str, who: Client) -> None:
        try:
            with sa.Round.from_handle(handle, retry=RETRY, chunk_bytes=who.chunk_bytes) as rnd:
                update = {"v": (who.keys, who.rows)}
                rnd.submit(who.id, update, weight=who.weight, resumable=who.resumable)
                who.is_acknowledged = True
                if who.repeats and not rnd.submit(who.id, update, weight=who.weight).duplicate:
                    raise Failure("an acknowledged submission counted a second time")
                if who.withdraws:
                    rnd.withdraw(who.id)
                    who.is_withdrawn = True
        except Exception as error:
            who.error = error

    def _close_by_processes(self) -> None:
        """Lets coordinators close the round: each dies at a step of its own, the last one at none."""
        deaths = [self._rng.randrange(1, 30) for _ in range(self._rng.randrange(1, 4))]
        for at in [*deaths, 0]:
            ranges = self._rng.choice([1, 3, 8])
            arguments = [",".join(self._cluster.addresses), self._id, str(ranges), str(at), self._ray_address]
            done = subprocess.run([sys.executable, "-c", COORDINATOR, *arguments], capture_output=True, text=True)
            self.num_coordinators += done.returncode == -signal.SIGKILL
            if done.returncode not in (0, -signal.SIGKILL):
                raise Failure(f"a coordinator failed: {done.stderr}")

    @contextlib.contextmanager
    def _killing(self) -> Iterator[None]:
        """Kills at random times, until the end of the block."""
        over = threading.Event()

        def kill() -> None:
            for _ in range(self._rng.randrange(1, 4)):
                if over.wait(self._rng.uniform(0.0, 0.4)):
                    return
                self._kill_one()

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _kill_one(self) -> None:
        self._kill(self._rng)
        self.num_kills += 1


def kill_process(pid: int | None) -> None:
    """Kills a process that this test has started; None, or one that has just died: nothing."""
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            time.sleep(0)
