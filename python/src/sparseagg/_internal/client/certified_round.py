"""Certificates, receipts and bundles of a round."""

from __future__ import annotations

import os

from sparseagg._internal.base.arguments import Timeout
from sparseagg._internal.certificates.bundle import BundleWriter
from sparseagg._internal.client.deadlines import checked_deadline, raise_if_late
from sparseagg._internal.client.round_calls import RoundCalls
from sparseagg._internal.client.round_errors import naming_round
from sparseagg._internal.results.certificates import Certificate, Leaves, SubmissionReceipt
from sparseagg._internal.updates.contributors import ClientId, checked_client_id
from sparseagg.errors import FailedPreconditionError, UnimplementedError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["CertifiedRound"]


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
            return SubmissionReceipt.from_proto(await self._connection.call("GetReceipt", request))

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
