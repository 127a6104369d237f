"""Servers of a cluster that are started, and started again when they end: by this process, or in actors of Ray."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import os
import pathlib
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sparseagg._internal.base.state_files import replaced
from sparseagg._internal.local.server import Server
from sparseagg._internal.spec.bounds import HomeServer
from sparseagg.cluster.plan import on_all
from sparseagg.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    SparseaggError,
    UnavailableError,
    UnimplementedError,
)

_PORTS = "ports.json"  # of a server's directory: where it listened last
_READY_S = 60.0
_FIRST_PAUSE_S = 0.1
_MOST_PAUSE_S = 5.0
_PORT_STARTS = 5  # until a keeper gives up the ports of before: three seconds


class ServerKeeper:
    """Keeps one server running, at one address: starts it again on its directory when it has ended.

    Life cycle: ``home`` waits until the server listens; ``close`` stops it. Thread-safe.

    Args:
        directory: of the server, as ``data_dir`` of ``Server``; None: rounds live in memory, and end with the process.
            A keeper that is made there later has the same ports, as long as nobody else has taken them: rounds name
            the addresses of their servers.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, host: str, options: Sequence[str]) -> None:
        self._directory = None if directory is None else pathlib.Path(directory)
        self._host = host
        self._options = list(options)
        self._ports: tuple[int, int] | None = self._ports_of_before()  # of gRPC and HTTP
        self._ready = threading.Event()
        self._closing = threading.Event()
        self._home: HomeServer | None = None
        self._server: Server | None = None
        self._failure: Exception | None = None
        self.num_restarts = 0
        self._thread = threading.Thread(target=self._keep, name="sparseagg-server-keeper", daemon=True)
        self._thread.start()

    def home(self, timeout_s: float = _READY_S) -> HomeServer:
        """Returns the server's addresses, as soon as it listens; when the time is over, raises why it does not
        start.
        """
        if not self._ready.wait(timeout_s) or self._home is None:
            raise self._failure or DeadlineExceededError(
                f"a server of the cluster does not listen after {timeout_s:g} s"
            )
        return self._home

    @property
    def pid(self) -> int | None:
        """The process id of the server; None while it is not running."""
        server = self._server
        return None if server is None else server.pid

    def close(self) -> None:
        """Stops the server; its rounds stay in the directory, if there is one."""
        self._closing.set()
        self._thread.join()

    def _keep(self) -> None:
        pause = _FIRST_PAUSE_S
        num_ended = 0
        while not self._closing.is_set():
            try:
                self._server = self._started()
            except (SparseaggError, OSError) as error:
                self._failure = error
                # A server that ends at once may not get its ports. Other errors say nothing of them, such as that the
                # server of before, whose clients know them, has not ended yet.
                num_ended += isinstance(error, UnavailableError)
                if self._home is None and num_ended == _PORT_STARTS:
                    self._ports = None
                self._closing.wait(pause)
                pause = min(2 * pause, _MOST_PAUSE_S)
                continue
            pause = _FIRST_PAUSE_S
            self._ready.set()
            while not self._closing.is_set() and not self._server.wait(0.2):
                pass
            server, self._server = self._server, None
            with contextlib.suppress(SparseaggError):  # it has ended before
                server.stop()
            if not self._closing.is_set():
                self.num_restarts += 1

    def _started(self) -> Server:
        if self._directory is not None and not self._directory.parent.is_dir():  # of a node that does not mount it
            raise FailedPreconditionError(
                f"{self._directory.parent} is not there: a server starts where its data directory can be alone"
            )
        port, http_port = self._ports or (0, 0)
        options = list(self._options)
        if not any(option.split("=")[0] == "--http-address" for option in options):
            host = f"[{self._host}]" if ":" in self._host else self._host
            options += ["--http-address", f"{host}:{http_port}"]
        server = Server(self._directory, host=self._host, port=port, options=options).start()
        http = server.http_address
        home = HomeServer(server.address, None if http is None else f"{self._scheme()}://{http}")
        self._ports = (_port_of(server.address), 0 if http is None else _port_of(http))
        self._home = self._home or home
        if self._directory is not None:
            with replaced(self._directory / _PORTS) as file:
                file.write(json.dumps(self._ports).encode())
        return server

    def _scheme(self) -> str:
        return "https" if any(option.startswith("--tls-certificate") for option in self._options) else "http"

    def _ports_of_before(self) -> tuple[int, int] | None:
        if self._directory is None:
            return None
        try:
            port, http_port = json.loads((self._directory / _PORTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return int(port), int(http_port)


class LocalServers:
    """Servers on this machine, as processes of this one."""

    def __init__(self, number: int, data_dir: str | os.PathLike[str] | None, options: Sequence[str]) -> None:
        if data_dir is not None:
            pathlib.Path(data_dir).mkdir(parents=True, exist_ok=True)
        self.keepers = [ServerKeeper(directory_of(data_dir, index), "127.0.0.1", options) for index in range(number)]
        try:
            until = time.monotonic() + _READY_S  # for all
            self.homes = [keeper.home(max(0.1, until - time.monotonic())) for keeper in self.keepers]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stops the servers, all at once."""
        on_all(self.keepers, ServerKeeper.close)


def directory_of(data_dir: str | os.PathLike[str] | None, index: int) -> pathlib.Path | None:
    """Returns the directory of a server; None without one for the cluster."""
    return None if data_dir is None else pathlib.Path(data_dir) / f"server-{index}"


def _port_of(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


_RAY_READY_S = 120.0  # of all servers: nodes may have to start first
_RESOURCE = "sparseagg_server"  # of nodes that mount the servers' volume
_RETRIES = 10  # of a call, when the actor has been started again
_NAMESPACE = "sparseagg"  # of actors with a name

# Where Ray looks for the token by which its processes know each other. Without one of them Ray makes a token for all of
# the user's clusters in ~/.ray/auth_token, which stays.
_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@contextlib.contextmanager
def ray_session(num_cpus: float) -> Iterator[Any]:
    """Lends Ray: the one that this process is connected to; or that of RAY_ADDRESS, as in a job of ``ray job submit``,
    or of ``ray start``; or one on this machine, which ends with the context.

    ``num_cpus``: that the caller's actors take. A Ray that is started here offers as many more as the machine has, for
    tasks such as those of Ray Data. Raises ``UnimplementedError`` if Ray is not installed.
    """
    try:
        ray: Any = importlib.import_module("ray")
        importlib.import_module("ray.util")
    except ImportError as error:
        raise UnimplementedError(f'a cluster with Ray needs it: pip install "ray[data]" ({error})') from error
    if ray.is_initialized():
        yield ray
        return
    own: dict[str, Any] = {"num_cpus": math.ceil(num_cpus) + (os.cpu_count() or 1), "include_dashboard": False}
    if os.environ.get("RAY_ADDRESS"):
        own = {}
    elif not (os.path.exists(os.path.expanduser("~/.ray/auth_token")) or any(map(os.environ.get, _TOKEN_VARIABLES))):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # for the rest of this process: Ray has read it
    try:
        try:
            ray.init(log_to_driver=False, **own)
        except ValueError:  # ``ray start`` has begun one here, which has its own number of cores
            ray.init(log_to_driver=False)
        yield ray
    finally:
        ray.shutdown()


class RayServers:
    """Servers that actors own, one each, spread over the nodes.

    Ray starts an actor that dies again, perhaps on another node. It starts its server on the same directory, and at the
    same ports where it can; not on a node without ``data_dir``, such as one that does not mount the volume. Where nodes
    have the resource "sparseagg_server", servers are on these alone (``deploy/kuberay``).

    Args:
        name: of the servers: their actors do not end with this process, and ``attach`` finds them. None: they end.
        data_dir: on every node that has servers; None: rounds live in memory.
        gpus: of each actor; its server sees them by CUDA_VISIBLE_DEVICES.

    Raises:
        AlreadyExistsError: there are servers of this name.
        DeadlineExceededError: not all servers listen in time, such as for lack of room in Ray.
    """

    def __init__(
        self,
        ray: Any,
        name: str | None,
        number: int,
        data_dir: str | os.PathLike[str] | None,
        options: Sequence[str],
        cpus: float,
        gpus: float,
    ) -> None:
        self._ray = ray
        if name is not None and _named(ray, name, 0) is not None:
            raise AlreadyExistsError(f"Ray has servers named {name!r}: Cluster.attach({name!r}) takes them")
        # One machine: its loopback, which needs no credentials. Several: the address of each node.
        nodes = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        local_node = next(iter(nodes)) if len(nodes) == 1 else None
        marks = {_RESOURCE: 1} if _RESOURCE in ray.cluster_resources() else {}
        made = ray.remote(
            num_cpus=cpus,
            num_gpus=gpus,
            resources=marks,
            max_restarts=-1,
            max_task_retries=_RETRIES,
            max_concurrency=4,
            scheduling_strategy="SPREAD",
        )(_ServerActor)
        self.actors: list[Any] = []
        try:
            for index in reversed(range(number)):  # where the first one is, a driver that died has made all of them
                kept: dict[str, Any] = {"lifetime": "detached", "get_if_exists": True, "namespace": _NAMESPACE}
                kept = {} if name is None else {"name": f"{name}/{index}", **kept}
                directory = directory_of(data_dir, index)
                placed = None if directory is None else str(directory)
                self.actors.insert(0, made.options(**kept).remote(placed, local_node, list(options), number))
            self._answers("home", {"CPU": cpus, "GPU": gpus, **marks})
        except BaseException:
            self.close()
            raise

    @classmethod
    def attach(cls, ray: Any, name: str) -> RayServers:
        """Returns the servers of a name that ``__init__`` has started, in this process or in another one.

        Raises:
            NotFoundError: there are none.
        """
        servers = cls.__new__(cls)
        servers._ray, servers.actors = ray, [_named(ray, name, 0)]
        if servers.actors == [None]:
            raise NotFoundError(f"Ray has no servers named {name!r}")
        (number,) = servers._answers("number")
        servers.actors += [_named(ray, name, index) for index in range(1, number)]
        return servers

    @property
    def homes(self) -> list[HomeServer]:
        """The servers' addresses of now."""
        return self._answers("home")

    def locators(self) -> list[functools.partial[str | None]]:
        """Returns for each server what tells its address of now, also to clients in other processes of this Ray."""
        return [functools.partial(_address_of, actor) for actor in self.actors]

    def close(self) -> None:
        """Stops the servers in order, then ends their actors."""
        with contextlib.suppress(Exception):  # whoever owns Ray has ended it
            stops = [actor.close.remote() for actor in self.actors]
            self._ray.wait(stops, num_returns=max(1, len(stops)), timeout=30.0)
            for actor in self.actors:
                self._ray.kill(actor)

    def _answers(self, method: str, share: dict[str, float] | None = None) -> list[Any]:
        """Returns the answers of all actors; ``share``: what each of them takes of a node."""
        calls = [getattr(actor, method).remote() for actor in self.actors]
        _, late = self._ray.wait(calls, num_returns=len(calls), timeout=_RAY_READY_S)
        if late:
            room = f": is there room in Ray, of {share} for each?" if share else ""
            raise DeadlineExceededError(
                f"{len(late)} of {len(calls)} servers do not listen after {_RAY_READY_S:g} s{room}"
            )
        return list(self._ray.get(calls))


def _named(ray: Any, name: str, index: int) -> Any:
    with contextlib.suppress(ValueError):  # there is no such actor
        return ray.get_actor(f"{name}/{index}", _NAMESPACE)
    return None


def _address_of(actor: Any, timeout_s: float) -> str | None:
    """Returns where the server of an actor is, once the actor runs; None: it does not answer in time."""
    ray: Any = importlib.import_module("ray")
    with contextlib.suppress(Exception):  # of Ray, which has no common type for them
        return str(ray.get(actor.home.remote(), timeout=min(timeout_s, _RAY_READY_S)).address)
    return None


class _ServerActor:
    """An actor with a server. Its constructor does not fail: Ray would never start the actor again."""

    def __init__(self, directory: str | None, local_node: str | None, options: Sequence[str], number: int = 1) -> None:
        node = importlib.import_module("ray.util").get_node_ip_address()
        is_local = node == local_node
        if directory is not None and is_local:
            os.makedirs(os.path.dirname(directory), exist_ok=True)
        self._keeper = ServerKeeper(directory, "127.0.0.1" if is_local else node, options)
        self._number = number

    def home(self) -> HomeServer:
        return self._keeper.home(_RAY_READY_S)

    def number(self) -> int:
        """Returns how many servers there are of this one's name."""
        return self._number

    def pids(self) -> tuple[int, int | None]:
        """Returns the process ids of the actor and of its server."""
        return os.getpid(), self._keeper.pid

    def close(self) -> None:
        self._keeper.close()
