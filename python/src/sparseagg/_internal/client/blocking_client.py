"""``sparseagg.Client``: the client for programs without an event loop.

Each method runs the coroutine of the same name in ``async_client`` over a ``BlockingTransport``.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

from sparseagg._internal.base.arguments import Timeout
from sparseagg._internal.base.credentials import TLSArgument, TokenArgument
from sparseagg._internal.base.durations import Seconds
from sparseagg._internal.client import async_client
from sparseagg._internal.client.blocking import blocking, blocking_iterator
from sparseagg._internal.client.blocking_round import Round
from sparseagg._internal.client.blocking_stream import Stream
from sparseagg._internal.client.published_model import PublishedModel
from sparseagg._internal.client.retry import RetryPolicy
from sparseagg._internal.client.transport import BlockingTransport, run

__all__ = ["Client", "open_round"]


class _Operations(async_client.Client):
    """The client's operations, over the transport that blocks."""

    _transport_class = BlockingTransport


class Client:
    """A client of one server. ``with`` closes it. Thread-safe.

        with sparseagg.Client("localhost:8001") as client:
            rnd = client.create_round(spec)
            rnd.submit("client-7", {"embedding": (keys, rows)})
            result = rnd.finish()

    Every method raises the subclass of ``SparseaggError`` for the status code of the server's answer. The client
    repeats calls that fail with UNAVAILABLE or CANCELLED (a server that stops), as ``retry`` says. This is safe: a
    submission counts once however often it arrives.

    A client can be pickled, unless its address is ":memory:" or ``tls`` is credentials of gRPC. The copy has the same
    arguments, the token among them, and connections of its own. A copy of a client of ":local:" is a client of the same
    server, which ends with the first client. A forked child may go on with the client: it opens connections of its own.

    Args:
        address: "host:port" of a server; or several, "a:8001,b:8001", of which calls go to one that can be reached: the
            servers of a cluster, where a submission goes to its client's home whichever one answers. Or ":memory:":
            the engine in this process merges the rounds, which this client alone has, and which end with it; token,
            tls, tenant and options are refused, and timeout, retry, chunk_bytes and connections have no effect. Or
            ":local:": the client starts a server on this machine and stops it with ``close``, at the latest with this
            process; ``address`` is the server's, a Unix socket that this user alone can connect to.
        token: bearer token, sent with every call, or a function that returns the token of the present, for tokens that
            expire. None: that of SPARSEAGG_TOKEN in the environment, if there is one.
        tls: False for a plain connection, True for TLS with the system's certificate authorities, a path for TLS with
            the authorities in that PEM file, ``TLS`` for a certificate of the client too, or gRPC credentials. None: as
            the environment says: SPARSEAGG_TLS_CA (a path, or "system"), SPARSEAGG_TLS_CERTIFICATE, SPARSEAGG_TLS_KEY.
        tenant: whose rounds an admin works with; None: those of its own tenant. Others have only one.
        insecure_token: sends the token also over a plain connection to another machine, where everybody on the way can
            read it. Otherwise that is an ``InvalidArgumentError``.
        timeout: limit of one call with all its attempts, in seconds or as a timedelta; None for no limit. It does not
            apply to calls that send or commit an update or read a result: ``Round.submit``, ``Round.result`` and the
            like have a ``timeout`` of their own. With any timeout, a server that answers no pings for a minute is
            UNAVAILABLE.
        retry: when to repeat calls; None for the default, ``RetryPolicy(attempts=1)`` for never. By default, a client
            that has not reached its server before raises ``UnavailableError`` at once where nothing listens at the
            address. With a policy, it waits for the server to start, as it waits for one that restarts.
        chunk_bytes: about how many bytes one message has; None for 2 MiB to a server on this machine, and for 1 MiB to
            others. The server's limit applies in any case.
        connections: number of connections at most. The client opens another one when it sends an update or reads a
            result while all open ones do so, too.
        options: gRPC channel options, such as ("grpc.enable_http_proxy", 0). By default, gRPC uses the proxy that
            ``http_proxy`` names, except for the loopback and for hosts that ``no_proxy`` lists.
        public_address: the address by which other machines reach the server; it stands in ``Round.handle``. None for
            ``address``.
        device: of ":memory:": "cuda" merges on the GPU, and needs the package ``sparseagg-cuda13``; updates may then
            have arrays in its memory, which are copied there, as ``sparseagg.aggregate`` takes them. "cpu" and None
            merge on the CPU. The result has the same bits.

    Raises:
        InvalidArgumentError: an argument has a wrong type or value; the message says which one.
        EngineMissingError: ":memory:" on an installation without the engine; the message says what to install.
        UnavailableError: the GPU's engine does not work on this machine; the message says why.
        ProgramMissingError: ":local:" on an installation without a server; the message says what to install.
    """

    def __init__(
        self,
        address: str,
        *,
        token: TokenArgument = None,
        tls: TLSArgument = None,
        tenant: str | None = None,
        insecure_token: bool = False,
        timeout: Timeout = 60.0,
        retry: RetryPolicy | None = None,
        chunk_bytes: SupportsIndex | None = None,
        connections: SupportsIndex = 4,
        options: list[tuple[str, Any]] | None = None,
        public_address: str | None = None,
        device: str | None = None,
    ) -> None:
        self._inner = _Operations(
            address,
            token=token,
            tls=tls,
            tenant=tenant,
            insecure_token=insecure_token,
            timeout=timeout,
            retry=retry,
            chunk_bytes=chunk_bytes,
            connections=connections,
            options=options,
            public_address=public_address,
            device=device,
        )
        self._connection = self._inner._connection

    def __reduce__(self) -> tuple[Any, ...]:
        return async_client.reconnected, (type(self), self._connection.endpoint)

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    @property
    def address(self) -> str:
        """The server's address, or ":memory:"."""
        return self._inner.address

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = blocking(_Operations.close)
    server_info = blocking(_Operations.server_info)
    backup = blocking(_Operations.backup)
    create_round = blocking(_Operations.create_round, Round)
    get_round = blocking(_Operations.get_round, Round)
    list_rounds = blocking_iterator(_Operations.list_rounds, Round)
    stream = blocking(_Operations.stream, Stream)
    get_stream = blocking(_Operations.get_stream, Stream)
    list_streams = blocking_iterator(_Operations.list_streams, Stream)

    def model(
        self, name: str, *, keep_bytes: SupportsIndex | None = None, result_ttl: Seconds | None = None
    ) -> PublishedModel:
        """Returns a model that one coordinator publishes on the server, and clients read. Calls nothing yet.

        Args:
            name: [A-Za-z0-9_][A-Za-z0-9._-]{0,99}; its rounds have ids that begin with it.
            keep_bytes: of the publisher: bytes of rounds to keep, beside the newest whole model and the changes after
                it, which stay in any case; None: as many as three whole models.
            result_ttl: of the publisher: how long the server keeps a version, in seconds or as a timedelta. None: the
                server's limit (--max-result-ttl).
        """
        return PublishedModel(self._inner.model(name, keep_bytes=keep_bytes, result_ttl=result_ttl))

    aggregate = blocking(_Operations.aggregate)
    create_tasks = blocking(_Operations.create_tasks)
    lease_task = blocking(_Operations.lease_task)
    extend_lease = blocking(_Operations.extend_lease)
    complete_task = blocking(_Operations.complete_task)
    fail_task = blocking(_Operations.fail_task)
    get_task = blocking(_Operations.get_task)
    list_tasks = blocking_iterator(_Operations.list_tasks)
    cancel_tasks = blocking(_Operations.cancel_tasks)


def open_round(handle: str, **options: Any) -> Round:
    """Returns the round of a handle, with a connection of its own: all that a worker needs is the string.

        with sparseagg.open_round(handle) as rnd:
            rnd.submit("client-7", update)

    Args:
        handle: of ``Round.handle``. It says where updates go: open only those of a coordinator that you trust.
        options: arguments of ``Client``, such as ``token`` and ``tls``.

    Raises:
        InvalidArgumentError: this is no handle, or an option has a wrong type or value.
        NotFoundError: the server has no such round; its result_ttl may be over.
    """
    return Round(run(async_client.open_round(handle, client_class=_Operations, **options)))
