"""What rounds of both clients have in common: the part of ``async_round.Round`` about closed and sealed rounds, and
requests made from the arguments of the client's methods, which are checked here."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

from sparseagg._internal.base import extension
from sparseagg._internal.base.arguments import (
    END_OF_KEYS,
    Timeout,
    checked_key_range,
    checked_number,
    checked_text,
    shown,
)
from sparseagg._internal.base.fields import as_of, read
from sparseagg._internal.base.text import html_table
from sparseagg._internal.base.types import KeyEncoding, NarrowEncoding
from sparseagg._internal.certificates.bundle import BundleWriter
from sparseagg._internal.client.connection import Connection
from sparseagg._internal.client.endpoint import Handled
from sparseagg._internal.client.memory_connection import MemoryConnection
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.client.retry import checked_deadline, long_poll, naming_round, raise_if_late
from sparseagg._internal.results.info import Certificate, RoundInfo, SubmissionReceipt, raise_if_failed
from sparseagg._internal.results.inspection import Inspection
from sparseagg._internal.results.result import Result
from sparseagg._internal.spec.round_spec import RoundSpec, checked_spec
from sparseagg._internal.updates.contributors import ClientId, checked_client_id
from sparseagg._internal.wire.encode import check_key_encoding, check_value_encoding
from sparseagg.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb


class RoundAttributes:
    """What rounds of both clients say of themselves."""

    name: str
    spec: RoundSpec
    info: RoundInfo

    def __repr__(self) -> str:
        info = self.info
        return f"Round({self.name!r}, {info.state}, submissions: {info.num_submissions}{as_of(info.as_of)})"

    def _repr_html_(self) -> str:
        """The state that the server told last, as a table, which notebooks show."""
        info = self.info
        heads = ("round", f"state{as_of(info.as_of)}", "submissions", "refused", "tuples", "MB", "engine")
        sizes = (info.num_submissions, info.num_refused, info.num_tuples, f"{info.num_bytes / 1e6:.1f}")
        return html_table(heads, [(self.name, f"{info.state} {info.state_reason}", *sizes, info.engine)])


class RoundCalls(Handled, RoundAttributes):
    """What all operations of a round use, and those of a sealed round and of its certificate."""

    _KIND = "rounds"

    def __init__(
        self, connection: Connection | MemoryConnection, info: RoundInfo, owns_connection: bool = False
    ) -> None:
        self._connection = connection
        self.name, self.info = info.name, info
        self.spec = info.spec  # one for all updates, for its table_columns
        self._owns_connection = owns_connection

    async def refresh(self) -> RoundInfo:
        """Asks the server for the round, and returns it as it is now."""
        self.info = await self._connection.get_round(self.name)
        return self.info

    async def _wait(self, deadline: float | None) -> RoundInfo:
        """Returns the round when it has ended."""

        def has_ended(answer: pb.Round) -> bool:
            self.info = RoundInfo._from_proto(answer)
            return self.info.ended

        with raise_if_late(deadline, lambda: f"{self.name} was {self.info.state} when last heard of"):
            await long_poll(self._connection, "WaitRound", pb.WaitRoundRequest(round=self.name), deadline, has_ended)
        if not self.info.ended:
            cure = "; finish() or start_merge() closes it" if self.info.state == "open" else ""
            raise DeadlineExceededError(f"{self.name} is still {self.info.state}{cure}")
        return self.info

    async def _call(self, method: str, request: Any, deadline: float | None = None) -> RoundInfo:
        """Calls a method whose answer is the round, keeps the answer in ``info`` and returns it.

        The call is patient: it waits for its answer a few seconds beyond the deadline. If none has come by then, the
        ``DeadlineExceededError`` has the state last known.
        """
        with raise_if_late(deadline, f"{self.name} was {self.info.state} when last heard of"):
            answer = await self._connection.call(method, request, 0.0, deadline, patient=True)
        self.info = RoundInfo._from_proto(answer)
        return self.info

    async def _read(self, request: pb.StreamResultRequest, deadline: float | None, *, progress: bool = False) -> Result:
        """Waits until the round has ended, and reads its result; ``RoundFailedError`` if it has none.

        ``progress``: whether a bar on standard error shows the rows that have arrived.
        """
        if not self.info.ended:
            await self._wait(deadline)
        raise_if_failed(self.info)
        with raise_if_late(deadline, f"the result of {self.name} has not been read"):
            rows = _num_rows(self.info, request)
            with ProgressBar(f"result {self.name}", rows, "rows") if progress else contextlib.nullcontext() as bar:
                reader = await self._connection.read(request, self.info, deadline, bar)
        return reader.result(self.info)

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
            return await self._call("SealRound", pb.SealRoundRequest(round=self.name), checked_deadline(timeout))

    async def _inspect(self, tensors: Sequence[str] | None = None, timeout: Timeout = None) -> Inspection:
        """See ``sparseagg.robust.inspect``."""
        request = pb.InspectRoundRequest(round=self.name, tensors=checked_names(tensors))
        deadline = checked_deadline(timeout)
        pages: list[pb.InspectRoundResponse] = []
        with raise_if_late(deadline, f"the inspection of {self.name} has not ended"):
            while not pages or pages[-1].next_page_token:
                request.page_token = pages[-1].next_page_token if pages else ""
                pages.append(await self._connection.call("InspectRound", request, 0.0, deadline))
        return await self._connection.transport.convert(Inspection._from_pages, pages)

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
        if not self.info.ended and self.info.spec.certificate:
            await self._wait(deadline)
        with naming_round(self.name):
            request = pb.GetCertificateRequest(round=self.name)
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
        if not self.info.spec.allow_export:
            raise FailedPreconditionError(f"{self.name}: the spec does not allow an export (allow_export)")
        certificate = await self.certificate(timeout)
        result = await self._read(pb.StreamResultRequest(round=self.name), deadline)
        writer = await self._connection.transport.convert(BundleWriter, folder)
        try:
            request = pb.ExportRoundRequest(round=self.name)
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


def _num_rows(info: RoundInfo, request: pb.StreamResultRequest) -> int:
    """Returns how many rows the result has at most: within a range of keys a sparse tensor may have fewer."""
    begin, end = request.range.begin, request.range.end
    return sum(
        min(tensor.num_keys, max(0, (end or tensor.num_rows) - begin))
        for tensor in info.results
        if not request.tensors or tensor.name in request.tensors
    )


# Key encodings that this client decodes in results, in addition to the plain ones: without the engine only the first.
_KEYS = (pb.KEY_ENCODING_IMPLICIT, pb.KEY_ENCODING_DELTA_BITPACKED)


def round_name(name: str) -> str:
    """Returns "rounds/{id}" for a name or an id; ``InvalidArgumentError`` if ``name`` is no string."""
    name = checked_text("a round's name", name)
    return name if name.startswith("rounds/") else f"rounds/{name}"


def create_request(spec: RoundSpec, round_id: str | None) -> pb.CreateRoundRequest:
    """Returns the request that creates a round, of a random id for None; ``InvalidArgumentError`` for no spec or no
    id.
    """
    if round_id == "":  # the server would choose an id
        raise InvalidArgumentError("a round's id is not empty; None is for a random one")
    round_id = checked_text("a round's id", uuid.uuid4().hex if round_id is None else round_id)
    return pb.CreateRoundRequest(round_id=round_id, spec=checked_spec(spec)._to_proto())


def close_request(
    name: str, only: Iterable[ClientId] | None, client_weights: Mapping[ClientId, SupportsFloat] | None = None
) -> pb.CloseRoundRequest:
    """Returns the request that closes a round; ``InvalidArgumentError`` if the clients that count are no list of ids,
    or the factors of their weights no mapping; or if both are given.
    """
    if client_weights is not None:
        if only is not None:
            raise InvalidArgumentError("only and client_weights exclude each other: a weight of 0 leaves a client out")
        return pb.CloseRoundRequest(round=name, client_weights=_checked_client_weights(client_weights))
    if only is None:
        return pb.CloseRoundRequest(round=name)
    ids = checked_only(only)
    return pb.CloseRoundRequest(round=name, only_client_ids=ids)


def checked_only(only: Any) -> dict[str, None]:
    """Returns the ids of the clients that count, each once; ``InvalidArgumentError`` if ``only`` is no list of them."""
    if isinstance(only, (str, bytes)) or not isinstance(only, Iterable):
        raise InvalidArgumentError(f"only must be a list of client ids, or None for all clients, got {shown(only)}")
    ids = dict.fromkeys(checked_client_id(client_id) for client_id in only)
    if not ids:  # on the wire, no ids would mean all clients
        raise InvalidArgumentError(
            "only has no client id; None is for all clients, and Round.cancel for a round of none"
        )
    return ids


def _checked_client_weights(client_weights: Any) -> list[pb.ClientWeight]:
    if not isinstance(client_weights, Mapping):
        raise InvalidArgumentError(
            f"client_weights must be a mapping from client ids to weights, got {shown(client_weights)}"
        )
    if not client_weights:  # on the wire, no weights would mean those of the submissions
        raise InvalidArgumentError("client_weights has no client; None is for the weights of the submissions")
    weights: dict[str, float] = {}
    for client_id, weight in client_weights.items():
        client_id = checked_client_id(client_id)
        if client_id in weights:
            raise InvalidArgumentError(f"client_weights names client {client_id!r} twice")
        weights[client_id] = checked_number(
            f"client_weights: the weight of client {client_id!r} must be 0 or more", weight
        )
    return [pb.ClientWeight(client_id=client_id, weight=weight) for client_id, weight in weights.items()]


def checked_names(tensors: Sequence[str] | None) -> list[str] | None:
    """Returns the names of tensors; ``InvalidArgumentError`` if they are no list of distinct names."""
    if isinstance(tensors, str):
        raise InvalidArgumentError(f"tensors must be a list of names, got {shown(tensors)}")
    names = None if tensors is None else [checked_text("a tensor's name", tensor) for tensor in tensors]
    if names == []:  # on the wire, no names would mean all tensors
        raise InvalidArgumentError("tensors has no name; None is for all tensors")
    if names is not None and len(set(names)) < len(names):
        raise InvalidArgumentError(f"tensors names one of them twice: {shown(names)}")
    return names


def result_format(key_encoding: KeyEncoding, value_encoding: NarrowEncoding | None) -> pb.ResultFormat:
    """Returns the encodings that the server may use in a result, by the arguments of ``Round.result``."""
    check_key_encoding(key_encoding)
    if value_encoding is not None:
        check_value_encoding(value_encoding)
    decoded = _KEYS if extension.find() is not None else _KEYS[:1]
    return pb.ResultFormat(
        key_encodings=decoded if key_encoding == "auto" else (),
        value_encoding=None if value_encoding is None else f"VALUE_ENCODING_{value_encoding.upper()}",
    )


def result_request(
    name: str,
    tensors: Sequence[str] | None,
    keys: tuple[int, int | None] | None,
    result_format: pb.ResultFormat | None = None,
) -> pb.StreamResultRequest:
    """Returns the request of a round's result; ``InvalidArgumentError`` for no list of distinct names, or no range of
    keys.
    """
    request = pb.StreamResultRequest(round=name, tensors=checked_names(tensors), format=result_format)
    set_range(request.range, keys)
    return request


def set_range(message: pb.KeyRange, keys: tuple[int, int | None] | None) -> None:
    """Sets a range of keys (begin, end); None: all keys. ``InvalidArgumentError`` if ``keys`` is no range."""
    if keys is not None:
        begin, end = checked_key_range(keys)
        if begin == end:
            begin = end = 1  # any empty range will do, but 0 and 2^64 are no ends of one on the wire
        message.begin = begin
        message.end = end % END_OF_KEYS
