"""The rounds of both clients: every operation of a round as a coroutine.

To *close* a round is to take no more submissions and to start the merge. A round that is done, failed or cancelled *has
ended*. Only a round that is *done* has a result. To *finish* a round is to close it and to read its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

import numpy as np

from sparseagg._internal.base.arguments import Timeout, checked_text
from sparseagg._internal.base.foreign import Array
from sparseagg._internal.base.types import KeyEncoding, NarrowEncoding, Update
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.client.endpoint import Endpoint
from sparseagg._internal.client.memory_connection import MemoryConnection
from sparseagg._internal.client.retry import checked_deadline, naming_round, pages, raise_if_late
from sparseagg._internal.client.round_calls import RoundCalls, close_request, result_format, result_request
from sparseagg._internal.client.transport import Transport
from sparseagg._internal.client.upload import submit_columns, submit_update
from sparseagg._internal.results.info import BatchReceipt, RoundInfo, Submission, raise_if_failed
from sparseagg._internal.results.result import Result
from sparseagg._internal.updates.contributors import (
    ClientId,
    checked_client_id,
)
from sparseagg._internal.wire.encode import ValueEncoding
from sparseagg.errors import FailedPreconditionError, UnimplementedError
from sparseagg.v1 import aggregation_pb2 as pb


class Round(RoundCalls):
    """A round on the server, from the methods of ``Client``, or from ``from_handle``. Threads: as ``Client``.

    The attributes are those of ``sparseagg.Round``.

    After an error, ``info`` is the last description that the server has given, after a ``RoundFailedError`` that of the
    failed or cancelled round.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnected, (self._connection.endpoint, type(self._connection.transport), self.info)

    async def submit(
        self,
        client_id: ClientId,
        update: Update,
        weight: SupportsFloat | None = None,
        *,
        key_encoding: KeyEncoding = "auto",
        value_encoding: ValueEncoding = None,
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
            client_id: 1–256 bytes in UTF-8 without control characters, unique in the round; "" for the name of this
                client's credential. Sums are folded in the bytewise order of client ids. An integer stands for its
                decimal text.
            update: a mapping from tensor names to tensors, where a tensor that is left out is not touched; or the
                tensor itself, in a round of one tensor; or a torch module, for the gradients of its parameters. A
                tensor is one of these:

                - A pair (keys, rows) of arrays, of shapes (n,) and (n, row_width). Keys come in any order. A key that
                  is repeated denotes the sum of its rows. Rows are None for a union.
                - A sparse tensor of torch, SciPy or TensorFlow, or IndexedSlices. In a row of which some columns are
                  stored, the other columns are zeros, which count in minima, maxima and means.
                - A ``TensorResult`` of another round, without its counts and weights.
                - A dense array of num_rows × row_width values, which touches every key.

                The axes of sparse and dense arrays make first the rows, then the columns of a row.
            weight: 0 or more; required for the weighting "by_weight". Where no tensor has that, None or 1: any other
                weight would have no effect.
            key_encoding: how keys are sent; the update is the same. "auto": the smallest encoding that the server
                knows, slice by slice. Only keys that ascend, without repetitions, can be packed; other keys are sent
                plain. "plain": 4 or 8 bytes a key.
            value_encoding: rounds the values, to nearest even, to send fewer bytes: "float16" and "bfloat16" take 2
                bytes a value, "int8_scaled" takes 1 and a sixteenth (64 values share a scale, and the largest of them
                is 127 steps). A name is for all float32 and float64 tensors ("float32": for all float64 tensors), a
                mapping from tensor names to such names for these tensors. The rounded values then are the update. None:
                the values are sent unchanged.
            submission_id: the name of this content; None for a random one. If the id comes again, also from another
                process, with the same content, weight, ``value_encoding`` and chunk size, the upload goes on where it
                broke off. With other content, the upload begins again and replaces the one that the server has.
            resumable: send the update in single calls, from the first chunk that the server does not have. (An upload
                that breaks off does so from its second attempt on.) With a ``submission_id``, the arrays are hashed
                first, which takes about 1.5 ms a megabyte.
            progress: show a progress bar on standard error, if that is a terminal.
            timeout: of the whole operation with its retries, in seconds or as a timedelta; None for no limit. The time
                includes the conversion of ``update``, which the timeout does not interrupt.

        Raises:
            InvalidArgumentError: the update is wrong; the message names client, tensor, key and value. The round stays
                open.
            RoundClosedError: the round takes no submissions any more.
            NotFoundError: the round has been deleted, or its result_ttl is over.
            AlreadyExistsError: this client has submitted other content, which counts.
            FailedPreconditionError: another upload has replaced this one under its ``submission_id``.
            ResourceExhaustedError: a limit of the spec or of the server is exceeded.
            UnavailableError: the server could not be reached in all attempts.
            TimeoutError: (``DeadlineExceededError``) the submission has not ended within ``timeout``. The submission
                may count nevertheless, if only the answer was late. Sent again, it counts once.
        """
        deadline = checked_deadline(timeout)
        # No answer by the deadline is a DeadlineExceededError. A FailedPreconditionError names the round and its state.
        with raise_if_late(deadline, f"the submission to {self.name} has not ended"), naming_round(self.name):
            client_id = checked_client_id(client_id)
            return await submit_update(
                self._connection.at_home(self.spec, client_id),
                self.spec,
                update,
                client_id=client_id,
                weight=weight,
                round_name=self.name,
                submission_id=submission_id,
                key_encoding=key_encoding,
                value_encoding=value_encoding,
                resumable=resumable,
                progress=progress,
                deadline=deadline,
            )

    async def submit_batch(
        self,
        client_ids: Sequence[ClientId],
        updates: Mapping[str, tuple[Any, Any, Any]],
        weights: Sequence[SupportsFloat] | Any = None,
        *,
        submission_id: str | None = None,
        timeout: Timeout = None,
    ) -> BatchReceipt:
        """Sends the updates of many clients in few messages. For small updates, ten times as fast as ``submit``.

        Each update counts, or is refused, as if ``submit`` had sent it alone. When this method returns, all but those
        in ``refused`` of the receipt count.

            >>> rnd.submit_batch(["a", "b"], {"v": ([0, 2, 3], [5, 9, 5], [1.0, 2.0, 3.0])})

        Here "a" submits rows at keys 5 and 9, and "b" at key 5.

        Args:
            client_ids: n ids, as for ``submit``.
            updates: by name of tensor a triple (offsets, keys, rows): the keys and rows of all clients, one client
                after the other, and n + 1 offsets, of which the i-th and the next one bound those of client i.
            weights: n weights; required for the weighting "by_weight".
            submission_id: the name of these contents; None for a random one.
            timeout: of the whole operation, in seconds or as a timedelta; None for no limit.

        Raises:
            InvalidArgumentError: the arrays do not fit each other or the spec; nothing has been sent.
            NotFoundError: the round has been deleted, or its result_ttl is over.
            PermissionDeniedError: the credential is of a client that has a name, and another id is in the list.
            UnimplementedError: the server is older than this method.
            UnavailableError: the server could not be reached in all attempts; what came before may count. Sent again,
                each submission counts once.
            TimeoutError: (``DeadlineExceededError``) likewise, after ``timeout``.
        """
        deadline = checked_deadline(timeout)
        with raise_if_late(deadline, f"the submissions to {self.name} have not ended"), naming_round(self.name):
            homes = self._homes_of(client_ids)
            return await submit_columns(
                homes, self.spec, self.name, client_ids, updates, weights, submission_id, deadline
            )

    def _homes_of(self, client_ids: Sequence[ClientId]) -> dict[Connection | MemoryConnection, Array | None]:
        """Returns the positions of the clients of each home; None: all of them."""
        if self.spec.cluster is None:
            return {self._connection: None}
        found: dict[Connection | MemoryConnection, list[int]] = {}
        for position, client_id in enumerate(client_ids):
            home = self._connection.at_home(self.spec, checked_client_id(client_id))
            found.setdefault(home, []).append(position)
        return {home: np.array(positions) for home, positions in found.items()} or {self._connection: None}

    async def submissions(self) -> list[Submission]:
        """Returns the submissions that count, in the bytewise order of client ids, in which sums are folded.

        A round that is cancelled has none.
        """
        request = pb.ListSubmissionsRequest(round=self.name)
        return [
            Submission._from_proto(proto, self.name)
            async for page in pages(self._connection, "ListSubmissions", request)
            for proto in page.submissions
        ]

    async def withdraw(self, client_id: ClientId) -> bool:
        """Takes a client's submission out of the open round, as if it had never been sent. The client may submit again.

        Returns:
            Whether there was a submission to withdraw. False, too, if an earlier attempt of this call has withdrawn the
            submission, and its answer was lost.

        Raises:
            RoundClosedError: the round takes no submissions any more, and gives none back.
            FailedPreconditionError: the round merges submissions when they arrive, as it does where a tensor has the
                numerics "binned". To leave out a client there, submit again to a new round.
        """
        request = pb.WithdrawSubmissionRequest(round=self.name, client_id=checked_client_id(client_id))
        home = self._connection.at_home(self.spec, request.client_id)
        with naming_round(self.name):
            return bool((await home.call("WithdrawSubmission", request)).withdrawn)

    async def start_merge(
        self,
        timeout: Timeout = None,
        *,
        only: Iterable[ClientId] | None = None,
        client_weights: Mapping[ClientId, SupportsFloat] | None = None,
    ) -> RoundInfo:
        """Closes the round: it takes no more submissions, and the server starts the merge. Does not wait for that.

        A round that is closed already stays as it is.

        Args:
            timeout: in seconds or as a timedelta; None for the client's.
            only: the clients whose submissions count, such as those that the trainer takes for successful; the others
                are withdrawn. None for all clients. If this fails, the round stays open.
            client_weights: for a sealed round, a factor for each client that has submitted, 0 or more; the weight of
                the client's submission is multiplied by it. With 0, the submission is withdrawn. The result has the
                bits of a round with the weighting "by_weight" whose clients have sent these weights. Factors other than
                0 and 1 need tensors of floats with canonical numerics, and an op that uses weights. If this fails, the
                round stays sealed. Not with ``only``.

        Returns:
            The round as it is now: "finalizing" while the server merges, or in its final state.

        Raises:
            FailedPreconditionError: a client of ``only`` has no submission; or a submission to leave out was merged
                when it arrived (see ``withdraw``); or the round is closed already, and other clients count.
            RoundFailedError: with ``only``, where the round has ended without a result.
            TimeoutError: (``DeadlineExceededError``) the server has not answered five seconds after ``timeout``.
        """
        return await self._close(close_request(self.name, only, client_weights), checked_deadline(timeout))

    async def wait(self, timeout: Timeout = None) -> RoundInfo:
        """Waits until the round has ended. Returns the round, which is done, failed or cancelled.

        Args:
            timeout: in seconds or as a timedelta; None for no limit.

        Raises:
            TimeoutError: (``DeadlineExceededError``) the round has not ended within ``timeout``, or the server has not
                answered five seconds later.
        """
        return await self._wait(checked_deadline(timeout))

    async def result(
        self,
        tensors: Sequence[str] | None = None,
        *,
        keys: tuple[int, int | None] | None = None,
        key_encoding: KeyEncoding = "auto",
        value_encoding: NarrowEncoding | None = None,
        progress: bool = False,
        timeout: Timeout = None,
    ) -> Result:
        """Waits until the round has ended, and reads its result or a part of it, any number of times.

        The round must be closed by somebody: by ``start_merge``, at ``max_submissions`` or at its ``deadline``. If the
        connection breaks, the reading goes on where it stopped.

        Args:
            tensors: names of one tensor or more; None for all.
            keys: range of keys (begin, end) without end; an end of None is behind the last key. None for all keys.
            key_encoding: how keys are sent: "auto" for the smallest encoding, or "plain". The arrays are the same.
            value_encoding: rounds float values, to nearest even, before they are sent: "float32", "float16", "bfloat16"
                or "int8_scaled", as in ``submit``, where the result's dtype is wider. The arrays have the result's
                dtype. A page with values beyond the range of the narrower type comes unchanged.
            progress: show a progress bar on standard error, if that is a terminal.
            timeout: of waiting and reading, in seconds or as a timedelta; None for no limit.

        Raises:
            InvalidArgumentError: ``keys`` is no range, or ``tensors`` is empty or names an unknown tensor.
            RoundFailedError: the round has ended without a result; the message says why.
            NotFoundError: the result has expired.
            AbortedError: the connection broke, and the name is now that of another round.
            TimeoutError: (``DeadlineExceededError``) the round has not ended, or the result has not been read, within
                ``timeout``. A later call may read it.
        """
        request = result_request(self.name, tensors, keys, result_format(key_encoding, value_encoding))
        return await self._read(request, checked_deadline(timeout), progress=progress)

    async def finish(
        self,
        timeout: Timeout = None,
        *,
        only: Iterable[ClientId] | None = None,
        client_weights: Mapping[ClientId, SupportsFloat] | None = None,
        key_encoding: KeyEncoding = "auto",
        value_encoding: NarrowEncoding | None = None,
    ) -> Result:
        """Closes the round, waits for the merge and reads all tensors: ``start_merge`` and ``result`` in one call.

        Args:
            timeout: of all that this does, in seconds or as a timedelta; None for no limit. ``result`` can read later
                what could not be read within this time.
            only: see ``start_merge``.
            client_weights: see ``start_merge``.
            key_encoding: see ``result``.
            value_encoding: see ``result``.
        """
        # All arguments are checked before the round is closed.
        request = result_request(self.name, None, None, result_format(key_encoding, value_encoding))
        deadline = checked_deadline(timeout)
        await self._close(close_request(self.name, only, client_weights), deadline)
        return await self._read(request, deadline)

    async def cancel(self, reason: str = "") -> RoundInfo:
        """Ends the round without a result and discards its submissions.

        Raises:
            FailedPreconditionError: the round is done or failed.
        """
        return await self._call(
            "CancelRound", pb.CancelRoundRequest(round=self.name, reason=checked_text("a reason", reason))
        )

    async def delete(self) -> None:
        """Removes the round and its result from the server; ``NotFoundError`` if the server has no such round."""
        await self._connection.call("DeleteRound", pb.DeleteRoundRequest(round=self.name))

    async def _close(self, request: pb.CloseRoundRequest, deadline: float | None) -> RoundInfo:
        """Closes the round on the server."""
        try:
            await self._call("CloseRound", request, deadline)
        except FailedPreconditionError as error:  # with only_client_ids
            self.info = await self._connection.get_round(self.name, deadline)
            raise_if_failed(self.info, error)
            raise
        wanted, counted = len(request.only_client_ids), self.info.num_submissions
        if wanted not in (0, counted):  # an older server does not see the field, and counts all
            raise UnimplementedError(
                f"{self.name} counts {counted} submissions instead of {wanted}: the server is too old"
            )
        return self.info


def _reconnected(endpoint: Endpoint, transport_class: type[Transport], info: RoundInfo) -> Round:
    """Returns a round that was pickled, with a connection of its own, which opens at the first call."""
    connection = Connection(endpoint, transport_class())
    connection.has_reached = True  # by the round that was pickled: the server may restart now
    return Round(connection, info, owns_connection=True)
