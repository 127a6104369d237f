"""A cluster: some servers, and what merges their rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, SupportsFloat, SupportsIndex, Union

from sparseagg._internal.base.arguments import check_name, checked_integer, checked_number, checked_text, shown
from sparseagg._internal.client.blocking_client import Client, Round
from sparseagg._internal.client.endpoint import addresses_of
from sparseagg._internal.results.inspection import Inspection
from sparseagg._internal.results.result import Result
from sparseagg._internal.results.server_info import ServerInfo
from sparseagg._internal.spec.bounds import ClusterSpec, HomeServer, home_of
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg._internal.updates.contributors import ClientId
from sparseagg._internal.updates.inference import spec_of
from sparseagg.cluster.cluster_round import ClusterRound
from sparseagg.cluster.plan import Plan, on_all
from sparseagg.cluster.range_merge import Executor, LocalExecutor, RayExecutor
from sparseagg.cluster.server_keeper import LocalServers, RayServers, ray_session
from sparseagg.cluster.server_rounds import server_spec
from sparseagg.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    SparseaggError,
    UnavailableError,
)
from sparseagg.robust import ClientWeights, inspect


class ClusterClient(contextlib.AbstractContextManager["ClusterClient"]):
    """What ``sparseagg.Client`` is for one server, for a cluster: from ``Cluster.client``. Thread-safe.

    Rounds are spread over all servers. A model and a task have one server each: models that of their name's
    hash, tasks the first one. A task cannot ask for a submission to a round (``TaskSpec.round``), since that is on the
    home server of whoever works on the task.

    ``close`` leaves the cluster as it is.
    """

    def __init__(self, cluster: Cluster, clients: Sequence[Client], owns_cluster: bool = False) -> None:
        self._cluster = cluster
        self._owns_cluster = owns_cluster
        self._clients = clients
        first = clients[0]
        self.lease_task = first.lease_task
        self.extend_lease = first.extend_lease
        self.complete_task = first.complete_task
        self.fail_task = first.fail_task
        self.get_task = first.get_task
        self.list_tasks = first.list_tasks
        self.cancel_tasks = first.cancel_tasks
        self.aggregate = first.aggregate

    @property
    def address(self) -> str:
        """The addresses of all servers, with commas: for ``sparseagg.Client`` in another process."""
        return ",".join(self._cluster.addresses)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Does nothing where the connections are those of a cluster that is used elsewhere."""
        if self._owns_cluster:
            self._cluster.close()

    def server_info(self) -> ServerInfo:
        """Returns version, engine and limits of the first server."""
        return self._clients[0].server_info()

    def create_round(
        self, /, spec: RoundSpec | None = None, round_id: str | None = None, *, like: Any = None, **options: Any
    ) -> ClusterRound:
        """Creates a round on all servers: ``Cluster.create_round``."""
        return self._cluster.create_round(spec, round_id, like=like, **options)

    def get_round(self, name: str) -> ClusterRound:
        """Returns a round of the cluster by its id or name: ``Cluster.resume``."""
        return self._cluster.resume(name)

    def list_rounds(self) -> Iterator[ClusterRound]:
        """Yields the rounds of the cluster, oldest first. Rounds that are on one server alone are left out."""
        for opened in self._clients[0].list_rounds():
            with contextlib.suppress(NotFoundError, FailedPreconditionError):  # being created, or deleted; of others
                yield self._cluster.resume(opened.name)

    def model(self, name: str, **options: Any) -> Any:
        """Returns a model, as ``Client.model``, on the server of its name's hash."""
        return self._clients[home_of(str(name), len(self._clients))].model(name, **options)

    def create_tasks(self, tasks: Any, **options: Any) -> Any:
        """Creates tasks on the first server, as ``Client.create_tasks``.

        Raises:
            InvalidArgumentError: also for a task with a round.
        """
        tasks = list(tasks)
        for task in tasks:
            if getattr(task, "round", None):
                raise InvalidArgumentError(
                    f"a task of a cluster has no round, got {task.round!r}: submissions are on other servers"
                )
        return self._clients[0].create_tasks(tasks, **options)


_MOST_SERVERS = 1024
_LIMITS = ("max_row_width", "max_submissions", "max_tuples_per_submission", "max_bytes_per_submission")  # of clients


class Cluster(contextlib.AbstractContextManager["Cluster"]):
    """Several servers that take the submissions of one round together. A coordinator makes one.

        with sa.cluster.Cluster(["a:8001", "b:8001"]) as cluster:
            with cluster.create_round(spec) as rnd:
                rnd.submit("client-7", update)
                result = rnd.finish()

    Each client submits to its home server, which follows from its id and the number of servers; a server that is not
    the home sends the client there. ``ClusterRound.finish`` seals the round on all servers, and merges ranges of keys,
    each from the submissions of all servers. The result has the bits of one server that has all submissions, whatever
    the numbers of servers and ranges.

    Thread-safe. ``close``, or the end of a ``with`` statement, closes the connections, and stops the servers that this
    object has started.

    Args:
        servers: the addresses of servers that run already, in an order that stays the same; or how many servers to
            start, and to start again when they end: as processes on this machine, or with ``executor="ray"`` in actors
            that are spread over the nodes. None: those of ``name``, as ``attach``.
        name: of servers in actors of Ray that do not end with this object and its process: ``attach`` finds them,
            ``shutdown`` stops them. None: they end with this object.
        executor: "local" merges in threads of this process. "ray" merges in actors of Ray, which
            ``pip install "ray[data]"`` brings: of the cluster of Ray that this process is connected to, or of one
            on this machine, which ``close`` ends. The servers must be reached from all nodes of Ray.
        reducers: ranges that are merged at once; None: one for each core.
        ranges: ranges of keys of each tensor; None: as many as ``reducers`` and ``range_bytes`` ask for. It leaves no
            trace in the result.
        range_bytes: the most bytes of submissions that a range should have. A reducer holds one range in memory.
        memory_limit: bytes that a reducer may take for submissions and sums; the result of its range comes on top. A
            range may then be larger: submissions are folded in ascending order of client ids, before others are read.
            The largest submission and its range's result must fit into half of it, for which there are enough ranges,
            unless ``ranges`` says how many. None: no limit.
        data_dir: of servers that are started: a directory with one of each server, so that rounds survive a restart.
            None: they live in memory.
        gpus: GPUs of each reducer, also a part of one; above 0 the CUDA engine merges. Only with "ray".
        reducer_cpus: of each reducer's actor, for Ray's accounts; 0 where others, as Flower's simulation, take all.
        server_cpus, server_gpus: of each server's actor. Only with "ray" and servers that are started.
        server_options: more flags of the servers that are started. On several nodes of Ray the servers listen on their
            nodes' addresses, which needs flags for credentials and TLS, or "--insecure".
        http_urls: "http://host:port" of the HTTP gateway of each server that runs already, where curl and browsers are
            sent; None: servers send them nowhere. Of servers that are started it is known.
        certificate_key: file of an Ed25519 private key in PEM, which signs the certificates of rounds that ask for one.
            Give the servers the same key: then a certificate states what one server would.
        client: arguments of ``sparseagg.Client``, such as ``token`` and ``tls``, for all servers.

    Raises:
        InvalidArgumentError: an argument is wrong.
        AlreadyExistsError, NotFoundError: there are servers of this name, or none.
        UnimplementedError: Ray is not installed.
        ProgramMissingError, UnavailableError, DeadlineExceededError: a server could not be started.
    """

    def __init__(
        self,
        servers: Sequence[str] | SupportsIndex | None,
        *,
        executor: str = "local",
        name: str | None = None,
        reducers: SupportsIndex | None = None,
        ranges: SupportsIndex | None = None,
        range_bytes: SupportsIndex = 256 << 20,
        memory_limit: SupportsIndex | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        reducer_cpus: SupportsFloat = 1,
        gpus: SupportsFloat = 0,
        server_cpus: SupportsFloat = 1,
        server_gpus: SupportsFloat = 0,
        server_options: Sequence[str] = (),
        http_urls: Sequence[str] | None = None,
        certificate_key: str | os.PathLike[str] | None = None,
        **client: Any,
    ) -> None:
        cores = os.cpu_count() or 1
        count = cores if reducers is None else checked_integer("reducers must be 1 or more", reducers, 1, 1024)
        if ranges is not None:
            ranges = checked_integer("ranges must be 1 or more, or None", ranges, 1, 1 << 20)
        largest = checked_integer("range_bytes must be a number of bytes, 1 or more", range_bytes, 1, (1 << 63) - 1)
        if executor not in ("local", "ray"):
            raise InvalidArgumentError(f'executor must be "local" or "ray", got {shown(executor)}')
        shares = {"gpus": gpus, "reducer_cpus": reducer_cpus, "server_cpus": server_cpus, "server_gpus": server_gpus}
        share = {name: checked_number(f"{name} must be 0 or more", value) for name, value in shares.items()}
        if executor == "local" and (share["gpus"] or share["server_gpus"]):
            raise InvalidArgumentError('gpus and server_gpus are resources of Ray: executor="ray"')
        if name is not None:
            check_name("name", checked_text("name", name))
            if executor == "local":
                raise InvalidArgumentError('name is of servers in actors of Ray: executor="ray"')
        number, given = _checked_servers(servers, name, http_urls, data_dir, server_options)
        key = None if certificate_key is None else pathlib.Path(certificate_key)
        if memory_limit is not None:
            what = "memory_limit must be a number of bytes, 1 or more, or None"
            memory_limit = checked_integer(what, memory_limit, 1, (1 << 63) - 1)
        self._plan = Plan(
            ranges, count, largest, max(1, cores // count), "cuda" if share["gpus"] else None, key, memory_limit
        )
        self._owned = contextlib.ExitStack()
        self._started: LocalServers | RayServers | None = None
        try:
            num_cpus = count * share["reducer_cpus"] + number * share["server_cpus"]
            ray = self._owned.enter_context(ray_session(num_cpus)) if executor == "ray" else None
            if not number and name is not None:
                self._started = RayServers.attach(ray, name)
            elif number and ray is not None:
                of_servers = share["server_cpus"], share["server_gpus"]
                self._started = RayServers(ray, name, number, data_dir, server_options, *of_servers)
            elif number:
                self._started = LocalServers(number, data_dir, server_options)
            if self._started is not None and name is None:
                self._owned.callback(self._started.close)
            self._given = tuple(given)
            self._clients = [self._owned.enter_context(Client(each.address, **client)) for each in self.servers]
            if isinstance(self._started, RayServers):
                for connection, locate in zip((each._connection for each in self._clients), self._started.locators()):
                    connection.endpoint = dataclasses.replace(connection.endpoint, locate=locate)
            self._executor: Executor = LocalExecutor(self._clients, count)
            if ray is not None:
                self._executor = RayExecutor(ray, self._clients, count, share["reducer_cpus"], share["gpus"])
            self._owned.callback(self._executor.close)
        except BaseException:
            self._owned.close()
            raise

    @classmethod
    def attach(cls, name: str, **options: Any) -> Cluster:
        """Returns a cluster of the servers that ``Cluster(…, executor="ray", name=name)`` has started in this Ray.

        ``options``: of ``Cluster``, but those of the start. Raises ``NotFoundError`` where there are no such servers.
        """
        return cls(None, executor="ray", name=name, **options)

    @property
    def servers(self) -> tuple[HomeServer, ...]:
        """The servers, where they are now, in the order that decides who is whose home."""
        return self._given if self._started is None else tuple(self._started.homes)

    @property
    def addresses(self) -> list[str]:
        """Of ``servers``."""
        return [each.address for each in self.servers]

    def client(self) -> ClusterClient:
        """Returns an object with the methods of ``sparseagg.Client`` whose rounds are those of this cluster."""
        return ClusterClient(self, self._clients)

    def create_round(
        self, /, spec: RoundSpec | None = None, round_id: str | None = None, *, like: Any = None, **options: Any
    ) -> ClusterRound:
        """Creates a round on all servers. Safe to repeat with a ``round_id``, after an error too.

        Args:
            spec: what to compute. ``min_submissions``, ``max_submissions`` and ``on_empty`` are those of the round of
                all servers. Not for clusters: ``deadline``, ``privacy``, and a bound l2 that scales updates.
            round_id, like, options: as of ``Client.create_round``.

        Raises:
            InvalidArgumentError: the spec makes no sense, or has such a field.
            AlreadyExistsError: the id is taken by another round.
            NotFoundError: a server has lost its part of a round that exists, with its data.
        """
        spec = spec_of(spec, like, options)
        infos, servers = on_all(self._clients, Client.server_info), self.servers
        for name in _LIMITS:
            limits = {home.address: getattr(info.limits, name) for home, info in zip(servers, infos)}
            if len(set(limits.values())) > 1:
                raise FailedPreconditionError(
                    f"servers have different limits {name}, and refuse some clients: {limits}"
                )
        homes = [dataclasses.replace(home, instance=info.instance) for home, info in zip(servers, infos)]
        there = {}
        for server in range(0 if round_id is None else len(homes)):
            with contextlib.suppress(NotFoundError):
                there[server] = self._opened(server, str(round_id))
        for opened in there.values():
            created = opened.spec.cluster.servers if opened.spec.cluster else ()
            for server, (home, before) in enumerate(zip(homes, created)):
                # One with a part has it from a backup, if its data has another name.
                if server not in there and before.instance not in ("", home.instance):
                    raise NotFoundError(
                        f"server {home.address} has lost round {round_id} with its data: delete the round"
                    )
            homes = list(created) if len(created) == len(homes) else homes  # perhaps at addresses of before
        specs = [server_spec(spec, homes, index) for index in range(len(homes))]
        rounds: list[Round] = []
        try:
            for client, own in zip(self._clients, specs):
                rounds.append(client.create_round(own, rounds[0].name.partition("/")[2] if rounds else round_id))
        except SparseaggError as error:
            if not there and not isinstance(error, (UnavailableError, DeadlineExceededError)):
                on_all(rounds, Round.delete)  # which nobody knows
            raise
        return self._round(rounds, range(len(rounds)))

    def resume(self, round_id: str) -> ClusterRound:
        """Returns a round that exists on all servers: for clients that submit, and for another coordinator.

        A coordinator that has died left a round that is open or sealed; ``finish`` of this one goes on. It seals the
        round, if that was not done, plans, and merges again, and gives the same result.

        Raises:
            NotFoundError: a server does not have the round; the message has the server's address.
            FailedPreconditionError: the round is not one of a cluster, or has another spec on another server.
        """
        first = self._opened(0, round_id)
        cluster = first.spec.cluster or ClusterSpec(self.servers, len(self.servers) - 1)
        servers = list(range(len(self._clients)))
        if len(cluster.servers) != len(servers):  # the round is from before the cluster had other servers
            known = [info.instance for info in on_all(self._clients, Client.server_info)]
            servers = [known.index(each.instance) for each in cluster.servers if each.instance in known]
        rounds = [self._opened(server, round_id) for server in servers]
        own = [dataclasses.replace(cluster, index=index) for index in range(len(cluster.servers))]
        if [opened.spec for opened in rounds] != [dataclasses.replace(first.spec, cluster=each) for each in own]:
            raise FailedPreconditionError(
                f"{first.name} on server {first.handle} is not the round of a cluster of {len(self._clients)} servers "
                "in this order, or has another spec on another one"
            )
        return self._round(rounds, servers)

    def _opened(self, server: int, round_id: str) -> Round:
        try:
            return self._clients[server].get_round(round_id)
        except NotFoundError as error:
            raise NotFoundError(f"server {self._clients[server].address}: {error}") from None

    def _round(self, rounds: Sequence[Round], servers: Sequence[int]) -> ClusterRound:
        clients = [self._clients[server] for server in servers]
        return ClusterRound(clients, self._executor, dataclasses.replace(self._plan, servers=tuple(servers)), rounds)

    def close(self) -> None:
        """Closes the connections, and stops servers that were started without a ``name``; a ``data_dir`` stays."""
        self._owned.close()

    def shutdown(self) -> None:
        """Stops also servers with a ``name``, and closes."""
        if self._started is not None:
            self._started.close()
        self.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked_servers(
    servers: Any, name: str | None, urls: Sequence[str] | None, data_dir: Any, options: Sequence[str]
) -> tuple[int, list[HomeServer]]:
    """Returns how many servers to start, or the servers that run; of a name alone neither."""
    if servers is None and name is not None and urls is None and data_dir is None and not options:
        return 0, []
    if isinstance(servers, str) or servers is None:
        raise InvalidArgumentError(f"servers must be a list of addresses, or a number of servers, got {servers!r}")
    if not isinstance(servers, Sequence):
        if urls is not None:
            raise InvalidArgumentError("http_urls are of servers that run already")
        return checked_integer("servers must be a number of servers, 1 or more", servers, 1, _MOST_SERVERS), []
    if not servers or len(set(servers)) < len(servers):
        raise InvalidArgumentError(f"servers must be one address or more, each once, got {list(servers)!r}")
    if data_dir is not None or options or name is not None:
        raise InvalidArgumentError(
            "data_dir, name and server_options are for servers that are started: with servers=2, for example"
        )
    if urls is not None and len(urls) != len(servers):
        raise InvalidArgumentError(f"http_urls has {len(urls)} URLs for {len(servers)} servers")
    return 0, [HomeServer(address, urls[i] if urls is not None else None) for i, address in enumerate(servers)]


# The address of a server; those of a cluster, with commas; a client of one server; or a cluster.
ServerArgument = Union[str, Client, Cluster, ClusterClient]


def server_client(server: ServerArgument, **credentials: Any) -> Client | ClusterClient:
    """Returns a client whose rounds are on the server or the cluster. Its ``close`` closes what is made here.

    ``credentials``: of ``Client``, for addresses. Of addresses with commas, this process merges.
    """
    if isinstance(server, Cluster):
        return server.client()
    if isinstance(server, (Client, ClusterClient)):
        return server
    addresses = addresses_of(server) if isinstance(server, str) else []
    if len(addresses) < 2:
        return Client(server, **credentials)
    cluster = Cluster(addresses, **credentials)
    return ClusterClient(cluster, cluster._clients, owns_cluster=True)


def check_rule(client: Client | ClusterClient | None, rule: Any) -> None:
    """Raises ``InvalidArgumentError`` for a rule that chooses among the submissions of a cluster's round."""
    if rule is not None and isinstance(client, ClusterClient):
        raise InvalidArgumentError(
            "a rule that chooses among updates needs all of them in one place: use one server, or none"
        )


Rule = Callable[[Inspection], ClientWeights]


def finish_by_rule(rnd: Round, rule: Rule, only: Collection[str] | None = None) -> tuple[Result, ClientWeights]:
    """Seals a round, lets the rule weigh its clients, and closes it with these weights.

    ``only``: the clients that the rule sees; the others get weight 0, and those that have not submitted are left out. A
    ``SparseaggError`` of the rule leaves the round sealed.
    """
    rnd.seal()
    found = inspect(rnd)
    choice = rule(found if only is None else found.only(set(only).intersection(found.clients)))
    weights: dict[ClientId, SupportsFloat] = dict(choice.items())
    return rnd.finish(client_weights=weights), choice
