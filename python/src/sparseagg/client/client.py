"""The client, for programs without an event loop; ``sparseagg.aio`` has its asyncio twin."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, SupportsFloat, SupportsIndex

from sparseagg.arguments import Timeout, checked_seconds, checked_text
from sparseagg.client.calls import (
    checked_deadline,
    create_request,
    naming_round,
    poll_pause,
    poll_seconds,
    raise_if_failed,
    raise_if_going_on,
    raise_if_late,
    raise_if_past,
    raise_if_unheard,
    result_format,
    result_request,
    wait_request,
)
from sparseagg.client.channel import TLS, checked_address, credentials, metadata, round_name
from sparseagg.client.connection import Connection
from sparseagg.client.progress import ProgressBar
from sparseagg.client.retry import RetryPolicy, checked_retry
from sparseagg.client.upload import aggregate_requests, aggregate_uploads, make_upload
from sparseagg.errors import FailedPrecondition
from sparseagg.info import RoundInfo, ServerInfo, Submission
from sparseagg.result import Result
from sparseagg.spec import RoundSpec, checked_spec
from sparseagg.updates import checked_updates
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.wire.formats import Values

__all__ = ["Client", "Round"]


class Client:
    """A connection to a server. Thread-safe; a context manager that closes it.

    Every method raises the subclass of ``SparseaggError`` of the code that the server answers with. UNAVAILABLE
    and CANCELLED (a server that stops) are tried again, as ``retry`` says, which is safe: what has arrived twice counts
    once.

    Args:
        address: "host:port".
        token: sent with every call as a bearer token, for a proxy in front of the server, which knows no tokens itself:
            it answers whatever comes with a call. Without ``tls`` everybody on the way can read it.
        tls: False for a plain connection, True to trust the system's authorities, the path of a PEM file to trust
            those in it, or gRPC credentials.
        timeout: of one call that sends no update, commits none and reads no result, in seconds or as a timedelta; None:
            for ever.
            Methods that do, take one of their own. Whatever it is, a server that does not answer pings is UNAVAILABLE
            after a minute.
        retry: when to try again; ``RetryPolicy(attempts=1)`` for never.
        chunk_bytes: about how much to put in one message; by default 1 MiB, in any case what the server takes.
        connections: at most so many TCP connections. Another one is made when bulk is sent or read on all there are.
        options: of the gRPC channel, such as ("grpc.enable_http_proxy", 0). gRPC uses a proxy that ``http_proxy`` names
            otherwise, but not for the loopback, nor for what ``no_proxy`` lists.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: TLS = False,
        timeout: Timeout = 60.0,
        retry: RetryPolicy | None = None,
        chunk_bytes: SupportsIndex | None = None,
        connections: SupportsIndex = 4,
        options: list[tuple[str, Any]] | None = None,
    ) -> None:
        self.address = checked_address(address)
        self._connection = Connection(
            address,
            metadata(token),
            credentials(tls),
            checked_seconds("timeout", timeout),
            checked_retry(retry),
            chunk_bytes,
            connections,
            options,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Closes the connection. Calls under way raise ``errors.Cancelled``, later ones ``FailedPrecondition``."""
        self._connection.close()

    def close(self) -> None:
        """The same as ``disconnect``. No round is closed."""
        self.disconnect()

    def server_info(self) -> ServerInfo:
        """Returns the server's version, engine and limits."""
        return ServerInfo.from_proto(self._connection.call("GetServerInfo", pb.GetServerInfoRequest()))

    def create_round(self, spec: RoundSpec, round_id: str | None = None) -> Round:
        """Opens a round.

        Args:
            spec: what to compute, and until when.
            round_id: [A-Za-z0-9._-]{1,128}; by default a random one. A round of this id and the same spec that exists
                already is returned as it stands.

        Raises:
            InvalidArgument: the spec makes no sense; the message names the field.
            AlreadyExists: a round of this id has another spec.
            ResourceExhausted: the server has too many rounds, or no memory for this one.
        """
        request = create_request(spec, round_id)
        return Round(self._connection, RoundInfo.from_proto(self._connection.call("CreateRound", request)))

    def get_round(self, name: str) -> Round:
        """Returns a round by id or by name ("rounds/{id}"); ``NotFound`` if there is none."""
        return Round(self._connection, self._connection.get_round(round_name(name)))

    def list_rounds(self) -> Iterator[Round]:
        """Yields all rounds the server knows, oldest first."""
        token = ""
        while True:
            response = self._connection.call("ListRounds", pb.ListRoundsRequest(page_token=token))
            for proto in response.rounds:
                yield Round(self._connection, RoundInfo.from_proto(proto))
            token = response.next_page_token
            if not token:
                return

    def aggregate(
        self,
        updates: Any,
        spec: RoundSpec,
        *,
        encoding: str = "auto",
        values: Values = None,
        timeout: Timeout = None,
    ) -> Result:
        """Merges updates in one call, with no round to manage.

        Args:
            updates: a mapping from client ids to updates, or a list of updates, whose positions become the ids; an
                update is what ``Round.submit`` takes, or a pair (update, weight). Any iterable will do, if it makes
                new arrays for each update: those of all are read when the last one is there. (Gradients of a module
                are copied.)
            spec: what to compute.
            encoding: of keys, as in ``Round.submit``; also of those in the result.
            values: of the updates, as in ``Round.submit``. The result comes as it is.
            timeout: of all this, retries included, in seconds; None: for ever. The conversion of ``updates`` counts,
                but is not cut short.

        Raises:
            InvalidArgument: the spec or one of the updates is wrong, and nothing is merged.
            TimeoutError: (``DeadlineExceeded``) there is no result by the ``timeout``.
            FailedPrecondition, OutOfRange: the merge failed; the message names tensor and key.
        """
        spec, updates = checked_spec(spec), checked_updates(updates)
        deadline = checked_deadline(timeout)
        with raise_if_late(deadline, "the aggregation has not ended"):
            server = self._connection.server_wire(deadline)
            uploads = aggregate_uploads(spec, updates, server.chunk_bytes, server.format(spec, encoding, values))
            answer = result_format(encoding, None)
            reader = self._connection.aggregate(lambda: aggregate_requests(spec, uploads, answer), deadline)
        return reader.result()


class Round:
    """A round on the server. Made by ``Client.create_round``, ``get_round`` and ``list_rounds``. Thread-safe."""

    def __init__(self, connection: Connection, info: RoundInfo) -> None:
        self._connection = connection
        self._info = info

    @property
    def name(self) -> str:
        """The name, "rounds/{id}"."""
        return self._info.name

    @property
    def id(self) -> str:
        """The id, without "rounds/"."""
        return self.name.partition("/")[2]

    @property
    def spec(self) -> RoundSpec:
        """What it computes."""
        return self._info.spec

    @property
    def info(self) -> RoundInfo:
        """The round as last heard of; ``refresh`` asks again."""
        return self._info

    def __repr__(self) -> str:
        return f"Round({self.name!r}, {self._info.state})"

    def refresh(self) -> RoundInfo:
        """Asks the server for the round as it is now."""
        self._info = self._connection.get_round(self.name)
        return self._info

    def submit(
        self,
        client_id: str,
        update: Any,
        weight: SupportsFloat | None = None,
        *,
        encoding: str = "auto",
        values: Values = None,
        submission_id: str | None = None,
        resumable: bool = False,
        progress: bool = False,
        timeout: Timeout = None,
    ) -> Submission:
        """Sends one client's update; when this returns, it counts, completely and once.

        Arrays of the wire's type are not copied before they are sent. floats of another width, and integers given for a
        tensor of floats, are rounded to the tensor's dtype, to nearest even, and must be in its range; integers given
        for a tensor of integers must fit. uint16 given for bfloat16 is its bits. A thread that flushes denormals
        flushes those of arrays that are rounded or widened, not of those that are sent as they are.

        Args:
            client_id: 1–256 bytes in UTF-8, unique in the round. Their order, bytewise, is that of the sums.
            update: a mapping from tensor names to tensors; in a round of one tensor that tensor will do; or a torch
                module, for the gradients of its parameters. A tensor is a pair (keys, rows) of arrays, of shapes (n,)
                and (n, width), in any order and with repetitions, which denote sums; rows are None for a union. Or
                a sparse torch, SciPy or TensorFlow tensor or IndexedSlices: columns that are not stored, of a row of
                which others are, become zeros, which count in minima, maxima and means. Or the
                ``TensorResult`` of another round, without its counts and weights. Or anything dense, of
                dimension × width values, which touches every key; its axes make first the dimension, then the width,
                as do those of what is sparse. Tensors that are left out are not touched.
            weight: ≥ 0; required with "by_weight". Where no tensor has that, it changes nothing.
            encoding: of the keys. "auto": the smallest that the server knows, slice by slice; packed keys need to
                ascend, without repetitions, and others are sent as they are. "plain": 4 or 8 bytes a key. What the
                update says, and so the result, is the same.
            values: rounds values, to nearest even, so that they take fewer bytes: "float16" and "bfloat16" 2,
                "int8_scaled" 1 and a sixteenth (64 values share a scale, the largest of them being 127 steps). A name
                is for all float32 and float64 tensors, "float32" for float64 ones; a mapping from tensors to names is
                for those. The update then says the rounded values. None: they are sent as they are.
            submission_id: names this content; by default a random one. Given again with the same content, weight,
                ``values`` and size of chunks, be it by another process, it resumes an upload that broke off. Otherwise
                the upload begins anew, in place of the one that is there.
            resumable: upload by single calls, from where the server's part of it ends. (Uploads that break off do this
                from their second attempt on.) With a ``submission_id`` the arrays are hashed before, which takes about
                1.5 ms a megabyte.
            progress: show a bar on standard error.
            timeout: of all this, retries included, in seconds; None: for ever. The conversion of ``update`` counts, but
                is not cut short.

        Raises:
            InvalidArgument: the update is wrong; the message names tensor, position and value. The round goes on.
            FailedPrecondition: the round is not open; or another upload has taken the place of this one under its
                ``submission_id``.
            AlreadyExists: this client has submitted something else, and that stands.
            ResourceExhausted: beyond a limit of the spec or the server.
            Unavailable: the server could not be reached, after all retries.
            TimeoutError: (``DeadlineExceeded``) it has not ended by the ``timeout``. It may count nevertheless, where
                only the answer was late; sent again, it counts once.
        """
        deadline = checked_deadline(timeout)
        with raise_if_late(deadline, f"the submission to {self.name} has not ended"), naming_round(self.name):
            server = self._connection.server_wire(deadline)
            upload = make_upload(
                self.spec,
                update,
                client_id=client_id,
                weight=weight,
                chunk_bytes=server.chunk_bytes,
                wire=server.format(self.spec, encoding, values),
                round_name=self.name,
                submission_id=submission_id,
            )
            if not progress:
                return self._connection.submit(upload, resumable, None, deadline)
            with ProgressBar(f"upload {client_id}", upload.num_bytes, "B") as bar:
                return self._connection.submit(upload, resumable, bar, deadline)

    def close(self, timeout: Timeout = None, *, encoding: str = "auto", values: str | None = None) -> Result:
        """Stops taking submissions, waits for the merge, and reads all tensors. A round closed already is just read.

        Args:
            timeout: for the merge and for reading, in seconds; None: for ever. What could not be read by then,
                ``result`` reads later.
            encoding: and ``values``: how the result comes, as in ``result``.

        Raises:
            RoundFailed: the round has no result; the message says why.
            TimeoutError: (``DeadlineExceeded``) the merge is still going on, or the result not read, or the server has
                not answered five seconds later.
        """
        request = result_request(self.name, None, None, result_format(encoding, values))  # refuses what is unknown
        deadline = checked_deadline(timeout)
        self._end(deadline)
        return self._read(request, deadline)

    def end(self, timeout: Timeout = None) -> RoundInfo:
        """Stops taking submissions and waits for the merge, as ``close``, but reads nothing; errors are the same."""
        return self._end(checked_deadline(timeout))

    def _end(self, deadline: float | None) -> RoundInfo:
        request = pb.CloseRoundRequest(name=self.name)
        with raise_if_unheard(deadline, self._info):
            self._info = RoundInfo.from_proto(
                self._connection.call("CloseRound", request, deadline=deadline, patient=True)
            )
        raise_if_failed(self._wait(deadline))
        return self._info

    def wait(self, timeout: Timeout = None) -> RoundInfo:
        """Waits until the round has ended, and returns it as it then is, be it done, failed or cancelled.

        Args:
            timeout: in seconds; None: for ever.

        Raises:
            TimeoutError: (``DeadlineExceeded``) it has not ended by then, or the server has not answered five seconds
                later.
        """
        return self._wait(checked_deadline(timeout))

    def _wait(self, deadline: float | None) -> RoundInfo:
        while True:
            begun, poll = time.monotonic(), poll_seconds(deadline)
            request = wait_request(self.name, poll)
            with raise_if_unheard(deadline, self._info):
                self._info = RoundInfo.from_proto(
                    self._connection.call("WaitRound", request, poll, deadline, patient=True)
                )
            if self._info.ended:
                return self._info
            raise_if_past(deadline, self._info)
            time.sleep(poll_pause(self._connection.retry, poll, begun))

    def result(
        self,
        tensors: Sequence[str] | None = None,
        *,
        keys: tuple[int, int | None] | None = None,
        encoding: str = "auto",
        values: str | None = None,
        timeout: Timeout = None,
    ) -> Result:
        """Reads the result of a round that is done, as often as wanted. Where the connection breaks, it goes on.

        Args:
            tensors: their names, one at least; None: all.
            keys: (begin, end) of a range of keys, end exclusive; an end of None: to the last key.
            encoding: of keys on their way: "auto" for the smallest, "plain". The arrays are the same.
            values: rounds float values, to nearest even, before they are sent: "float32", "float16", "bfloat16",
                "int8_scaled", as in ``submit``, where the result's dtype is wider. They come back in that dtype. Values
                beyond the range of the narrower type come as they are, with the page that they are in.
            timeout: of all this, retries included, in seconds; None: for ever.

        Raises:
            InvalidArgument: ``keys`` is no range, or ``tensors`` is empty, or one of them is none of the round's.
            FailedPrecondition: the round has not ended.
            RoundFailed: it has ended without a result; the message says why.
            NotFound: the result has expired.
            Aborted: the connection broke meanwhile, and the name is that of another round now.
            TimeoutError: (``DeadlineExceeded``) it has not been read by the ``timeout``.
        """
        request = result_request(self.name, tensors, keys, result_format(encoding, values))
        return self._read(request, checked_deadline(timeout))

    def _read(self, request: pb.StreamResultRequest, deadline: float | None) -> Result:
        with raise_if_late(deadline, f"the result of {self.name} has not been read"):
            try:
                reader = self._connection.read(request, self._info, deadline)
            except FailedPrecondition as error:
                self._info = self._connection.get_round(self.name, deadline)
                raise_if_failed(self._info, error)
                raise_if_going_on(self._info, error)
                raise
            if not self._info.ended:
                self._info = self._connection.get_round(self.name, deadline)
        return reader.result(self._info)

    def cancel(self, reason: str = "") -> RoundInfo:
        """Ends the round without a result and drops its submissions; ``FailedPrecondition`` if it is done or failed."""
        request = pb.CancelRoundRequest(name=self.name, reason=checked_text("a reason", reason))
        self._info = RoundInfo.from_proto(self._connection.call("CancelRound", request))
        return self._info

    def delete(self) -> None:
        """Makes the server forget the round and its result; ``NotFound`` if it has none of this name."""
        self._connection.delete_round(self.name)
