"""What a server says of itself: its limits, what it does, and what it has done."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable
from typing import Any

from sparseagg._internal.base.fields import read
from sparseagg._internal.base.text import plain
from sparseagg.v1 import aggregation_pb2 as pb


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

    Totals never fall while the server runs: they keep what deleted rounds did. Rounds with ``privacy`` count as rounds;
    their submissions and bytes do not count.

    Attributes:
        start_time: of the server.
        num_rounds: created since ``start_time``.
        num_ended_rounds: how many of these have ended.
        num_submissions: accepted; the repetition of one does not count.
        num_refused: submissions that were refused.
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
        instance: id of the server's data: stays as long as its data directory; without one, new at each start.
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
    def _from_proto(cls, proto: pb.ServerInfo) -> ServerInfo:
        """Returns the values of a message."""
        return read(
            cls,
            proto,
            limits=read(ServerLimits, proto.limits),
            key_encodings=_names(pb.KeyEncoding, "KEY_ENCODING_", proto.key_encodings),
            value_encodings=_names(pb.ValueEncoding, "VALUE_ENCODING_", proto.value_encodings),
            activity=read(ServerActivity, proto.activity) if proto.HasField("activity") else None,
        )
