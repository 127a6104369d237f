"""The clients for programs without an event loop: each method runs the coroutine of its asyncio twin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sparseagg._internal.client import async_client, async_models, async_round, async_stream
from sparseagg._internal.client.endpoint import Handled
from sparseagg._internal.client.round_calls import RoundAttributes
from sparseagg._internal.client.transport import BlockingTransport, blocking, blocking_iterator, run, with_arguments_of

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Self

    P = ParamSpec("P")


T = TypeVar("T")
U = TypeVar("U")


class _Twin:
    """An object whose public attributes, which its class documents, are those of its asyncio twin."""

    _ATTRIBUTES: tuple[str, ...] = ("name", "spec", "info", "handle", "address")

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in self._ATTRIBUTES:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self._inner, name)

        def __dir__(self) -> list[str]:
            return [*super().__dir__(), *(name for name in self._ATTRIBUTES if hasattr(self._inner, name))]


class _Handled(_Twin):
    """What rounds and models have in common."""

    _KIND: ClassVar[str]
    handle: str

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    @classmethod
    def from_handle(cls, handle: str, **options: Any) -> Self:
        """Returns the round, or the model, of a handle, with a connection of its own: a worker needs the string alone.

            with sparseagg.Round.from_handle(handle) as rnd:
                rnd.submit("client-7", update)

        Args:
            handle: of ``Round.handle`` or ``Model.handle``. It says where updates go: open only those of a coordinator
                that you trust.
            options: arguments of ``Client``, such as ``token`` and ``tls``.

        Raises:
            InvalidArgumentError: this is no such handle, or an option has a wrong type or value.
            NotFoundError: the server has no such round or model; the round's result_ttl may be over.
        """
        return cls(run(async_client.of_handle(cls._KIND, handle, _Operations, options)))

    _release = blocking(Handled._release)


class Round(_Handled, RoundAttributes):
    """A round on the server, from the methods of ``Client``, or from ``from_handle``. Thread-safe.

    A round can be pickled, unless it is one of ":memory:". The copy has a connection of its own, as a round of
    ``from_handle`` has; its first call opens it. The pickle has the client's arguments, a token among them.

    Attributes:
        name: the name, "rounds/{id}".
        spec: the round's spec.
        info: the round as the server described it at ``info.as_of``; ``refresh`` asks again. ``submit`` and calls of
            others do not change it.
        handle: a string from which ``from_handle`` makes this round in another process, such as
            "sparseagg://host:port/rounds/ID". It has the client's ``public_address``, by default its ``address``.
            ``FailedPreconditionError`` for a round of ":memory:", which no other process can reach.
    """

    _KIND = "rounds"

    def __reduce__(self) -> tuple[Any, ...]:
        return Round, (self._inner,)

    refresh = blocking(async_round.Round.refresh)
    submit = blocking(async_round.Round.submit)
    submit_batch = blocking(async_round.Round.submit_batch)
    submissions = blocking(async_round.Round.submissions)
    withdraw = blocking(async_round.Round.withdraw)
    seal = blocking(async_round.Round.seal)
    _inspect = blocking(async_round.Round._inspect)
    start_merge = blocking(async_round.Round.start_merge)
    wait = blocking(async_round.Round.wait)
    result = blocking(async_round.Round.result)
    finish = blocking(async_round.Round.finish)
    certificate = blocking(async_round.Round.certificate)
    _receipt = blocking(async_round.Round._receipt)
    _export = blocking(async_round.Round._export)
    cancel = blocking(async_round.Round.cancel)
    delete = blocking(async_round.Round.delete)


class Stream(_Twin, async_stream.StreamAttributes):
    """A stream on the server, from ``Client.create_stream`` or ``Client.get_stream``. Threads: as ``Client``.

    stream = client.create_stream(spec, buffer=32, staleness=sa.staleness.polynomial(0.5), max_staleness=20)
    stream.submit("client-7", update, base_version=version)   # a client, whenever it is ready
    for version in stream.versions():                         # the coordinator
        result = stream.result(version.version)

    Attributes:
        name: the stream's name, "streams/{id}".
        spec: what each version computes.
        info: the stream as the server described it at ``info.as_of``; ``refresh`` asks again.
    """

    refresh = blocking(async_stream.Stream.refresh)
    submit = blocking(async_stream.Stream.submit)
    submit_batch = blocking(async_stream.Stream.submit_batch)
    withdraw = blocking(async_stream.Stream.withdraw)
    cut = blocking(async_stream.Stream.cut)
    watch = blocking(async_stream.Stream.watch)
    versions = blocking_iterator(async_stream.Stream.versions)
    round = blocking(async_stream.Stream.round, Round)
    result = blocking(async_stream.Stream.result)
    delete = blocking(async_stream.Stream.delete)


class Model(_Handled, async_models.ModelAttributes):
    """A model on the server, from ``Client.model`` or ``from_handle``. Threads: as ``Client``; a model keeps no rows.

        for version in model.versions():                          # a client, anywhere
            emb, head = model.read({"emb": keys, "head": ...}, version=version)
            new_emb, new_head = train(emb, head)
            stream.submit(me, {"emb": (keys, new_emb - emb), "head": new_head - head}, base_version=version)

    Attributes:
        name: the model's name, "models/{id}".
        info: the model as the server described it at ``info.as_of``; ``refresh`` asks again.
        handle: a string from which ``from_handle`` makes this model in another process; as ``Round.handle``.
    """

    _KIND = "models"

    refresh = blocking(async_models.Model.refresh)
    wait = blocking(async_models.Model.wait)
    versions = blocking_iterator(async_models.Model.versions)
    read = blocking(async_models.Model.read)
    changes = blocking(async_models.Model.changes)
    catch_up = blocking(async_models.Model.catch_up)
    create_round = blocking(async_models.Model.create_round, Round)
    get_stream = blocking(async_models.Model.get_stream, Stream)
    apply = blocking(async_models.Model.apply)
    assign = blocking(async_models.Model.assign)
    delete = blocking(async_models.Model.delete)


class _Operations(async_client.Client):
    """The client's operations, over the transport that blocks."""

    _transport_class = BlockingTransport


class Client(_Twin):
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

    Attributes:
        address: the server's address, or ":memory:".
    """

    address: str

    @with_arguments_of(async_client.Client.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        inner = _Operations(*args, **options)
        self._inner, self._connection = inner, inner._connection

    def __reduce__(self) -> tuple[Any, ...]:
        return async_client.reconnected, (type(self), self._connection.endpoint)

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

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
    create_stream = blocking(_Operations.create_stream, Stream)
    get_stream = blocking(_Operations.get_stream, Stream)
    list_streams = blocking_iterator(_Operations.list_streams, Stream)
    model = blocking(_Operations.model, Model)
    list_models = blocking_iterator(_Operations.list_models, Model)
    aggregate = blocking(_Operations.aggregate)
    work = blocking(_Operations.work)
    create_tasks = blocking(_Operations.create_tasks)
    lease_task = blocking(_Operations.lease_task)
    extend_lease = blocking(_Operations.extend_lease)
    complete_task = blocking(_Operations.complete_task)
    fail_task = blocking(_Operations.fail_task)
    get_task = blocking(_Operations.get_task)
    list_tasks = blocking_iterator(_Operations.list_tasks)
    cancel_tasks = blocking(_Operations.cancel_tasks)
