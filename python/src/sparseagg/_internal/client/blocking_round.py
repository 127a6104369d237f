"""``sparseagg.Round``: the round for programs without an event loop.

Each method runs the coroutine of the same name in ``async_round`` over a ``BlockingTransport``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsFloat

from sparseagg._internal.base.arguments import Timeout
from sparseagg._internal.base.renamed import ENCODINGS, renamed
from sparseagg._internal.base.types import Update
from sparseagg._internal.client import async_round
from sparseagg._internal.client.transport import run
from sparseagg._internal.results.info import RoundInfo, Submission
from sparseagg._internal.results.result import Result
from sparseagg._internal.updates.contributors import ClientId
from sparseagg._internal.wire.formats import ValueEncoding

__all__ = ["Round"]


@renamed({"end": "close() and wait()", **ENCODINGS})
class Round(async_round.RoundAttributes):
    """A round on the server, from the methods of ``Client``, or from ``open_round``. Thread-safe.

    A round can be pickled, unless it is one of ":memory:". The copy has a connection of its own, as a round of
    ``open_round`` has; its first call opens it. The pickle has the client's arguments, a token among them.
    """

    def __init__(self, inner: async_round.Round) -> None:
        self._round = inner

    def __reduce__(self) -> tuple[Any, ...]:
        return Round, (self._round,)

    def __enter__(self) -> Round:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Closes the connection of a round from ``open_round`` or from a pickle. The round itself stays as it is.

        Without effect for a round from a client, whose connection is the client's. A ``with`` statement does the same.
        A round that is no longer used releases its connection by itself.
        """
        run(self._round.release())

    @property
    def handle(self) -> str:
        """A string from which ``open_round`` makes this round in another process, such as "sparseagg://host:port/rounds/ID".

        It has the client's ``public_address``, by default its ``address``.

        Raises:
            FailedPreconditionError: the round is one of ":memory:", which no other process can reach.
        """
        return self._round.handle

    @property
    def info(self) -> RoundInfo:
        """The round as the server described it last; ``refresh`` asks again."""
        return self._round.info

    def refresh(self) -> RoundInfo:
        """Asks the server for the round, and returns it as it is now."""
        return run(self._round.refresh())

    def submit(
        self,
        client_id: ClientId,
        update: Update,
        weight: SupportsFloat | None = None,
        *,
        key_encoding: str = "auto",
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
            progress: show a progress bar on standard error.
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
        return run(
            self._round.submit(
                client_id,
                update,
                weight,
                key_encoding=key_encoding,
                value_encoding=value_encoding,
                submission_id=submission_id,
                resumable=resumable,
                progress=progress,
                timeout=timeout,
            )
        )

    def submissions(self) -> list[Submission]:
        """Returns the submissions that count, in the bytewise order of client ids, in which sums are folded.

        A round that is cancelled has none.
        """
        return run(self._round.submissions())

    def withdraw(self, client_id: ClientId) -> bool:
        """Takes a client's submission out of the open round, as if it had never been sent. The client may submit again.

        Returns:
            Whether there was a submission to withdraw. False, too, if an earlier attempt of this call has withdrawn the
            submission, and its answer was lost.

        Raises:
            RoundClosedError: the round takes no submissions any more, and gives none back.
            FailedPreconditionError: the round merges submissions when they arrive, as it does where a tensor has the
                numerics "fixed_point". To leave out a client there, submit again to a new round.
        """
        return run(self._round.withdraw(client_id))

    def close(self, timeout: Timeout = None, *, only: Iterable[ClientId] | None = None) -> RoundInfo:
        """Closes the round: it takes no more submissions, and the server starts the merge. Does not wait for the merge.

        A round that is closed already stays as it is.

        Args:
            timeout: in seconds or as a timedelta; None for the client's.
            only: the clients whose submissions count, such as those that the trainer takes for successful; the others
                are withdrawn. None for all clients. If this fails, the round stays open.

        Returns:
            The round as it is now: "finalizing" while the server merges, or in its final state.

        Raises:
            FailedPreconditionError: a client of ``only`` has no submission; or a submission to leave out was merged
                when it arrived (see ``withdraw``); or the round is closed already, and other clients count.
            RoundFailedError: with ``only``, where the round has ended without a result.
            TimeoutError: (``DeadlineExceededError``) the server has not answered five seconds after ``timeout``.
        """
        return run(self._round.close(timeout, only=only))

    def wait(self, timeout: Timeout = None) -> RoundInfo:
        """Waits until the round has ended. Returns the round, which is done, failed or cancelled.

        Args:
            timeout: in seconds or as a timedelta; None for no limit.

        Raises:
            TimeoutError: (``DeadlineExceededError``) the round has not ended within ``timeout``, or the server has not
                answered five seconds later.
        """
        return run(self._round.wait(timeout))

    def result(
        self,
        tensors: Sequence[str] | None = None,
        *,
        keys: tuple[int, int | None] | None = None,
        key_encoding: str = "auto",
        value_encoding: str | None = None,
        timeout: Timeout = None,
    ) -> Result:
        """Waits until the round has ended, and reads its result or a part of it, any number of times.

        The round must be closed by somebody: by ``close``, at ``max_submissions`` or at its ``deadline``. If the
        connection breaks, the reading goes on where it stopped.

        Args:
            tensors: names of one tensor or more; None for all.
            keys: range of keys (begin, end) without end; an end of None is behind the last key. None for all keys.
            key_encoding: how keys are sent: "auto" for the smallest encoding, or "plain". The arrays are the same.
            value_encoding: rounds float values, to nearest even, before they are sent: "float32", "float16", "bfloat16"
                or "int8_scaled", as in ``submit``, where the result's dtype is wider. The arrays have the result's
                dtype. A page with values beyond the range of the narrower type comes unchanged.
            timeout: of waiting and reading, in seconds or as a timedelta; None for no limit.

        Raises:
            InvalidArgumentError: ``keys`` is no range, or ``tensors`` is empty or names an unknown tensor.
            RoundFailedError: the round has ended without a result; the message says why.
            NotFoundError: the result has expired.
            AbortedError: the connection broke, and the name is now that of another round.
            TimeoutError: (``DeadlineExceededError``) the round has not ended, or the result has not been read, within
                ``timeout``. A later call may read it.
        """
        return run(
            self._round.result(
                tensors, keys=keys, key_encoding=key_encoding, value_encoding=value_encoding, timeout=timeout
            )
        )

    def finish(
        self,
        timeout: Timeout = None,
        *,
        only: Iterable[ClientId] | None = None,
        key_encoding: str = "auto",
        value_encoding: str | None = None,
    ) -> Result:
        """Closes the round and reads all tensors: ``close`` and ``result``, with their arguments and errors.

        Args:
            timeout: of all that this does, in seconds or as a timedelta; None for no limit. ``result`` can read later
                what could not be read within this time.
            only: see ``close``.
            key_encoding: see ``result``.
            value_encoding: see ``result``.
        """
        return run(self._round.finish(timeout, only=only, key_encoding=key_encoding, value_encoding=value_encoding))

    def cancel(self, reason: str = "") -> RoundInfo:
        """Ends the round without a result and discards its submissions.

        Raises:
            FailedPreconditionError: the round is done or failed.
        """
        return run(self._round.cancel(reason))

    def delete(self) -> None:
        """Removes the round and its result from the server; ``NotFoundError`` if the server has no such round."""
        run(self._round.delete())
