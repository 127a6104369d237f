"""``sparseagg.Client`` and ``sparseagg.Round``: the client for programs without an event loop.

Each method runs the coroutine of the same name in ``async_client`` over a ``BlockingTransport``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, SupportsFloat, SupportsIndex

from sparseagg.arguments import Timeout
from sparseagg.client import async_client
from sparseagg.client.retry import RetryPolicy
from sparseagg.client.transport import BlockingTransport, run
from sparseagg.credentials import TLSArgument, TokenArgument
from sparseagg.info import RoundInfo, ServerInfo, Submission
from sparseagg.result import Result
from sparseagg.spec import RoundSpec
from sparseagg.wire.formats import Values

__all__ = ["Client", "Round"]


class _Operations(async_client.Client):
    """The client's operations, over the transport that blocks."""

    _transport_class = BlockingTransport


class Client:
    """A client of one server. A context manager that disconnects. Thread-safe.

        with sparseagg.Client("localhost:8001") as client:
            rnd = client.create_round(spec)
            rnd.submit("client-7", {"embedding": (keys, rows)})
            result = rnd.close()

    Every method raises the subclass of ``SparseaggError`` for the status code of the server's answer. The client
    repeats calls that fail with UNAVAILABLE or CANCELLED (a server that stops), as ``retry`` says. This is safe: a
    submission counts once however often it arrives.

    Args:
        address: "host:port" of a server. Or ":memory:": the engine in this process merges the rounds, which this client
            alone has, and which end with it; token, tls, tenant and options are refused, and timeout, retry,
            chunk_bytes and connections have no effect. Or ":local:": the client starts a server on this machine and
            stops it with ``disconnect``, at the latest with this process; ``address`` is the server's.
        token: bearer token, sent with every call, or a function that returns the token of the present, for tokens that
            expire. None: that of SPARSEAGG_TOKEN in the environment, if there is one.
        tls: False for a plain connection, True for TLS with the system's certificate authorities, a path for TLS with
            the authorities in that PEM file, ``TLS`` for a certificate of the client too, or gRPC credentials.
        tenant: whose rounds an admin works with; None: those of its own tenant. Others have only one.
        insecure_token: sends the token also over a plain connection to another machine, where everybody on the way can
            read it. Otherwise that is an ``InvalidArgument``.
        timeout: limit of one call, in seconds or as a timedelta; None for no limit. It does not apply to calls that
            send or commit an update or read a result: ``Round.submit``, ``Round.result`` and the like have a
            ``timeout`` of their own. With any timeout, a server that answers no pings for a minute is UNAVAILABLE.
        retry: when to repeat calls; None for the default, ``RetryPolicy(attempts=1)`` for never.
        chunk_bytes: about how many bytes one message has; None for 1 MiB. The server's limit applies in any case.
        connections: number of TCP connections at most. The client opens another one when it sends an update or reads a
            result while all open ones do so, too.
        options: gRPC channel options, such as ("grpc.enable_http_proxy", 0). By default, gRPC uses the proxy that
            ``http_proxy`` names, except for the loopback and for hosts that ``no_proxy`` lists.

    Raises:
        InvalidArgument: an argument has a wrong type or value; the message says which one.
        EngineMissing: ":memory:" on an installation without an engine; the message says what to install.
        ProgramMissing: ":local:" on an installation without a server; the message says what to install.
    """

    def __init__(
        self,
        address: str,
        *,
        token: TokenArgument = None,
        tls: TLSArgument = False,
        tenant: str | None = None,
        insecure_token: bool = False,
        timeout: Timeout = 60.0,
        retry: RetryPolicy | None = None,
        chunk_bytes: SupportsIndex | None = None,
        connections: SupportsIndex = 4,
        options: list[tuple[str, Any]] | None = None,
    ) -> None:
        self._client = _Operations(
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
        )
        self._connection = self._client._connection
        self.address = self._client.address

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Closes the connection. Calls under way raise ``errors.Cancelled``, later calls ``FailedPrecondition``.

        Rounds of ":memory:" end, and the server of ":local:" stops.
        """
        run(self._client.disconnect())

    def close(self) -> None:
        """The same as ``disconnect``. Rounds stay open on a server."""
        self.disconnect()

    def server_info(self) -> ServerInfo:
        """Returns the server's version, engine and limits."""
        return run(self._client.server_info())

    def create_round(self, spec: RoundSpec, round_id: str | None = None) -> Round:
        """Opens a round.

        Args:
            spec: what to compute, and until when.
            round_id: [A-Za-z0-9._-]{1,128}; None for a random id. If the server has a round of this id with the same
                spec, that round is returned in its present state.

        Raises:
            InvalidArgument: the spec has no meaning; the message names the field.
            AlreadyExists: the server has a round of this id with another spec.
            ResourceExhausted: the server has too many rounds, or no memory for this one.
        """
        return Round(run(self._client.create_round(spec, round_id)))

    def get_round(self, name: str) -> Round:
        """Returns a round by its id or its name ("rounds/{id}"); ``NotFound`` if the server has none."""
        return Round(run(self._client.get_round(name)))

    def list_rounds(self) -> Iterator[Round]:
        """Yields all rounds of the server, oldest first."""
        token: str | None = ""
        while token is not None:
            rounds, token = run(self._client._page_of_rounds(token))
            yield from map(Round, rounds)

    def aggregate(
        self,
        updates: Any,
        spec: RoundSpec,
        *,
        encoding: str = "auto",
        values: Values = None,
        timeout: Timeout = None,
    ) -> Result:
        """Merges updates in one call, without a round.

        Args:
            updates: a mapping from client ids to updates, or an iterable of updates, whose positions become the client
                ids. An update is an update of ``Round.submit``, or a pair (update, weight). An iterator must make new
                arrays for each update, since all arrays are read after the last update. (Gradients of a module are
                copied.)
            spec: what to compute.
            encoding: of the keys, both ways; see ``Round.submit``.
            values: of the updates; see ``Round.submit``. The result's values are not rounded.
            timeout: of the whole operation with its retries, in seconds or as a timedelta; None for no limit. The time
                includes the conversion of ``updates``, which the timeout does not interrupt.

        Raises:
            InvalidArgument: the spec or an update is wrong. Nothing is merged.
            TimeoutError: (``DeadlineExceeded``) there is no result at the end of ``timeout``.
            FailedPrecondition, OutOfRange: the merge failed; the message names tensor and key.
        """
        return run(self._client.aggregate(updates, spec, encoding=encoding, values=values, timeout=timeout))


class Round(async_client.RoundAttributes):
    """A round on the server, from ``Client.create_round``, ``get_round`` or ``list_rounds``. Thread-safe."""

    def __init__(self, inner: async_client.Round) -> None:
        self._round = inner

    @property
    def info(self) -> RoundInfo:
        """The round as the server described it last; ``refresh`` asks again."""
        return self._round.info

    def refresh(self) -> RoundInfo:
        """Asks the server for the round, and returns it as it is now."""
        return run(self._round.refresh())

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
        """Sends one client's update. When this method returns, the submission counts, completely and once.

        Arrays of the tensor's dtype are sent without a copy. Floats of another width, and integers for a tensor of
        floats, are rounded to the tensor's dtype, to nearest even, and must be within its range. Integers for a tensor
        of integers must fit its dtype. uint16 arrays for bfloat16 are the bits of the values. A thread that flushes
        denormals flushes those of arrays that are rounded or widened, not of arrays that are sent unchanged.

        Args:
            client_id: 1–256 bytes in UTF-8, unique in the round. Sums are folded in the bytewise order of client ids.
            update: a mapping from tensor names to tensors, where a tensor that is left out is not touched; or the
                tensor itself, in a round of one tensor; or a torch module, for the gradients of its parameters. A
                tensor is one of these:

                - A pair (keys, rows) of arrays, of shapes (n,) and (n, width). Keys come in any order. A key that is
                  repeated denotes the sum of its rows. Rows are None for a union.
                - A sparse tensor of torch, SciPy or TensorFlow, or IndexedSlices. In a row of which some columns are
                  stored, the other columns are zeros, which count in minima, maxima and means.
                - A ``TensorResult`` of another round, without its counts and weights.
                - A dense array of dimension × width values, which touches every key.

                The axes of sparse and dense arrays make first the dimension, then the width.
            weight: 0 or more; required for the weighting "by_weight", without effect for any other.
            encoding: of the keys on their way; the update is the same. "auto": the smallest encoding that the server
                knows, slice by slice. Only keys that ascend, without repetitions, can be packed; other keys are sent
                plain. "plain": 4 or 8 bytes a key.
            values: rounds the values, to nearest even, to send fewer bytes: "float16" and "bfloat16" take 2 bytes a
                value, "int8_scaled" takes 1 and a sixteenth (64 values share a scale, and the largest of them is 127
                steps). A name is for all float32 and float64 tensors ("float32": for all float64 tensors), a mapping
                from tensor names to such names for these tensors. The rounded values then are the update. None: the
                values are sent unchanged.
            submission_id: the name of this content; None for a random one. If the id comes again, also from another
                process, with the same content, weight, ``values`` and chunk size, the upload goes on where it broke
                off. With other content, the upload begins again and replaces the one that the server has.
            resumable: send the update in single calls, from the first chunk that the server does not have. (An upload
                that breaks off does so from its second attempt on.) With a ``submission_id``, the arrays are hashed
                first, which takes about 1.5 ms a megabyte.
            progress: show a progress bar on standard error.
            timeout: of the whole operation with its retries, in seconds or as a timedelta; None for no limit. The time
                includes the conversion of ``update``, which the timeout does not interrupt.

        Raises:
            InvalidArgument: the update is wrong; the message names tensor, position and value. The round stays open.
            FailedPrecondition: the round is not open, or another upload has replaced this one under its
                ``submission_id``.
            AlreadyExists: this client has another submission in the round, which counts.
            ResourceExhausted: a limit of the spec or of the server is exceeded.
            Unavailable: the server could not be reached in all attempts.
            TimeoutError: (``DeadlineExceeded``) the submission has not ended within ``timeout``. The submission may
                count nevertheless, if only the answer was late. Sent again, it counts once.
        """
        return run(
            self._round.submit(
                client_id,
                update,
                weight,
                encoding=encoding,
                values=values,
                submission_id=submission_id,
                resumable=resumable,
                progress=progress,
                timeout=timeout,
            )
        )

    def close(self, timeout: Timeout = None, *, encoding: str = "auto", values: str | None = None) -> Result:
        """Ends the submissions, waits for the merge, and reads all tensors. The result of a closed round is just read.

        Args:
            timeout: of merge and reading together, in seconds or as a timedelta; None for no limit. ``result`` can read
                later what could not be read within this time.
            encoding: of the keys on their way; see ``result``.
            values: of the values on their way; see ``result``.

        Raises:
            RoundFailed: the round has no result; the message says why.
            TimeoutError: (``DeadlineExceeded``) the merge or the reading has not ended within ``timeout``, or the
                server has not answered five seconds later.
        """
        return run(self._round.close(timeout, encoding=encoding, values=values))

    def end(self, timeout: Timeout = None) -> RoundInfo:
        """Ends the submissions and waits for the merge, like ``close``, with the same errors, but reads nothing."""
        return run(self._round.end(timeout))

    def wait(self, timeout: Timeout = None) -> RoundInfo:
        """Waits until the round has ended. Returns the round, which is done, failed or cancelled.

        Args:
            timeout: in seconds or as a timedelta; None for no limit.

        Raises:
            TimeoutError: (``DeadlineExceeded``) the round has not ended within ``timeout``, or the server has not
                answered five seconds later.
        """
        return run(self._round.wait(timeout))

    def result(
        self,
        tensors: Sequence[str] | None = None,
        *,
        keys: tuple[int, int | None] | None = None,
        encoding: str = "auto",
        values: str | None = None,
        timeout: Timeout = None,
    ) -> Result:
        """Reads the result of a round that is done, or a part of it, any number of times.

        If the connection breaks, the reading goes on where it stopped.

        Args:
            tensors: names of one tensor or more; None for all.
            keys: range of keys (begin, end) without end; an end of None is behind the last key. None for all keys.
            encoding: of the keys on their way, "auto" for the smallest, or "plain". The arrays are the same.
            values: rounds float values, to nearest even, before they are sent: "float32", "float16", "bfloat16" or
                "int8_scaled", as in ``submit``, where the result's dtype is wider. The arrays have the result's dtype.
                A page with values beyond the range of the narrower type comes unchanged.
            timeout: of the whole operation with its retries, in seconds or as a timedelta; None for no limit.

        Raises:
            InvalidArgument: ``keys`` is no range, or ``tensors`` is empty or names an unknown tensor.
            FailedPrecondition: the round has not ended.
            RoundFailed: the round has ended without a result; the message says why.
            NotFound: the result has expired.
            Aborted: the connection broke, and the name is now that of another round.
            TimeoutError: (``DeadlineExceeded``) the result has not been read within ``timeout``.
        """
        return run(self._round.result(tensors, keys=keys, encoding=encoding, values=values, timeout=timeout))

    def cancel(self, reason: str = "") -> RoundInfo:
        """Ends the round without a result and discards its submissions.

        Raises:
            FailedPrecondition: the round is done or failed.
        """
        return run(self._round.cancel(reason))

    def delete(self) -> None:
        """Removes the round and its result from the server; ``NotFound`` if the server has no such round."""
        run(self._round.delete())
