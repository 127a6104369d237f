"""A round over several servers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsFloat

import numpy as np

from sparseagg._internal.base.arguments import END_OF_KEYS, Timeout, checked_key_range, shown
from sparseagg._internal.base.types import Update
from sparseagg._internal.certificates.statement import time_now
from sparseagg._internal.client.blocking_client import Client, Round
from sparseagg._internal.client.retry import call_seconds, checked_deadline
from sparseagg._internal.client.round_calls import checked_only
from sparseagg._internal.results.info import Certificate, RoundInfo, Submission, SubmissionReceipt
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.bounds import home_of
from sparseagg._internal.updates.contributors import ClientId, checked_client_id
from sparseagg.cluster import published
from sparseagg.cluster.plan import Plan, cuts_of_counts, join_ranges, on_all, rows_between
from sparseagg.cluster.published import (
    Listed,
    Part,
    dataset_of,
    end_round,
    name_of_clients,
    read_list,
    read_part,
    write_parts,
)
from sparseagg.cluster.range_merge import Executor, RangeMerge, result_of_nothing
from sparseagg.cluster.server_rounds import RoundCertificate, certify, cluster_info, cluster_spec
from sparseagg.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnimplementedError

_LOCATE_S = 30.0  # that a handle waits for a server that starts elsewhere


class ClusterRound(contextlib.AbstractContextManager["ClusterRound"]):
    """A round on all servers of a cluster, from the methods of ``Cluster``. Thread-safe.

    Life cycle: ``submit`` for each client; ``start_merge``, then ``result`` any number of times; ``delete``.
    ``start_merge`` leaves the result on the servers, ``finish`` returns it without that. The submissions stay on their
    servers for ``result_ttl`` after that, or until ``delete``, which the end of a ``with`` statement calls.

    Attributes:
        name: "rounds/{id}", on every server.
        spec: what to compute.
    """

    def __init__(self, clients: Sequence[Client], executor: Executor, plan: Plan, rounds: Sequence[Round]) -> None:
        self._clients = clients
        self._plan = plan
        self._rounds = rounds
        self.name = rounds[0].name
        self.spec = cluster_spec(rounds[0].spec)
        self._merge = RangeMerge(self.name, self.spec, rounds, plan, executor)
        self._certificate: RoundCertificate | None = None
        listed = self._rounds[0].spec.cluster
        self._listed = [each.address for each in (listed.servers if listed else [])] or [e.address for e in clients]
        for address, client in zip(self._listed[1:], clients[1:]):  # for batches, which the first one divides
            first: Any = clients[0]._connection
            first.add_home(address, client._connection)

    def __exit__(self, *_: object) -> None:
        self.delete()

    @property
    def handle(self) -> str:
        """What a client needs to submit: the addresses of all servers and the round's name, for ``Round.from_handle``.

        Has the addresses of now: a server in an actor of Ray may start again on another node.
        """
        return f"sparseagg://{','.join(on_all(range(len(self._rounds)), self._address_of))}/{self.name}"

    @property
    def times(self) -> dict[str, float]:
        """Seconds of the steps of the latest merge: "seal", "plan", "reduce", "join" or "publish"."""
        return self._merge.times

    @property
    def info(self) -> RoundInfo:
        """The round as the servers described it last, with the sums of their submissions."""
        return cluster_info(self.spec, self.times, [opened.info for opened in self._rounds])

    def refresh(self) -> RoundInfo:
        """Asks all servers for the round. Its state is "done" after ``finish`` or ``start_merge``, of any process."""
        infos = on_all(self._rounds, Round.refresh)
        return cluster_info(self.spec, self.times, infos, read_list(self._rounds[0]))

    def home(self, client_id: ClientId) -> str:
        """Returns the address of the server that has the client's submission."""
        return self._address_of(self._home_of(client_id))

    def submit(
        self, client_id: ClientId, update: Update, weight: SupportsFloat | None = None, **options: Any
    ) -> Submission:
        """Sends one client's update to the client's home server. Arguments and errors are those of ``Round.submit``.

        Raises:
            InvalidArgumentError: also for the empty id, which has no home.
        """
        return self._rounds[self._home_of(client_id)].submit(client_id, update, weight, **options)

    def submit_batch(self, client_ids: Sequence[ClientId], updates: Any, weights: Any = None, **options: Any) -> Any:
        """Sends the updates of many clients to their home servers, as ``Round.submit_batch``."""
        return self._rounds[0].submit_batch(client_ids, updates, weights, **options)

    def withdraw(self, client_id: ClientId) -> bool:
        """Takes a client's submission out, as ``Round.withdraw``."""
        return self._rounds[self._home_of(client_id)].withdraw(client_id)

    def submissions(self) -> list[Submission]:
        """Returns the submissions on all servers, in ascending order of client ids."""
        listed = [each for part in on_all(self._rounds, Round.submissions) for each in part]
        return sorted(listed, key=lambda each: each.client_id.encode())

    def seal(self) -> None:
        """Freezes the round on all servers: no submission is added or withdrawn any more. Safe to repeat.

        Raises:
            RoundClosedError: a server's round is closed.
        """
        on_all(self._rounds, Round.seal)

    def _inspect(self, *_: Any) -> Any:
        """Raises ``UnimplementedError``: inner products need the submissions of all servers in one place."""
        raise UnimplementedError(
            "a cluster's round has no inner products of submissions: use one server for such rules"
        )

    def start_merge(self, timeout: Timeout = None, *, only: Iterable[ClientId] | None = None) -> RoundInfo:
        """Seals the round, merges it by ranges of keys, and leaves each range on a server. Returns when that is done.

        No process holds more than the ranges that it merges, unless ``result_top_k`` or ``result_min_norm`` cut the
        result. The result stays for ``result_ttl``, also over a restart of servers with a data directory. Safe to
        repeat, by other processes too (``Cluster.resume``); a result that is there stays.

        Arguments and errors as of ``finish``. FailedPreconditionError: also if it is closed and counts other clients.
        """
        counted, deadline = None if only is None else frozenset(checked_only(only)), checked_deadline(timeout)
        found = read_list(self._rounds[0], deadline) or self._publish(counted, deadline)
        if found[1]["only"] != name_of_clients(counted):
            raise FailedPreconditionError(f"{self.name} is closed already, and counts other clients")
        # The first server's list counts. All have it, for readers who know one of them, and to end their rounds.
        on_all(self._rounds, lambda opened: end_round(opened, deadline, found))
        return cluster_info(self.spec, self.times, on_all(self._rounds, Round.refresh), found)

    def wait(self, timeout: Timeout = None) -> RoundInfo:
        """Waits until the result is on the servers, as ``start_merge`` leaves it. Errors as of ``result``."""
        published.wait_for_list(self._rounds[0], timeout)
        return self.refresh()

    def result(
        self,
        tensors: Sequence[str] | None = None,
        *,
        keys: tuple[int, int | None] | None = None,
        timeout: Timeout = None,
    ) -> Result:
        """Waits until the round is closed by somebody, and reads its result from the servers, or a part of it.

        Args:
            tensors: names of one tensor or more; None for all.
            keys: range of keys (begin, end) without end; an end of None is behind the last key. Only the servers that
                have a part of the range are asked.
            timeout: of waiting, in seconds or as a timedelta; None for no limit.

        Raises:
            InvalidArgumentError: ``keys`` is no range, or ``tensors`` names an unknown tensor.
            NotFoundError: a server has lost its part, or the result_ttl is over.
            RoundFailedError, FailedPreconditionError: it was cancelled; or it was ended by ``finish``.
            TimeoutError: (``DeadlineExceededError``) the round is not closed after ``timeout``.
        """
        chosen = [self.spec.tensor(name) for name in tensors] if tensors is not None else list(self.spec.tensors)
        begin, end = (0, END_OF_KEYS) if keys is None else checked_key_range(keys)
        wanted = begin, None if end == END_OF_KEYS else end
        listed = published.wait_for_list(self._rounds[0], timeout)
        infos = on_all(self._rounds, Round.refresh)
        if listed[1]["is_empty"]:
            empty = result_of_nothing(self.name, self.spec)
            read = {each.name: empty[each.name] for each in chosen}
        else:
            read = {e.name: published.read_tensor(self.spec, e, listed[0], self._rounds, wanted) for e in chosen}
        return Result(read, cluster_info(self.spec, self.times, infos, listed))

    def ranges(self, tensor: str | None = None, timeout: Timeout = None) -> Iterator[TensorResult]:
        """Yields the rows of a tensor's result, range by range in order of keys, in the sparse layout.

        Keys without a submission are in no range, also where the result's layout is dense. Holds one range at a time.

        Args:
            tensor: its name; None: the only one.
            timeout: as of ``result``.
        """
        for part in self._parts(tensor, timeout):
            yield read_part(part, self._rounds)

    def save(
        self, folder: str | os.PathLike[str], tensor: str | None = None, *, kind: str = "npz", timeout: Timeout = None
    ) -> list[pathlib.Path]:
        """Writes a tensor's result to files, one for each range, in order of keys: part-00000.npz, ….

        Columns: keys, and those of values, counts, weights and moments that the result has. Holds as many ranges at a
        time as there are servers.

        Args:
            folder: made where it is missing. Files of these names are replaced.
            tensor: its name; None: the only one.
            kind: "npz", or "parquet", which needs PyArrow.
            timeout: as of ``result``.

        Raises:
            UnimplementedError: "parquet" without PyArrow.
        """
        if kind not in ("npz", "parquet"):
            raise InvalidArgumentError(f'kind must be "npz" or "parquet", got {shown(kind)}')
        return write_parts(folder, kind, self._parts(tensor, timeout), self._rounds)

    def dataset(self, tensor: str | None = None, timeout: Timeout = None) -> Any:
        """Returns a tensor's result as a Ray Dataset, a block for each range.

        Tasks of Ray read the ranges from the servers when the data set is used, as many at once as there are servers.
        They need no CPUs of Ray; steps after them, such as ``map``, do.

        Raises:
            UnimplementedError: Ray or PyArrow is not installed: ``pip install "ray[data]"``.
        """
        return dataset_of(self._parts(tensor, timeout), self._rounds)

    def finish(self, timeout: Timeout = None, *, only: Iterable[ClientId] | None = None) -> Result:
        """Seals the round, merges its submissions by ranges of keys, and returns the result.

        The result has the bits of one server with all submissions. It is held in the memory of this process, and
        nowhere else. The round is then done, and keeps its submissions for ``result_ttl``: another call, of another
        process too (``Cluster.resume``), gives the same result. Servers know nothing of each other's submissions: those
        beyond ``max_submissions`` are withdrawn, in the order of a hash of their ids.

        Args:
            timeout: of all calls of servers, in seconds or as a timedelta; None: each is repeated as the clients do it.
            only: the clients whose submissions count; None: all.

        Raises:
            RoundFailedError: there are fewer than ``min_submissions``, or the merge failed, as on one server.
            RoundClosedError: a server's round is closed.
            FailedPreconditionError: a client has submissions on two servers; or one of ``only`` has none.
            NotFoundError, UnavailableError: a server has lost the round, or cannot be reached; or actors of reducers
                die again and again. Nothing is merged then.
        """
        counted, deadline = None if only is None else frozenset(checked_only(only)), checked_deadline(timeout)
        infos, parts, _ = self._merge.run(counted, None, deadline)
        if not parts:
            empty = dict(result_of_nothing(self.name, self.spec).items())
            on_all(self._rounds, lambda opened: end_round(opened, deadline))
            return Result(empty, cluster_info(self.spec, self.times, infos, None, empty, {}))
        begun = time.monotonic()
        tensors: dict[str, TensorResult] = {}
        cut: dict[str, int] = {}
        for tensor in self.spec.tensors:
            own = [each for each in parts[tensor.name] if isinstance(each, TensorResult)]
            tensors[tensor.name], cut[tensor.name] = join_ranges(self.spec, tensor, own)
        self.times["join"] = time.monotonic() - begun
        on_all(self._rounds, lambda opened: end_round(opened, deadline))
        info = cluster_info(self.spec, self.times, infos, None, tensors, cut)
        if counted is not None:
            return Result(tensors, dataclasses.replace(info, num_submissions=len(counted)))
        result = Result(tensors, info)
        if self.spec.certificate and self._plan.certificate_key is not None:
            self._certificate = certify(self.name, self.spec, result, self._rounds, self._plan.certificate_key)
        return result

    def certificate(self) -> Certificate:
        """Returns the certificate of the round, signed with the cluster's ``certificate_key``.

        It states what one server with all submissions would, if that has the same key; other are only times, "engine",
        and "homes", which names the rounds on the servers, so that their promises are accepted. ``finish`` makes it.
        After ``start_merge``, by any process, the first call makes it: it reads the whole result from the servers.

        Raises:
            FailedPreconditionError: the round is not closed, some clients alone count (``only``), its spec asks for no
                certificate, or the cluster has no ``certificate_key``.
            NotFoundError: the result is not there any more.
        """
        key = self._plan.certificate_key
        if self._certificate is None and self.spec.certificate and key is not None:
            found = read_list(self._rounds[0])
            if found is not None and found[1]["num_counted"] is None:
                closed = found[1].get("close_time")  # None: an earlier version has closed the round
                self._certificate = certify(self.name, self.spec, self.result(), self._rounds, key, closed)
        if self._certificate is None:
            raise FailedPreconditionError(
                f"{self.name} has no certificate: finish() or start_merge() makes it, if all clients count, the spec "
                "asks for one, and the cluster has a certificate_key"
            )
        return self._certificate.certificate

    def _receipt(self, client_id: ClientId, submission_id: str = "") -> SubmissionReceipt:
        """See ``sparseagg.certificates.receipt``.

        It has its proof after ``finish``, or after ``start_merge`` and ``certificate``, of this object.
        """
        receipt = self._rounds[self._home_of(client_id)]._receipt(client_id, submission_id)
        return receipt if self._certificate is None else self._certificate.complete(receipt)

    def cancel(self, reason: str = "") -> None:
        """Ends the round on all servers without a result, and discards its submissions."""
        on_all(self._rounds, lambda opened: opened.cancel(reason))

    def delete(self) -> None:
        """Removes the round and its result from all servers that have them."""

        def remove(opened: Round) -> None:
            with contextlib.suppress(NotFoundError):  # removed before, or lost by a server that keeps nothing
                opened.delete()

        on_all(self._rounds, remove)

    def _publish(self, counted: frozenset[str] | None, deadline: float | None) -> Listed:
        """Merges, and leaves the result on the servers; returns the first server's list, which another may have put."""
        servers = on_all(self._clients, lambda client: client.server_info(timeout=call_seconds(deadline)))
        limits = [server.limits.max_message_bytes for server in servers]
        try:
            infos, parts, store = self._merge.run(counted, limits, deadline)
            assert store is not None
            begun = time.monotonic()
            listed: list[Part] = []
            cut: dict[str, int] = {}
            for tensor in self.spec.tensors:
                listed += [each for each in parts[tensor.name] if isinstance(each, Part)]
                rows = [each for each in parts[tensor.name] if isinstance(each, TensorResult)]
                if rows:  # a result that is cut: written by as many ranges as it was merged in
                    whole, cut[tensor.name] = join_ranges(self.spec, tensor, rows)
                    for number, keys in enumerate(cuts_of_counts(whole.keys, np.ones_like(whole.keys), len(rows))):
                        listed.append(store.write(rows_between(whole, keys), keys, number, self._rounds))
            about = {
                "only": store.only,
                "plan": store.plan,
                "cut": cut,
                "is_empty": sum(info.num_submissions for info in infos) == 0,
                "times": self.times,
                "num_counted": None if counted is None else len(counted),
                "close_time": time_now(),
            }
            end_round(self._rounds[0], deadline, (listed, about))
            self.times["publish"] = time.monotonic() - begun
        except FailedPreconditionError:  # a server takes no ranges any more, if another coordinator was quicker
            if read_list(self._rounds[0]) is None:
                raise
        found = read_list(self._rounds[0])
        assert found is not None
        return found

    def _parts(self, tensor: str | None, timeout: Timeout) -> list[Part]:
        """Waits; returns the ranges of a tensor's result, of the only one for None."""
        if tensor is None and len(self.spec.tensors) > 1:
            raise InvalidArgumentError(f"the round has {len(self.spec.tensors)} tensors: name one")
        name = self.spec.tensors[0].name if tensor is None else self.spec.tensor(tensor).name
        return [part for part in published.wait_for_list(self._rounds[0], timeout)[0] if part.tensor == name]

    def _address_of(self, server: int) -> str:
        endpoint = self._clients[server]._connection.endpoint
        if endpoint.locate is None:
            return self._listed[server]
        return endpoint.locate(_LOCATE_S) or endpoint.address

    def _home_of(self, client_id: ClientId) -> int:
        name = checked_client_id(client_id)
        if not name:
            raise InvalidArgumentError("the empty client id has no home server: give the client's name")
        return home_of(name, len(self._rounds))
