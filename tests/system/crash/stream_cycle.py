"""A cycle of the crash test that is a stream."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import sparseagg as sa

from crash.cycle import Cycle
from crash.fail_points import is_at_restart
from crash.failure import Failure
from crash.server import Server
from crash.updates import SPEC, Client, arrays_of, digest, digest_of, expected

BUFFER = 7
EXACT_WEIGHTS = (1.0, 0.5, 0.375, 0.25) + (0.125,) * 60  # exact products, so that NumPy's sums are the expected bits
ROUNDED_WEIGHTS = tuple(sa.staleness.polynomial(0.5)(each) for each in range(64))
REPLAY_SPEC = dataclasses.replace(SPEC, certificate=False)  # which a merge without a round has none of


class StreamCycle(Cycle):
    """One stream, from its creation to its deletion: clients commit, withdraw and repeat, and one cuts."""

    def __init__(
        self,
        server: Server,
        number: int,
        rng: random.Random,
        point: str,
        clients: list[Client],
        batches: list[list[Client]],
    ) -> None:
        super().__init__(server, rng, point, is_at_restart(point) or point.endswith(("_delete", "stream_deleted")))
        self._id = f"stream-{number}"
        self._weights = rng.choice([EXACT_WEIGHTS, ROUNDED_WEIGHTS])
        self._submitted_alone = clients
        self._batches = batches
        self._lock = threading.Lock()
        self._places: dict[
            tuple[str, str], sa.types.StreamPlace
        ] = {}  # of acknowledged commits, by client and submission
        self._withdrawn: set[tuple[str, str]] = set()
        self._sent: dict[tuple[str, str], Client] = {}
        self._errors: list[BaseException] = []
        self._is_done = threading.Event()

    def run(self) -> int:
        """Returns the number of versions."""
        self.start()
        with self.disturbed(), self.connected() as client:
            self._open(client)
        threads = [
            threading.Thread(target=self._guarded, args=(self._submit, who), daemon=True)
            for who in self._submitted_alone
        ]
        for number, batch in enumerate(self._batches):
            threads.append(
                threading.Thread(target=self._guarded, args=(self._submit_batch, (number, batch)), daemon=True)
            )
        cutter = threading.Thread(target=self._guarded, args=(self._cut, None), daemon=True)
        for thread in [*threads, cutter]:
            thread.start()
        self.disturb(threads)
        for thread in threads:
            thread.join()
        self._is_done.set()
        cutter.join()
        if self._errors:
            raise Failure(f"a client failed: {self._errors[0]!r}") from self._errors[0]
        return self._finish()

    def _open(self, client: sa.Client) -> sa.Stream:
        return client.create_stream(SPEC, buffer=BUFFER, staleness=self._weights, stream_id=self._id)

    def _guarded(self, work: Callable[[Any], None], argument: Any) -> None:
        try:
            work(argument)
        except Exception as error:
            self._errors.append(error)

    def _submit(self, who: Client) -> None:
        with self.connected(who.chunk_bytes) as client:
            stream = client.get_stream(self._id)
            for number in range(3):
                name = f"s{number}"
                self._sent[who.id, name] = who
                base = max(0, stream.refresh().version - 1 - number)
                update = {"v": (who.keys, who.rows)}
                kept: dict[str, Any] = {"base_version": base, "submission_id": name}
                done = stream.submit(who.id, update, who.weight, resumable=who.resumable, **kept)
                if done.stream is None:
                    raise Failure("a commit has no place")
                with self._lock:
                    self._places[who.id, name] = done.stream
                if who.repeats:
                    again = stream.submit(who.id, update, who.weight, resumable=not who.resumable, **kept)
                    if not again.duplicate or again.stream != done.stream:
                        raise Failure("an acknowledged commit counted a second time")
                if who.withdraws and number == 1:
                    try:
                        if stream.withdraw(who.id, name):
                            self._withdrawn.add((who.id, name))
                        else:  # the answer of an earlier attempt was lost
                            self._withdrawn.add((who.id, name))
                    except sa.errors.FailedPreconditionError:
                        pass  # its version was cut

    def _submit_batch(self, numbered: tuple[int, list[Client]]) -> None:
        number, batch = numbered
        name = f"batch-{number}"
        with self.connected(batch[0].chunk_bytes) as client:
            stream = client.get_stream(self._id)
            ids, weights = [who.id for who in batch], [who.weight for who in batch]
            for who in batch:
                self._sent[who.id, name] = who
            base = stream.refresh().version - 1
            for is_repeat in (False, True):
                receipt = stream.submit_batch(
                    ids, {"v": arrays_of(batch)}, weights, base_version=base, submission_id=name
                )
                if receipt.refused or receipt.num_submissions != len(batch):
                    raise Failure(f"of a batch of {len(batch)}, {receipt} counts")
                if is_repeat and receipt.num_duplicates != len(batch):
                    raise Failure(f"submitted again, a batch has {receipt.num_duplicates} duplicates")

    def _cut(self, _: None) -> None:
        with self.connected() as client:
            stream = client.get_stream(self._id)
            while not self._is_done.wait(self.rng.random() * 0.05):
                stream.cut()

    def _finish(self) -> int:
        """Cuts, reads all versions, kills, reads them again, and deletes."""
        with self.disturbed() as kill_now, self.connected() as client:
            stream = client.get_stream(self._id)
            last = stream.cut().version - 1
            found = self._read(stream, last)
            kill_now.set()
            while kill_now.is_set():
                time.sleep(0.001)
            if self._read(stream, last) != found:
                raise Failure("a version has other bits after the restart")
            with contextlib.suppress(sa.errors.NotFoundError):  # an earlier attempt has deleted it
                stream.delete()
            if any(each.name.startswith(f"rounds/{self._id}.v") for each in client.list_rounds()):
                raise Failure("a version is left of a stream that was deleted")
        return last

    def _read(self, stream: sa.Stream, last: int) -> list[str]:
        """Returns the hash of each version, which is computed again from its commits; checks who is in which."""
        versions: list[sa.types.StreamVersion] = []
        while len(versions) < last:
            versions += stream.watch(versions[-1].version if versions else 0)
        if [each.version for each in versions] != list(range(1, last + 1)):
            raise Failure(f"the versions are {[each.version for each in versions]}, not 1 to {last}")
        counted: collections.Counter[tuple[str, str]] = collections.Counter()
        hashes: list[str] = []
        position = 0
        for version in versions:
            listed = stream.round(version.version).submissions()
            places = {(each.client_id, each.submission_id): each.stream for each in listed if each.stream is not None}
            if len(places) != len(listed):
                raise Failure(f"version {version.version} lists a commit twice, or one without a place")
            counted.update(places.keys())
            positions = sorted(each.position for each in places.values())
            if positions[0] <= position:
                raise Failure(f"version {version.version} has a commit from before the cut of an earlier one")
            position = positions[-1]
            if len(listed) > BUFFER or (version.cause == "full" and len(listed) != BUFFER):
                raise Failure(f"version {version.version}, cut by {version.cause}, has {len(listed)} commits")
            for name, place in places.items():
                if self._places.get(name, place) != place or place.weight != self._weights[place.staleness]:
                    raise Failure(f"{name} is at {place}, and was told {self._places.get(name)}")
            hashes.append(digest_of(stream.result(version.version)["v"]))
            log = sorted(
                ((self._sent[name], place) for name, place in places.items()),
                key=lambda each: (each[0].id, each[1].position),
            )
            if hashes[-1] != digest_of(_replayed(log)):
                raise Failure(f"version {version.version} has other bits than sa.aggregate over its commits")
            if self._weights is EXACT_WEIGHTS and hashes[-1] != digest(*_sum_of(log)):
                raise Failure(f"version {version.version} is not the sum of its commits")
        if any(number != 1 for number in counted.values()):
            raise Failure("a commit is in two versions")
        if missing := self._places.keys() - counted.keys() - self._withdrawn:
            raise Failure(f"acknowledged commits are in no version: {sorted(missing)}")
        if wrong := self._withdrawn & counted.keys():
            raise Failure(f"withdrawn commits count: {sorted(wrong)}")
        if (
            missing := {(who.id, f"batch-{n}") for n, batch in enumerate(self._batches) for who in batch}
            - counted.keys()
        ):
            raise Failure(f"commits of acknowledged batches are in no version: {sorted(missing)}")
        return hashes


def _replayed(log: list[tuple[Client, sa.types.StreamPlace]]) -> sa.TensorResult:
    """What the engine of this process merges of the commits, in this order."""
    commits = [({"v": (who.keys, who.rows)}, who.weight * place.weight) for who, place in log]
    return sa.aggregate(commits, REPLAY_SPEC)["v"]


def _sum_of(log: list[tuple[Client, sa.types.StreamPlace]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sum of the commits in this order, by NumPy alone."""
    return expected(
        [
            Client(f"{index:06}", who.keys, who.rows, who.weight * place.weight, False, 0, False, False)
            for index, (who, place) in enumerate(log)
        ]
    )
