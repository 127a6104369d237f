"""What the clients of a round send, and what the result must be."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import sparseagg as sa

from crash.failure import Failure

NUM_ROWS = 20_000
WIDTH = 3
BATCH_CLIENTS = 60
BATCH_CHUNK_BYTES = 2000
SPEC = sa.RoundSpec(
    tensors=[sa.TensorSpec("v", dtype="float32", num_rows=NUM_ROWS, row_width=WIDTH)],
    op="sum",
    weighting="by_weight",
    result_layout="sparse",
    return_counts=True,
    certificate=True,
)


@dataclasses.dataclass
class Client:
    """One client, what it sends, and what it was told."""

    id: str
    keys: np.ndarray
    rows: np.ndarray
    weight: float
    resumable: bool
    chunk_bytes: int
    withdraws: bool
    repeats: bool  # submits a second time, as a client does that was started again
    is_acknowledged: bool = False
    is_withdrawn: bool = False
    error: BaseException | None = None


def _rows(rng: np.random.Generator, num_keys: int) -> np.ndarray:
    """Random rows; some values are so large that others are lost beside them, so that bits depend on the order."""
    rows = rng.standard_normal((num_keys, WIDTH)).astype(np.float32)
    is_large = rng.random(rows.shape) < 1 / 8
    rows[is_large] = np.copysign(np.float32(2.0**100), rows[is_large])
    return rows


def make_client(index: int, content_seed: int) -> Client:
    """A client whose update depends on its index and the seed only."""
    rng = np.random.default_rng([content_seed, index])
    # Of a large one, chunks lie in files beside the database.
    is_large = index % 3 == 1
    num_keys = int(rng.integers(8000, 12_000) if is_large else rng.integers(1, 200))
    return Client(
        id=f"client-{index:03}",
        keys=np.sort(rng.choice(NUM_ROWS, num_keys, replace=False)),
        rows=_rows(rng, int(num_keys)),
        weight=float(rng.integers(1, 5)),
        resumable=bool(rng.integers(2)),
        chunk_bytes=int(rng.choice([100_000, 1 << 20] if is_large else [256, 1024, 1 << 20])),
        withdraws=index % 8 == 3,
        repeats=index % 4 == 0,
    )


def make_batch(index: int, content_seed: int) -> list[Client]:
    """Clients whose small updates one process submits together, in several messages."""
    rng = np.random.default_rng([content_seed, index, BATCH_CLIENTS])
    return [
        Client(
            id=f"batch-{index}-{number:03}",
            keys=np.sort(rng.choice(NUM_ROWS, num_keys, replace=False)),
            rows=_rows(rng, int(num_keys)),
            weight=float(rng.integers(1, 5)),
            resumable=False,
            chunk_bytes=BATCH_CHUNK_BYTES,
            withdraws=False,
            repeats=index % 2 == 0,
        )
        for number, num_keys in enumerate(rng.integers(0, 12, BATCH_CLIENTS))
    ]


def arrays_of(batch: list[Client]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The update of ``Round.submit_batch``: offsets, keys and rows."""
    offsets = np.cumsum([0, *(len(client.keys) for client in batch)])
    return offsets, np.concatenate([c.keys for c in batch]), np.concatenate([c.rows for c in batch])


def expected(clients: list[Client]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sum by numpy alone: float64 from client to client in the order of their ids, rounded once."""
    rows = np.zeros((NUM_ROWS, WIDTH), np.float64)
    counts = np.zeros(NUM_ROWS, np.uint32)
    for client in sorted(clients, key=lambda each: each.id):
        rows[client.keys] += client.weight * client.rows.astype(np.float64)
        counts[client.keys] += 1
    (keys,) = np.nonzero(counts)
    return keys, rows[keys].astype(np.float32), counts[keys]


def digest(keys: np.ndarray, rows: np.ndarray, counts: np.ndarray) -> str:
    """A hash of the keys and counts, and of the bits of the rows."""
    state = hashlib.sha256()
    for array in (keys.astype(np.uint64), rows, counts.astype(np.uint64)):
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def digest_of(result: sa.TensorResult) -> str:
    """The same of a result."""
    assert result.values is not None
    assert result.counts is not None
    return digest(result.keys, result.values, result.counts)


def check_round(clients: list[Client], listed: frozenset[str], first: str, second: str) -> None:
    """Compares who is listed, and the hashes of the result before and after a restart, with what clients were told."""
    if lost := {each.id for each in clients if each.is_acknowledged and not each.withdraws} - listed:
        raise Failure(f"acknowledged, but not in the result: {sorted(lost)}")
    if back := {each.id for each in clients if each.is_withdrawn} & listed:
        raise Failure(f"withdrawn, but in the result: {sorted(back)}")
    if first != digest(*expected([each for each in clients if each.id in listed])):
        raise Failure("the result has other bits than the sum of the listed submissions")
    if first != second:
        raise Failure("the result has other bits after the restart")
