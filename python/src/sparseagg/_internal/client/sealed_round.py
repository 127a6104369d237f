"""The operations of a round that is sealed or has ended: its submissions, evidence of what it computed, and rules."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

import numpy as np

from sparseagg._internal.base.arguments import Timeout, checked_integer
from sparseagg._internal.base.fields import read
from sparseagg._internal.base.foreign import Array
from sparseagg._internal.certificates.bundle import BundleWriter
from sparseagg._internal.client.requests import export_request, inspect_request, partial_request
from sparseagg._internal.client.result_reader import ExportedPage, ExportedUpdate, exported_page, exported_updates
from sparseagg._internal.client.retry import checked_deadline, raise_if_late
from sparseagg._internal.client.round_calls import RoundCalls, naming_round
from sparseagg._internal.results.info import Certificate, Leaves, RoundInfo, SubmissionReceipt
from sparseagg._internal.results.inspection import Inspection
from sparseagg._internal.updates.contributors import ClientId, checked_client_id
from sparseagg._internal.wire.message import Page
from sparseagg.errors import FailedPreconditionError, UnimplementedError
from sparseagg.robust import ClientWeights
from sparseagg.v1 import aggregation_pb2 as pb

if TYPE_CHECKING:
    from sparseagg._internal.client.blocking_client import Round
    from sparseagg._internal.results.inspection import Inspection
    from sparseagg._internal.results.result import Result


class SealedRound(RoundCalls):
    """The operation that seals a round, and those on a sealed one."""

    async def seal(self, timeout: Timeout = None) -> RoundInfo:
        """Freezes the submissions of the open round without merging them. The round is then "sealed".

        No submission is added or withdrawn afterwards; ``submit`` of what counts already still gets its receipt. The
        round's ``deadline`` has no effect any more: the round stays until ``close``, ``finish``, ``cancel`` or
        ``delete``. A round that is sealed already stays as it is.

        Args:
            timeout: in seconds or as a timedelta; None for the client's.

        Returns:
            The round as it is now.

        Raises:
            RoundClosedError: the round is closed.
            UnimplementedError: the server is older than this method.
        """
        with naming_round(self.name):
            return await self._call("SealRound", pb.SealRoundRequest(name=self.name), checked_deadline(timeout))

    async def inspect(self, tensors: Sequence[str] | None = None, timeout: Timeout = None) -> Inspection:
        """Returns inner products and distances of the submissions of the sealed round. The round stays as it is.

        ``sparseagg.robust`` has rules that make weights of them, for ``close`` and ``finish``. The cost grows with
        the square of the number of submissions: 60 of 100 000 keys take about two seconds.

        Args:
            tensors: names of tensors of floats; None for all of them. Inner products and shared keys are over all these
                tensors together.
            timeout: of the whole operation, in seconds or as a timedelta; None for no limit.

        Raises:
            InvalidArgumentError: a tensor is unknown or not of floats, or the round has more than 4096 submissions.
            FailedPreconditionError: the round is not sealed; or a tensor has merged submissions when they arrived, as
                it does with the numerics "fixed_point" and with the ops "min" and "max".
            PermissionDeniedError: the credential is neither of an admin nor of a coordinator.
            UnimplementedError: the server is older than this method.
            TimeoutError: (``DeadlineExceededError``) after ``timeout``.
        """
        request = inspect_request(self.name, tensors)
        deadline = checked_deadline(timeout)
        pages: list[pb.InspectRoundResponse] = []
        with raise_if_late(deadline, f"the inspection of {self.name} has not ended"):
            while not pages or pages[-1].next_page_token:
                request.page_token = pages[-1].next_page_token if pages else ""
                pages.append(await self._connection.call("InspectRound", request, 0.0, deadline))
        return await self._connection.transport.convert(Inspection._from_pages, pages)

    async def export_submissions(
        self, tensor: str | None = None, *, keys: tuple[int, int | None] | None = None, timeout: Timeout = None
    ) -> dict[str, ExportedUpdate]:
        """Returns the submissions of the sealed round for one tensor and a range of keys, for another merge.

        The round stays as it is. Merged again, as by ``sparseagg.aggregate`` with submissions of other rounds or
        without, they give the bits of one merge; ``sparseagg.cluster`` does that for rounds of several servers. All of
        them are held in memory at once: ask for ranges of keys, where that is too much.

        Args:
            tensor: name of a tensor; None for the only one.
            keys: range of keys (begin, end) without end; an end of None is behind the last key. None for all keys.
            timeout: of the whole operation, in seconds or as a timedelta; None for no limit.

        Returns:
            The update of each client, also of clients without a key in the range, in ascending order of client ids.

        Raises:
            InvalidArgumentError: the tensor is unknown, or ``keys`` is no range.
            FailedPreconditionError: the round is not sealed; or submissions of the tensor were merged when they arrived
                (see ``RoundSpec.keep_submissions``); or the spec has ``privacy``, or a bound l2 that scales updates.
            PermissionDeniedError: the credential is neither of an admin nor of a coordinator.
            UnimplementedError: the server is older than this method; or the round is one of ":memory:".
            TimeoutError: (``DeadlineExceededError``) after ``timeout``.
        """
        request, deadline = export_request(self.name, tensor, keys), checked_deadline(timeout)
        spec = self.spec.tensors[0] if tensor is None else self.spec.tensor(tensor)
        with raise_if_late(deadline, f"the export of {self.name} has not ended"):
            pages = await self._connection.export(request, deadline)
        return await self._connection.transport.convert(exported_updates, spec, pages, request.range.begin)

    async def export_page(
        self,
        tensor: str | None = None,
        *,
        keys: tuple[int, int | None] | None = None,
        page_token: str = "",
        max_bytes: SupportsIndex | None = None,
        any_order: bool = False,
        timeout: Timeout = None,
    ) -> ExportedPage:
        """Returns one page of an export, for a caller that does not hold all submissions at once.

        The page has no client ids: ``export_submissions`` of an empty range of keys has them, in order of places.

        Args:
            tensor, keys, timeout: as in ``export_submissions``.
            page_token: of the page before; "" for the first page.
            max_bytes: of the page, at most and by default the server's limit.
            any_order: the keys of an update need not ascend, so that the server sorts nothing.

        Raises:
            InvalidArgumentError, FailedPreconditionError, PermissionDeniedError, UnimplementedError, TimeoutError: as
                of ``export_submissions``. InvalidArgumentError: also for a token that is not of this round.
            AbortedError: with ``any_order``: the submissions have been sorted since the page before.
            UnimplementedError: also if the server is older than exports by place.
        """
        request, deadline = export_request(self.name, tensor, keys), checked_deadline(timeout)
        request.page_token = page_token
        request.max_pages = 1
        request.any_order = any_order
        request.by_place = True
        if max_bytes is not None:
            what = "max_bytes must be a number of bytes, 1 or more"
            request.max_page_bytes = checked_integer(what, max_bytes, 1, (1 << 63) - 1)
        spec = self.spec.tensors[0] if tensor is None else self.spec.tensor(tensor)
        with raise_if_late(deadline, f"the export of {self.name} has not ended"):
            (page,) = await self._connection.export(request, deadline)
        return await self._connection.transport.convert(exported_page, spec, page, request.range.begin)

    async def put_result_range(
        self,
        page: pb.ResultPage,
        *,
        created: datetime.datetime,
        only: str = "",
        plan: str = "",
        keys: tuple[int, int | None] = (0, None),
        timeout: Timeout = None,
    ) -> None:
        """Keeps a part of a cluster's result on this server. For coordinators: ``sparseagg.cluster`` calls it.

        Args:
            page: rows of one tensor; or, without a tensor, the list of all ranges, which ends the round.
            created: when this server's round was created, as its ``info`` says.
            only: names the clients that count; "": all.
            plan: names how the result is cut.
            keys: range of the page's keys (begin, end).
            timeout: in seconds or as a timedelta; None for the client's.

        Raises:
            FailedPreconditionError: the round is not sealed, not a cluster's, or another one of the same name; or its
                list has another ``only`` or ``plan``.
            InvalidArgumentError, AlreadyExistsError: the range overlaps another one, or is there with other rows.
            UnimplementedError: the server is older than this method.
        """
        request = pb.PutResultRangeRequest(name=self.name, only=only, plan=plan, page=page)
        request.create_time.FromDatetime(created)
        request.range.begin, request.range.end = keys[0], keys[1] or 0
        await self._connection.call("PutResultRange", request, 0.0, checked_deadline(timeout))

    async def result_range(self, tensor: str = "", begin: int = 0, timeout: Timeout = None) -> Page:
        """Returns a range of a cluster's result as this server has it; without a tensor the list of all ranges.

        Raises:
            NotFoundError: there is no result yet, or none of its ranges here begins so.
        """
        request = pb.GetResultRangeRequest(name=self.name, tensor=tensor, begin=begin)
        page: Page = await self._connection.call("GetResultRange", request, 0.0, checked_deadline(timeout))
        return page

    async def export_partial(
        self, tensor: str | None = None, *, keys: tuple[int, int | None] | None = None, timeout: Timeout = None
    ) -> list[bytes]:
        """Returns what the submissions of the sealed round add up to: a partial, for ``add_partial`` elsewhere.

        The round stays as it is. There are partials of the tensors whose result does not depend on the order of
        submissions: with numerics "binned" or "fixed_point", of integers, and with the ops "min", "max" and "union". A
        partial is about as large as the result (of binned sums 17 or 25 bytes a value); all of it is held in memory:
        ask for ranges of keys, where that is too much.

        Args:
            tensor: name of a tensor; None for all tensors.
            keys: as in ``export_submissions``.
            timeout: of the whole operation, in seconds or as a timedelta; None for no limit.

        Returns:
            The partial in pieces, each of whole blocks. ``b"".join(...)`` makes one piece of it, for a file.

        Raises:
            InvalidArgumentError: the tensor is unknown, or ``keys`` is no range.
            FailedPreconditionError: the round is not sealed; or the order of a tensor's submissions matters, or the
                round keeps them (``RoundSpec.keep_submissions``): ``export_submissions`` has them; or the spec has
                ``privacy``.
            OutOfRangeError: integer weights of a mean add up to more than 2^53.
            PermissionDeniedError: the credential is neither of an admin nor of a coordinator.
            UnimplementedError: the server is older than this method; or the round is one of ":memory:".
            TimeoutError: (``DeadlineExceededError``) after ``timeout``.
        """
        deadline = checked_deadline(timeout)
        names = [each.name for each in self.spec.tensors] if tensor is None else [tensor]
        requests = [partial_request(self.name, name, keys) for name in names]
        blocks: list[bytes] = []
        with raise_if_late(deadline, f"the export of {self.name} has not ended"):
            for request in requests:
                blocks += [page.blocks for page in await self._connection.export_partial(request, deadline)]
        return [block for block in blocks if block]

    async def count_keys(
        self,
        tensor: str | None = None,
        *,
        bits: SupportsIndex,
        within: tuple[int, Sequence[int]] | None = None,
        timeout: Timeout = None,
    ) -> Array:
        """Returns how many keys the submissions of the sealed round have in each bucket, to plan ranges of keys.

        Args:
            tensor: name of a tensor; None for the only one.
            bits: the last ones of a key, in which the keys of a bucket differ.
            within: bits and numbers of larger buckets, whose parts alone are counted, one after the other; None: all.
            timeout: as in ``export_submissions``.

        Returns:
            Of each bucket, uint64. A key of several submissions counts several times, unless they are merged.

        Raises:
            InvalidArgumentError, FailedPreconditionError, PermissionDeniedError, UnimplementedError, TimeoutError: as
                of ``export_submissions``. InvalidArgumentError: also for more than 131072 buckets.
        """
        request, deadline = export_request(self.name, tensor, None), checked_deadline(timeout)
        request.buckets.bits = checked_integer("bits must be a number of bits, 0 to 63", bits, 0, 63)
        if within is not None:
            request.buckets.within_bits = within[0]
            request.buckets.within.extend(within[1])
        with raise_if_late(deadline, f"the counts of {self.name} have not come"):
            (page,) = await self._connection.export(request, deadline)
        return np.frombuffer(page.head.num_keys, "<u8")


class CertifiedRound(RoundCalls):
    """The operations that give evidence of what a round has computed."""

    async def certificate(self, timeout: Timeout = None) -> Certificate:
        """Waits until the round has ended, and returns its signed certificate; always the same.

        The round must be closed by somebody, as for ``result``. ``sparseagg.certificates.verify`` verifies it.

        Args:
            timeout: of waiting, in seconds or as a timedelta; None for no limit.

        Raises:
            FailedPreconditionError: the round's spec asks for no certificate, or the round is cancelled.
            UnimplementedError: the server is older than this method.
            TimeoutError: (``DeadlineExceededError``) the round has not ended within ``timeout``.
        """
        deadline = checked_deadline(timeout)
        if not self._info.ended and self._info.spec.certificate:
            await self._wait(deadline)
        with naming_round(self.name):
            request = pb.GetCertificateRequest(name=self.name)
            return Certificate((await self._connection.call("GetCertificate", request, 0.0, deadline)).envelope)

    async def receipt(self, client_id: ClientId, submission_id: str = "") -> SubmissionReceipt:
        """Returns what the server has signed about a client's submission that counts.

        From the commit on it has the server's promise; once the round has ended with a certificate, the proof, too,
        that the submission is in the certificate's tree. Keep the first as soon as you have submitted: only then is
        there evidence, should the submission be dropped.

        Args:
            client_id: of the submission; "" for the name of this client's credential.
            submission_id: of the submission. Needed only in a version of a stream in which the client has several.

        Raises:
            NotFoundError: the client has no such submission, or it was withdrawn.
            FailedPreconditionError: the round's spec asks for no certificate, or the client has several commits.
            PermissionDeniedError: the credential is of another client.
            UnimplementedError: the server is older than this method.
        """
        request = pb.GetReceiptRequest(
            round=self.name, client_id=checked_client_id(client_id), submission_id=submission_id
        )
        with naming_round(self.name):
            return read(SubmissionReceipt, await self._connection.call("GetReceipt", request))

    async def leaves(self) -> Leaves:
        """Returns the leaves of the submissions, of which the certificate's tree is made.

        For whoever makes a certificate of several servers' rounds.

        Raises:
            FailedPreconditionError: the round's spec asks for no certificate.
            PermissionDeniedError: the credential is neither of an admin nor of a coordinator.
            UnimplementedError: the server is older than this method.
        """
        counted: dict[str, bytes] = {}
        request = pb.ListSubmissionsRequest(parent=self.name, with_leaves=True)
        with naming_round(self.name):
            while True:
                page = await self._connection.call("ListSubmissions", request)
                counted.update((each.client_id, each.leaf) for each in page.submissions)
                request.page_token = page.next_page_token
                if not request.page_token:
                    break
        if not all(counted.values()):  # an old server ignores the field
            raise UnimplementedError(f"{self.name}: the server is too old to list leaves")
        return Leaves(counted, tuple(page.withdrawn_leaves))

    async def export(self, folder: str | os.PathLike[str], timeout: Timeout = None) -> None:
        """Waits until the round is done, and writes a bundle: certificate, submissions and result.

        ``sparseagg.certificates.verify`` and ``replay`` compute the result of the bundle again, on any machine. The
        bundle has the clients' updates as they have sent them.

        Args:
            folder: to write; there must be nothing of this name.
            timeout: of waiting and reading, in seconds or as a timedelta; None for no limit.

        Raises:
            FailedPreconditionError: the round's spec does not allow it (``allow_export``).
            RoundFailedError: the round has ended without a result.
            PermissionDeniedError: the credential is neither of an admin nor of a coordinator.
            UnimplementedError: the server is older than this method.
            TimeoutError: (``DeadlineExceededError``) after ``timeout``; the folder then is incomplete.
            OSError: the folder cannot be written, or exists.
        """
        deadline = checked_deadline(timeout)
        if not self._info.spec.allow_export:
            raise FailedPreconditionError(f"{self.name}: the spec does not allow an export (allow_export)")
        certificate = await self.certificate(timeout)
        result = await self._read(pb.StreamResultRequest(name=self.name), deadline)
        writer = await self._connection.transport.convert(BundleWriter, folder)
        try:
            request = pb.ExportRoundRequest(name=self.name)
            with raise_if_late(deadline, f"the export of {self.name} has not ended"), naming_round(self.name):
                while True:
                    page = await self._connection.call("ExportRound", request, 0.0, deadline)
                    await self._connection.transport.convert(writer.add, page.chunks)
                    request.page_token = page.next_page_token
                    if not request.page_token:
                        break
            await self._connection.transport.convert(writer.finish, certificate.envelope, result)
        finally:
            writer.close()


Rule = Callable[["Inspection"], ClientWeights]


def finish_by_rule(rnd: Round, rule: Rule, only: Collection[str] | None = None) -> tuple[Result, ClientWeights]:
    """Seals a round, lets the rule weigh its clients, and closes it with these weights.

    Args:
        rnd: an open or sealed round.
        rule: such as ``sparseagg.robust.krum`` with its arguments.
        only: the clients that the rule sees; the others get weight 0. Clients that have not submitted are left out.

    Raises:
        SparseaggError: the rule or the round refuses; the round is sealed then, or failed.
    """
    rnd.seal()
    found = rnd.inspect()
    choice = rule(found if only is None else found.only(set(only).intersection(found.clients)))
    weights: dict[ClientId, SupportsFloat] = dict(choice.items())
    return rnd.finish(client_weights=weights), choice
