"""The operations of a round that is sealed or has ended: its submissions, evidence of what it computed, and rules."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, SupportsFloat

from sparseagg._internal.base.arguments import Timeout
from sparseagg._internal.base.fields import read
from sparseagg._internal.certificates.bundle import BundleWriter
from sparseagg._internal.client.requests import inspect_request
from sparseagg._internal.client.retry import checked_deadline, raise_if_late
from sparseagg._internal.client.round_calls import RoundCalls, naming_round
from sparseagg._internal.results.info import Certificate, RoundInfo, SubmissionReceipt
from sparseagg._internal.results.inspection import Inspection
from sparseagg._internal.updates.contributors import ClientId, checked_client_id
from sparseagg.errors import FailedPreconditionError
from sparseagg.robust import ClientWeights, inspect
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
        round's ``deadline`` has no effect any more: the round stays until ``start_merge``, ``finish``, ``cancel`` or
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

    async def _inspect(self, tensors: Sequence[str] | None = None, timeout: Timeout = None) -> Inspection:
        """See ``sparseagg.robust.inspect``."""
        request = inspect_request(self.name, tensors)
        deadline = checked_deadline(timeout)
        pages: list[pb.InspectRoundResponse] = []
        with raise_if_late(deadline, f"the inspection of {self.name} has not ended"):
            while not pages or pages[-1].next_page_token:
                request.page_token = pages[-1].next_page_token if pages else ""
                pages.append(await self._connection.call("InspectRound", request, 0.0, deadline))
        return await self._connection.transport.convert(Inspection._from_pages, pages)


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

    async def _receipt(self, client_id: ClientId, submission_id: str = "") -> SubmissionReceipt:
        """See ``sparseagg.certificates.receipt``."""
        request = pb.GetReceiptRequest(
            round=self.name, client_id=checked_client_id(client_id), submission_id=submission_id
        )
        with naming_round(self.name):
            return read(SubmissionReceipt, await self._connection.call("GetReceipt", request))

    async def _export(self, folder: str | os.PathLike[str], timeout: Timeout = None) -> None:
        """See ``sparseagg.certificates.export_bundle``."""
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
    found = inspect(rnd)
    choice = rule(found if only is None else found.only(set(only).intersection(found.clients)))
    weights: dict[ClientId, SupportsFloat] = dict(choice.items())
    return rnd.finish(client_weights=weights), choice
