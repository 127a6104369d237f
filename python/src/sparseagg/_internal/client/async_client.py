"""``sparseagg.aio.Client``, the client for asyncio. What makes calls is a coroutine.

The blocking ``sparseagg.Client`` runs these same coroutines without an event loop: its transport (transport.py) blocks
where the asyncio one awaits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, SupportsIndex

from sparseagg._internal.base.arguments import Timeout, checked_seconds
from sparseagg._internal.base.credentials import TLSArgument, TokenArgument
from sparseagg._internal.base.types import KeyEncoding, Updates
from sparseagg._internal.client.async_models import Model, ModelCalls
from sparseagg._internal.client.async_round import Round
from sparseagg._internal.client.async_stream import StreamCalls
from sparseagg._internal.client.async_tasks import TaskCalls
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.client.endpoint import MEMORY, Endpoint, checked_address, parsed_handle
from sparseagg._internal.client.memory_connection import MemoryConnection
from sparseagg._internal.client.retry import (
    RetryPolicy,
    checked_deadline,
    checked_retry,
    pages,
    raise_if_late,
    seconds_to,
)
from sparseagg._internal.client.round_calls import create_request, result_format, round_name
from sparseagg._internal.client.transport import AsyncioTransport, Transport
from sparseagg._internal.client.upload import Upload, aggregate_upload, aggregate_uploads
from sparseagg._internal.local.server import Server
from sparseagg._internal.local.server_directory import ServerDirectory
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.results.result import Result
from sparseagg._internal.results.server_info import ServerInfo
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg._internal.updates.contributors import checked_updates, named_updates
from sparseagg._internal.updates.inference import spec_of, with_spec
from sparseagg._internal.wire.encode import ValueEncoding, WireFormat
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

_LOCAL = ":local:"
_MAX_BACKUP_S = 86400.0  # of a backup without a timeout


class Client(TaskCalls, StreamCalls, ModelCalls):
    """A client of one server. ``async with`` closes it.

    A client may be made outside an event loop. The first call binds the client and its rounds to the running loop, and
    calls from another loop raise ``FailedPreconditionError``. Tasks of one loop may make calls at the same time. Not
    thread-safe: make another client for each thread's loop, and in a forked child.

    The constructor has the arguments of ``sparseagg.Client``. With the address ":local:" it starts a server, and blocks
    until that listens.

    Arrays are converted in another thread, while the event loop goes on: do not change them before the call returns.

    Time: the client's ``timeout`` limits a short call, one that carries no update and no result, with all its attempts.
    Some methods have a ``timeout`` too: it limits all that the method does, retries included; with None only the
    client's limit applies, to the short calls among it. Both raise ``DeadlineExceededError``.

        async with sparseagg.aio.Client("localhost:8001") as client:
            rnd = await client.create_round(spec)
            await rnd.submit("client-7", {"embedding": (keys, rows)})
            result = await rnd.finish()
    """

    _transport_class: type[Transport] = AsyncioTransport

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
        transport = self._transport_class()
        self._connection: Connection | MemoryConnection
        self._server: Server | None = None  # of ":local:"
        length, policy = checked_seconds("timeout", timeout), checked_retry(retry)
        if public_address is not None:
            checked_address(public_address, "a public_address")
        if address == MEMORY:
            _refuse(address, token=token, tls=tls, tenant=tenant, options=options, public_address=public_address)
            self._connection = MemoryConnection(Endpoint(address), transport, chunk_bytes, connections, device)
            return
        if device is not None:
            raise InvalidArgumentError(
                f'a client of "{address}" takes no device, which is for ":memory:": the server has its --backend'
            )
        if address == _LOCAL:
            _refuse(address, tls=tls)
            tls = False  # whatever the environment says of other servers
            # The folder of temporary files may have a path that is too long for a socket.
            self._server = Server(host="unix:" if ServerDirectory.temporary_fits_socket() else "127.0.0.1").start()
            address = self._server.address
        try:
            endpoint = Endpoint(
                checked_address(address),
                public_address,
                token,
                tls,
                length,
                policy,
                chunk_bytes,
                connections,
                options,
                tenant,
                insecure_token,
            )
            self._connection = Connection(endpoint, transport)
        except BaseException:
            if self._server is not None:
                self._server.stop()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return reconnected, (type(self), self._connection.endpoint)

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    @property
    def address(self) -> str:
        """The server's address, or ":memory:"."""
        return self._connection.endpoint.address

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections to the server.

        Calls under way raise ``CancelledError``, later calls ``FailedPreconditionError``.
        Rounds on a server stay open. Rounds of ":memory:" end, and the server that ":local:" started stops. A second
        call has no effect.
        """
        await self._connection.close()
        if self._server is not None:
            await self._connection.transport.convert(self._server.stop)

    async def server_info(self, *, timeout: Timeout = None) -> ServerInfo:
        """Returns the server's version, engine and limits.

        Args:
            timeout: in seconds or as a timedelta; None for the client's own.
        """
        request, deadline = pb.GetServerInfoRequest(with_activity=True), checked_deadline(timeout)
        return ServerInfo._from_proto(await self._connection.call("GetServerInfo", request, deadline=deadline))

    async def backup(self, name: str, *, timeout: Timeout = None) -> int:
        """Makes the server copy its data directory to the folder ``name`` of its --backup-dir; admins may.

        The copy has all that was acknowledged before the call, of all tenants, and is on the disk at the return.

        Args:
            name: ``[A-Za-z0-9_][A-Za-z0-9._-]{0,127}``.
            timeout: in seconds or as a timedelta; None for no limit. If the call ends early, there is no backup.

        Returns:
            The bytes that the copy takes.

        Raises:
            AlreadyExistsError: there is a backup of this name. It is whole; perhaps an earlier attempt of this call has
                made it, whose answer was lost.
            FailedPreconditionError: the server has no --data-dir or no --backup-dir.
            ResourceExhaustedError: the disk has no room for the copy.
            DeadlineExceededError: the copy was not there at the end of ``timeout``.
        """
        deadline = checked_deadline(timeout)
        request, wait_s = pb.CreateBackupRequest(name=name), min(seconds_to(deadline), _MAX_BACKUP_S)
        return int((await self._connection.call("CreateBackup", request, wait_s, deadline)).num_bytes)

    async def create_round(
        self, /, spec: RoundSpec | None = None, round_id: str | None = None, *, like: Any = None, **options: Any
    ) -> Round:
        """Opens a round.

            client.create_round(like={"embedding": (keys, rows)}, op="mean")

        Args:
            spec: what to compute, and until when. None: ``like`` has the tensors.
            round_id: ``[A-Za-z0-9_][A-Za-z0-9._-]{0,127}``; None: a random one. If the server has a round of this id
                with the same spec, that round is returned in its present state.
            like: an update, perhaps with a weight, of whose names, dtypes, widths and shapes others will be; as the
                first update of ``sparseagg.aggregate`` without a spec. Its keys and values are not sent.
            options: with ``like``, those of ``RoundSpec``, such as ``op``.

        Raises:
            InvalidArgumentError: the spec has no meaning; the message names the field. Or neither it nor ``like`` is
                given, or both are.
            AlreadyExistsError: the server has a round of this id with another spec.
            ResourceExhaustedError: the server has too many rounds, or no memory for this one.
        """
        request = create_request(spec_of(spec, like, options), round_id)
        return Round(self._connection, RoundInfo._from_proto(await self._connection.call("CreateRound", request)))

    async def get_round(self, name: str) -> Round:
        """Returns a round by its id or its name ("rounds/{id}"); ``NotFoundError`` if the server has none."""
        return Round(self._connection, await self._connection.get_round(round_name(name)))

    async def list_rounds(self) -> AsyncIterator[Round]:
        """Yields all rounds of the server, oldest first."""
        async for page in pages(self._connection, "ListRounds", pb.ListRoundsRequest()):
            for proto in page.rounds:
                yield Round(self._connection, RoundInfo._from_proto(proto))

    async def aggregate(
        self,
        /,
        updates: Updates,
        spec: RoundSpec | None = None,
        *,
        key_encoding: KeyEncoding = "auto",
        value_encoding: ValueEncoding = None,
        timeout: Timeout = None,
        **options: Any,
    ) -> Result:
        """Merges updates in one call, without a round.

        Args:
            updates: a mapping from client ids to updates, or an iterable of updates, whose positions become the client
                ids. An update is an update of ``Round.submit``, or a pair (update, weight). An iterator must make new
                arrays for each update, since all arrays are read after the last update. (Gradients of a module are
                copied.)
            spec: what to compute. None: as of ``sparseagg.aggregate``, with ``options`` such as ``op``.
            key_encoding: both ways; see ``Round.submit``.
            value_encoding: of the updates; see ``Round.submit``. The result's values are not rounded.
            timeout: of the whole operation with its retries, in seconds or as a timedelta; None for no limit. The time
                includes the conversion of ``updates``, which the timeout does not interrupt.

        Raises:
            InvalidArgumentError: the spec or an update is wrong. Nothing is merged.
            TimeoutError: (``DeadlineExceededError``) there is no result at the end of ``timeout``.
            FailedPreconditionError, OutOfRangeError: the merge failed; the message names tensor and key.
        """
        updates, spec = with_spec(checked_updates(updates), spec, options)
        deadline = checked_deadline(timeout)
        with raise_if_late(deadline, "the aggregation has not ended"):
            server = await self._connection.server_wire(deadline)
            uploads = await self._uploads(
                spec, updates, server.chunk_bytes, server.format(spec, key_encoding, value_encoding)
            )
            answer = result_format(key_encoding, None)  # value_encoding is of the updates, not of the result
            reader = await self._connection.aggregate(spec, uploads, answer, deadline)
        return reader.result()

    async def _uploads(self, spec: RoundSpec, updates: Updates, chunk_bytes: int, wire: WireFormat) -> list[Upload]:
        """Converts all updates in another thread: a list or mapping as a whole, other iterables update by update."""
        convert, device = self._connection.transport.convert, self._connection.device_reader
        if isinstance(updates, (list, Mapping)):
            return await convert(aggregate_uploads, spec, updates, chunk_bytes, wire, device)
        return [
            await convert(aggregate_upload, spec, *named, chunk_bytes, wire, device) for named in named_updates(updates)
        ]


def _refuse(address: str, **arguments: Any) -> None:
    """Raises ``InvalidArgumentError`` if a client of this address does not take one of the arguments."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise InvalidArgumentError(
                f'a client of "{address}" takes no {name}, which is for servers at other addresses'
            )


def reconnected(client_class: Any, endpoint: Endpoint) -> Any:
    """Returns a client like the one that was pickled; its connections open with its first calls."""
    client = client_class(**endpoint.arguments())
    client._connection.endpoint = endpoint
    # As the one that was pickled probably had. The blocking client has the same connection.
    client._connection.has_reached = True
    return client


async def of_handle(kind: str, handle: str, client_class: type[Client], options: Mapping[str, Any]) -> Any:
    """Returns the round or model that a handle names, over a client of that class; see ``Round.from_handle``."""
    address, name = parsed_handle(kind, handle)
    client = client_class(address, **options)
    client._connection.has_reached = True  # not by this client, but the server has made it: it may restart now
    try:
        found: Round | Model = await (client.model(name) if kind == "models" else client.get_round(name))
        found._owns_connection = True
        return found
    except BaseException:
        await client.close()
        raise
