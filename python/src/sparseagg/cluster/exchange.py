"""What servers and coordinators exchange about a round: its submissions, partials of them, and parts of a result.

Each function takes a ``sparseagg.Round``; given a round of ``sparseagg.aio``, it returns a coroutine.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, TypeVar, cast

import numpy as np

from sparseagg._internal.base.arguments import Timeout, checked_integer, checked_text
from sparseagg._internal.base.foreign import Array
from sparseagg._internal.client import async_round
from sparseagg._internal.client.blocking_client import Round
from sparseagg._internal.client.result_reader import ExportedPage, ExportedUpdate, exported_page, exported_updates
from sparseagg._internal.client.retry import checked_deadline, naming_round, raise_if_late
from sparseagg._internal.client.round_calls import set_range
from sparseagg._internal.client.transport import run
from sparseagg._internal.client.upload import Upload
from sparseagg._internal.results.info import Leaves, Submission
from sparseagg._internal.updates.contributors import ClientId, checked_client_id, naming_client
from sparseagg._internal.wire.columns import Bulk, Page, PartialBlock, split_blocks
from sparseagg._internal.wire.encode import ChunkMessage
from sparseagg.errors import InvalidArgumentError, UnimplementedError
from sparseagg.v1 import aggregation_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")

# Of a page, for this client takes messages of any size: as much as the server allows.
_SERVER_BOUNDS = (1 << 63) - 1


def _of_round(
    call: Callable[Concatenate[async_round.Round, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Round, P], T]:
    """Makes a coroutine function of an asyncio round a function that also takes a blocking round, and then blocks."""

    @functools.wraps(call)
    def made(rnd: Any, *args: Any, **kwargs: Any) -> Any:
        return run(call(rnd._inner, *args, **kwargs)) if isinstance(rnd, Round) else call(rnd, *args, **kwargs)

    answer: Any = made
    return answer  # type: ignore[no-any-return]


def _request(kind: Any, rnd: async_round.Round, tensor: str | None, keys: tuple[int, int | None] | None) -> Any:
    """Returns the request of an export; ``InvalidArgumentError`` for no name of a tensor, or no range of keys."""
    name = "" if tensor is None else checked_text("a tensor's name", tensor)
    request = kind(round=rnd.name, tensor=name, max_page_bytes=_SERVER_BOUNDS)
    if kind is pb.ExportSubmissionsRequest:
        request.key_encodings.append(pb.KEY_ENCODING_IMPLICIT)
    set_range(request.range, keys)
    return request


@_of_round
async def export_submissions(
    rnd: async_round.Round,
    tensor: str | None = None,
    *,
    keys: tuple[int, int | None] | None = None,
    timeout: Timeout = None,
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
    request, deadline = _request(pb.ExportSubmissionsRequest, rnd, tensor, keys), checked_deadline(timeout)
    spec = rnd.spec.tensors[0] if tensor is None else rnd.spec.tensor(tensor)
    with raise_if_late(deadline, f"the export of {rnd.name} has not ended"):
        pages = await rnd._connection.export("ExportSubmissions", request, deadline)
    return await rnd._connection.transport.convert(exported_updates, spec, pages, request.range.begin)


@_of_round
async def export_page(
    rnd: async_round.Round,
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
    ``any_order``: the keys of an update need not ascend, so that the server sorts nothing; ``AbortedError`` then, if
    the submissions have been sorted since the page before.
    """
    request, deadline = _request(pb.ExportSubmissionsRequest, rnd, tensor, keys), checked_deadline(timeout)
    request.page_token = page_token
    request.max_pages = 1
    request.any_order = any_order
    request.by_place = True
    if max_bytes is not None:
        what = "max_bytes must be a number of bytes, 1 or more"
        request.max_page_bytes = checked_integer(what, max_bytes, 1, (1 << 63) - 1)
    spec = rnd.spec.tensors[0] if tensor is None else rnd.spec.tensor(tensor)
    with raise_if_late(deadline, f"the export of {rnd.name} has not ended"):
        (page,) = await rnd._connection.export("ExportSubmissions", request, deadline)
    return await rnd._connection.transport.convert(exported_page, spec, page, request.range.begin)


@_of_round
async def put_result_range(
    rnd: async_round.Round,
    page: pb.ResultPage,
    *,
    created: datetime.datetime,
    only: str = "",
    plan: str = "",
    keys: tuple[int, int | None] = (0, None),
    timeout: Timeout = None,
) -> None:
    """Keeps a part of a cluster's result on this server: rows of one tensor; or the list of all ranges, which ends the
    round.

    ``created``: when this server's round was created, as its ``info`` says. ``only``, ``plan``: name the clients that
    count ("": all), and how the result is cut. Raises ``FailedPreconditionError`` if the round is not sealed, not a
    cluster's, or another one of the same name; or its list has another ``only`` or ``plan``; ``InvalidArgumentError``
    or ``AlreadyExistsError`` for a range that overlaps another one, or is there with other rows.
    """
    request = pb.PutResultRangeRequest(round=rnd.name, only=only, plan=plan, page=page)
    request.create_time.FromDatetime(created)
    request.range.begin, request.range.end = keys[0], keys[1] or 0
    await rnd._connection.call("PutResultRange", request, 0.0, checked_deadline(timeout))


@_of_round
async def result_range(rnd: async_round.Round, tensor: str = "", begin: int = 0, timeout: Timeout = None) -> Page:
    """Returns a range of a cluster's result as this server has it; without a tensor the list of all ranges.

    Raises ``NotFoundError`` if there is no result yet, or none of its ranges here begins so.
    """
    request = pb.GetResultRangeRequest(round=rnd.name, tensor=tensor, begin=begin)
    page: Page = await rnd._connection.call("GetResultRange", request, 0.0, checked_deadline(timeout))
    return page


@_of_round
async def export_partial(
    rnd: async_round.Round,
    tensor: str | None = None,
    *,
    keys: tuple[int, int | None] | None = None,
    timeout: Timeout = None,
) -> list[bytes]:
    """Returns what the submissions of the sealed round add up to: a partial, for ``add_partial`` elsewhere.

    The round stays as it is. There are partials of the tensors whose result does not depend on the order of
    submissions: with numerics "binned", of integers, and with the ops "min", "max" and "union". A
    partial is about as large as the result (of binned sums 17 to 25 bytes a value); all of it is held in memory:
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
    names = [each.name for each in rnd.spec.tensors] if tensor is None else [tensor]
    requests = [_request(pb.ExportPartialRequest, rnd, name, keys) for name in names]
    blocks: list[bytes] = []
    with raise_if_late(deadline, f"the export of {rnd.name} has not ended"):
        for request in requests:
            blocks += [page.blocks for page in await rnd._connection.export("ExportPartial", request, deadline)]
    return [block for block in blocks if block]


@_of_round
async def count_keys(
    rnd: async_round.Round,
    tensor: str | None = None,
    *,
    bits: SupportsIndex,
    within: tuple[int, Sequence[int]] | None = None,
    timeout: Timeout = None,
) -> Array:
    """Returns how many keys the submissions of the sealed round have in each bucket, uint64, to plan ranges of keys.

    ``bits``: the last ones of a key, in which the keys of a bucket differ. ``within``: bits and numbers of larger
    buckets, whose parts alone are counted, one after the other. A key of several submissions counts several times,
    unless they are merged. 131072 buckets at most.
    """
    request, deadline = _request(pb.ExportSubmissionsRequest, rnd, tensor, None), checked_deadline(timeout)
    request.buckets.bits = checked_integer("bits must be a number of bits, 0 to 63", bits, 0, 63)
    if within is not None:
        request.buckets.within_bits = within[0]
        request.buckets.within.extend(within[1])
    with raise_if_late(deadline, f"the counts of {rnd.name} have not come"):
        (page,) = await rnd._connection.export("ExportSubmissions", request, deadline)
    return np.frombuffer(page.head.num_keys, "<u8")


@_of_round
async def add_partial(
    rnd: async_round.Round,
    client_id: ClientId,
    partial: Bulk | Iterable[Bulk],
    *,
    submission_id: str | None = None,
    resumable: bool = False,
    timeout: Timeout = None,
) -> Submission:
    """Sends what submissions elsewhere add up to, as the one submission of this client.

    When this method returns, all submissions in the partial count, completely and once: in the result, which has
    the bits of a round to which they were sent one by one; in ``info.num_submissions``, ``min_submissions`` and
    ``max_submissions``. An edge server aggregates its own clients like this, in a round of the same spec.

    Args:
        client_id: of the sender; as in ``submit``.
        partial: of ``export_partial``, for all tensors, in one piece or in pieces of whole blocks.
        submission_id, resumable, timeout: as in ``submit``.

    Raises:
        InvalidArgumentError: the partial is cut off, malformed, of another version or of another spec; the message
            names tensor, chunk, the byte at which the block begins, and the field.
        FailedPreconditionError: the spec has no ``accept_partials``.
        ResourceExhaustedError: there would be more than ``max_submissions``; or as of ``submit``.
        UnimplementedError: the round is one of ":memory:": an ``Aggregator`` takes partials.
        RoundClosedError, NotFoundError, AlreadyExistsError, UnavailableError, TimeoutError: as of ``submit``.
    """
    deadline = checked_deadline(timeout)
    with raise_if_late(deadline, f"the partial for {rnd.name} has not been added"), naming_round(rnd.name):
        server = await rnd._connection.server_wire(deadline)
        upload = await rnd._connection.transport.convert(
            partial_upload,
            partial,
            client_id=client_id,
            chunk_bytes=server.chunk_bytes,
            round_name=rnd.name,
            submission_id=submission_id,
        )
        with naming_client(upload.client_id):
            return await rnd._connection.submit(upload, resumable, None, deadline)


@_of_round
async def leaves(rnd: async_round.Round) -> Leaves:
    """Returns the leaves of the submissions, for whoever makes a certificate of several servers' rounds."""
    counted: dict[str, bytes] = {}
    request = pb.ListSubmissionsRequest(round=rnd.name, with_leaves=True)
    with naming_round(rnd.name):
        while True:
            page = await rnd._connection.call("ListSubmissions", request)
            counted.update((each.client_id, each.leaf) for each in page.submissions)
            request.page_token = page.next_page_token
            if not request.page_token:
                break
    if not all(counted.values()):  # an old server ignores the field
        raise UnimplementedError(f"{rnd.name}: the server is too old to list leaves")
    return Leaves(counted, tuple(page.withdrawn_leaves))


@dataclasses.dataclass(frozen=True)
class PartialUpload(Upload):
    """The upload of a partial. Every chunk has whole blocks."""

    blocks: tuple[PartialBlock, ...] = ()  # of the partial
    is_partial: ClassVar[bool] = True

    @functools.cached_property
    def tag(self) -> bytes:
        """As in ``Upload``."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(self.chunk_bytes.to_bytes(8, "little"))
        for block in self.blocks:
            digest.update(block.data)
        return digest.digest() if self.is_shared else b""

    def chunks(self, first: int = 0, tag: bytes = b"") -> Iterator[ChunkMessage]:
        """Yields the chunks from number ``first`` on; each names ``tag``."""
        groups: list[list[PartialBlock]] = []
        room = 0
        for block in self.blocks:
            if len(block.data) > room:
                groups.append([])
                room = self.chunk_bytes
            groups[-1].append(block)
            room -= len(block.data)
        end_bytes = 0
        for sequence, group in enumerate(groups):
            end_bytes += sum(len(block.data) for block in group)
            if sequence < first:
                continue
            head = pb.UpdateChunk(
                round=self.round_name,
                client_id=self.client_id,
                submission_id=self.submission_id,
                sequence=sequence,
                last=sequence + 1 == len(groups),
                upload_tag=tag,
            )
            slices: list[tuple[pb.TensorSlice, Bulk, Bulk]] = [
                (pb.TensorSlice(tensor=block.tensor, value_encoding=pb.VALUE_ENCODING_PARTIAL), b"", block.data)
                for block in group
            ]
            yield ChunkMessage(head, slices, end_bytes)

    @property
    def num_bytes(self) -> int:
        """The bytes of all blocks."""
        return sum(len(block.data) for block in self.blocks)


def partial_upload(
    partial: Bulk | Iterable[Bulk],
    *,
    client_id: ClientId,
    chunk_bytes: int,
    round_name: str,
    submission_id: str | None,
) -> PartialUpload:
    """Makes the upload of a partial, in one piece or in pieces of whole blocks; ``InvalidArgumentError`` if it is
    none.
    """
    whole = isinstance(partial, (bytes, bytearray, memoryview))
    pieces = [cast(Bulk, partial)] if whole else cast("Iterable[Bulk]", partial)
    blocks = tuple(split_blocks(pieces))
    if not blocks:
        raise InvalidArgumentError("the partial has no block")
    is_shared = submission_id is not None
    return PartialUpload(
        tensors=[],
        client_id=checked_client_id(client_id),
        submission_id=checked_text("a submission id", uuid.uuid4().hex if submission_id is None else submission_id),
        round_name=round_name,
        weight=None,
        chunk_bytes=chunk_bytes,
        is_shared=is_shared,
        blocks=blocks,
    )
