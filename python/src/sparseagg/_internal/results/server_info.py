"""What a server says of itself, of tasks, and of the submissions of a sealed round."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparseagg._internal.base.arguments import checked_integer, checked_text, shown
from sparseagg._internal.base.fields import Seconds, as_of, duration, now, read, seconds_of
from sparseagg._internal.base.text import plain
from sparseagg._internal.base.types import Update
from sparseagg.errors import InvalidArgumentError, UnimplementedError
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.v1 import tasks_pb2


def _names(enum: Any, prefix: str, numbers: Iterable[int]) -> tuple[str, ...]:
    """Returns the names of encodings, without those that this client does not know."""
    known = {number: name[len(prefix) :].lower() for name, number in enum.items()}
    return tuple(known[number] for number in numbers if number in known)


@dataclasses.dataclass(frozen=True)
class ServerLimits:
    """The limits that the server enforces; 0 is no limit. Times are in seconds."""

    memory_limit_bytes: int
    max_message_bytes: int
    max_page_bytes: int
    max_open_rounds: int
    max_tensors: int
    max_row_width: int
    max_submissions: int
    max_tuples_per_submission: int
    max_bytes_per_submission: int
    max_uploads: int
    max_connections: int
    max_result_ttl: float
    max_wait: float
    upload_timeout: float
    max_open_tasks: int
    max_task_bytes: int
    max_waiting_leases: int
    max_lease: float
    max_open_rounds_per_tenant: int
    max_memory_per_tenant: int
    max_uploads_per_tenant: int
    max_transfers_per_tenant: int
    max_submissions_per_second_per_tenant: int


@dataclasses.dataclass(frozen=True)
class ServerActivity:
    """What the clients of the caller's tenant have done since the server started, and the memory that it uses.

    Totals never fall while the server runs: they keep what deleted rounds did. Of private rounds they have the number
    alone.

    Attributes:
        start_time: of the server.
        num_rounds: created since then; `num_ended_rounds`: of these.
        num_submissions: accepted; the repetition of one does not count.
        num_refused: submissions.
        received_bytes: of messages with keys and values, refused ones included.
        resident_bytes: of the server's process in RAM; 0 for callers who are no administrators.
        history_interval: seconds between two values of the histories, which have at most ten minutes, the oldest first.
    """

    start_time: datetime.datetime | None
    num_rounds: int
    num_ended_rounds: int
    num_submissions: int
    num_refused: int
    received_bytes: int
    resident_bytes: int
    history_interval: float
    num_submissions_history: tuple[int, ...]
    received_bytes_history: tuple[int, ...]
    resident_bytes_history: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ServerInfo:
    """What a server is and can do.

    Attributes:
        engine: "cpu" or "cuda".
        engine_description: device and threads, for people.
        features: names of additions to the API that the server has.
        key_encodings, value_encodings: those that clients may use.
        warnings: what the server does without, for its operator, such as authentication.
        instance: names the data that it has: the same as long as its data directory; without one, new at each start.
        activity: what it has done; None in process, of older servers, and for callers with the role of a client.
    """

    version: str
    api_versions: tuple[str, ...]
    engine: str
    engine_description: str
    features: tuple[str, ...]
    limits: ServerLimits
    key_encodings: tuple[str, ...]
    value_encodings: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    instance: str = ""
    activity: ServerActivity | None = None

    def __repr__(self) -> str:
        return plain(f"ServerInfo(version {self.version}, {self.engine_description})")

    @classmethod
    def from_proto(cls, proto: pb.ServerInfo) -> ServerInfo:
        """Returns the values of a message."""
        return read(
            cls,
            proto,
            limits=read(ServerLimits, proto.limits),
            key_encodings=_names(pb.KeyEncoding, "KEY_ENCODING_", proto.key_encodings),
            value_encodings=_names(pb.ValueEncoding, "VALUE_ENCODING_", proto.value_encodings),
            activity=read(ServerActivity, proto.activity) if proto.HasField("activity") else None,
        )


_MOST_INT32 = 2**31 - 1
_MOST_UINT32 = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class NewTask:
    """A task to create.

    Attributes:
        payload: for the worker; at most the server's max_task_bytes.
        labels: what a worker must have to get the task.
        priority: tasks of a higher priority go first.
        deadline: seconds from the creation until the task fails; None: never.
        max_attempts: leases until the task fails; 0: the server's default, 10.
        round: the round or stream to submit to, by its id, its name, or as ``Round`` or ``Stream``; None: none.
        ttl: seconds that the ended task is kept; None: the server's limit.
        id: [A-Za-z0-9_][A-Za-z0-9._-]{0,127}; None: a random one.
    """

    payload: bytes = b""
    labels: Iterable[str] = ()
    priority: int = 0
    deadline: Seconds | None = None
    max_attempts: int = 0
    round: Any = None
    ttl: Seconds | None = None
    id: str | None = None

    def to_proto(self, task_id: str) -> tasks_pb2.NewTask:
        """Returns the message; ``InvalidArgumentError`` names a field with a wrong type."""
        most = f"from 0 to {_MOST_UINT32}"
        return tasks_pb2.NewTask(
            task_id=checked_text("a task's id", task_id),
            spec=tasks_pb2.TaskSpec(
                payload=checked_bytes("payload", self.payload),
                labels=checked_labels(self.labels),
                priority=checked_integer(
                    "priority must be a number of 32 bits", self.priority, -_MOST_INT32, _MOST_INT32
                ),
                deadline=duration("deadline", self.deadline),
                max_attempts=checked_integer(
                    f"max_attempts must be a number {most}", self.max_attempts, 0, _MOST_UINT32
                ),
                round=_round_name(self.round),
                ttl=duration("ttl", self.ttl),
            ),
        )


@dataclasses.dataclass(frozen=True)
class Task:
    """A task at one moment.

    Attributes:
        name: "tasks/{id}".
        state: "open", "leased", "completed", "failed" or "cancelled".
        state_reason: why the task is "failed" or "cancelled", or why its latest attempt was not the last.
        payload: of ``get_task`` and ``lease_task``, while the task has not ended; otherwise empty.
        attempts: leases so far.
        client_id: the worker of the latest lease; of the one that has completed the task.
        lease_id: of that lease.
        lease_remaining: seconds until that lease expires, as the server wrote them.
        result: of a "completed" task, from ``get_task`` and ``list_tasks``.
        base_version: of ``lease_task``, if ``round`` is a stream: its latest version with a result when the task was
            leased; 0: there is none. Else None.
        as_of: when this client read the description, by its own clock, in UTC.
    """

    name: str
    state: str
    state_reason: str
    payload: bytes
    labels: tuple[str, ...]
    priority: int
    round: str
    owner: str
    attempts: int
    max_attempts: int
    client_id: str
    lease_id: str
    lease_remaining: float
    submission_id: str
    result: bytes
    create_time: datetime.datetime | None
    end_time: datetime.datetime | None
    expire_time: datetime.datetime | None
    base_version: int | None = None
    as_of: datetime.datetime | None = dataclasses.field(default=None, compare=False)

    def __repr__(self) -> str:
        worker = f", client {self.client_id!r}" if self.client_id else ""
        return (
            f"Task({self.name!r}, {plain(self.state)}{worker}, attempts: {self.attempts} of {self.max_attempts}"
            f"{as_of(self.as_of)})"
        )

    @property
    def id(self) -> str:
        """The name without "tasks/"."""
        return self.name.partition("/")[2]

    @property
    def ended(self) -> bool:
        """Whether the task is in a final state."""
        return self.state not in ("open", "leased")

    @classmethod
    def from_proto(cls, proto: tasks_pb2.Task) -> Task:
        """Returns the values of a message."""
        spec, lease = proto.spec, proto.lease
        return read(
            cls,
            proto,
            payload=spec.payload,
            labels=tuple(spec.labels),
            priority=spec.priority,
            round=spec.round,
            max_attempts=spec.max_attempts,
            client_id=lease.client_id,
            lease_id=lease.lease_id,
            lease_remaining=seconds_of(lease.remaining),
            as_of=now(),
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a worker's handler has made of a task.

    Attributes:
        update: for the task's round; see ``Round.submit``. None: nothing to submit, which fails a task with a round.
        weight: of the update.
        result: small, for the coordinator; at most the server's max_task_bytes.
    """

    update: Update | None = None
    weight: float | None = None
    result: bytes = b""

    @classmethod
    def of(cls, returned: Any) -> Outcome:
        """Returns what a handler has returned as an outcome; ``InvalidArgumentError`` if it is none."""
        if isinstance(returned, Outcome):
            return returned
        if returned is None:
            return cls()
        return cls(result=checked_bytes("what a handler returns, unless it is an Outcome or None,", returned))


def checked_bytes(what: str, value: Any) -> bytes:
    """Returns ``value`` as bytes; ``InvalidArgumentError`` names ``what`` if it is no bytes-like object."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise InvalidArgumentError(f"{what} must be bytes, got {shown(value)}")


def checked_labels(labels: Any) -> list[str]:
    """Returns a list of labels; ``InvalidArgumentError`` if ``labels`` is no collection of strings."""
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
        raise InvalidArgumentError(f"labels must be a list of strings, got {shown(labels)}")
    return [checked_text("a label", label) for label in labels]


def _round_name(chosen: Any) -> str:
    if chosen is None:
        return ""
    name = checked_text("the round of a task", getattr(chosen, "name", chosen))
    return name if name.startswith("rounds/") else f"rounds/{name.removeprefix('streams/')}"


@dataclasses.dataclass(frozen=True, eq=False)
class Inspection:
    """Inner products and distances of the submissions of a sealed round, and how many keys each two of them share.

    The vector of a submission has the values of all inspected tensors at all keys, and zeros at absent keys. Repeated
    keys are folded, and the bounds of the round (``ClipSpec``) are applied; weights are not. The sums are defined to
    the bit: see docs/robust.md.

    Attributes:
        clients: n client ids in ascending bytewise order, the order of the rows and columns.
        gram: ⟨v_j, v_k⟩ as float64, of shape (n, n), symmetric.
        squared_distances: ‖v_j − v_k‖² likewise, from differences of values. G_jj + G_kk − 2·G_jk of the Gram matrix
            loses its digits where all submissions share a large value. Infinite where a square exceeds float64.
        overlap: number of pairs (tensor, key) that both submissions list, as int64, of shape (n, n), symmetric. The
            diagonal has the number of keys of each submission.
        left_out: ids of the clients of the round that ``only`` has left out; a rule gives them weight 0.
    """

    clients: tuple[str, ...]
    gram: npt.NDArray[np.float64]
    squared_distances: npt.NDArray[np.float64]
    overlap: npt.NDArray[np.int64]
    left_out: tuple[str, ...] = ()

    def only(self, client_ids: Collection[str]) -> Inspection:
        """Returns the inspection of some of the clients. The others become ``left_out``.

        Raises:
            InvalidArgumentError: a client has no submission in the inspection.
        """
        unknown = sorted(set(client_ids).difference(self.clients))
        if unknown:
            raise InvalidArgumentError(f"client {shown(unknown[0])} has no submission in the inspection")
        chosen = set(client_ids)
        places = [place for place, client_id in enumerate(self.clients) if client_id in chosen]
        of_both = np.ix_(places, places)
        clients = tuple(self.clients[place] for place in places)
        left_out = (*self.left_out, *(client_id for client_id in self.clients if client_id not in chosen))
        return Inspection(clients, self.gram[of_both], self.squared_distances[of_both], self.overlap[of_both], left_out)

    @classmethod
    def from_pages(cls, pages: Sequence[pb.InspectRoundResponse]) -> Inspection:
        """Returns the matrices, of which the pages have the lower triangles, row after row.

        Raises:
            UnimplementedError: the server is older than ``squared_distances``.
        """
        clients = tuple(client_id for page in pages for client_id in page.client_ids)
        if clients and not any(page.squared_distances for page in pages):
            raise UnimplementedError("the server is older than squared_distances of an inspection: update the server")
        lower = np.tril_indices(len(clients))

        def symmetric(parts: Iterable[bytes], wire: str, dtype: type) -> npt.NDArray[Any]:
            matrix: npt.NDArray[Any] = np.zeros((len(clients), len(clients)), dtype)
            matrix[lower] = np.frombuffer(b"".join(parts), wire)
            matrix.T[lower] = matrix[lower]
            return matrix

        return cls(
            clients,
            symmetric((page.gram for page in pages), "<f8", np.float64),
            symmetric((page.squared_distances for page in pages), "<f8", np.float64),
            symmetric((page.overlap for page in pages), "<u8", np.int64),
        )
