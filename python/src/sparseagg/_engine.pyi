"""The extension module; python/engine/ in the repository. engine.py is its only user."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from sparseagg._internal.updates.arrays import Array

class EngineError(Exception): ...

class RawResult(TypedDict):
    layout: str
    dtype: str
    keys: Array | None
    values: Array | None
    counts: Array
    weights: Array
    fixed_point_shift: int | None
    plan: str

Piece = tuple[int, Array | None, Array | None, int]
Convert = Callable[[str, Any], tuple[list[Piece], float | None]]

def describe() -> str: ...
def force_simd(target: str) -> None: ...
def release_memory() -> None: ...

class Aggregator:
    def __init__(
        self,
        tensors: list[dict[str, Any]],
        max_submissions: int,
        max_tuples_per_submission: int,
        max_bytes_per_submission: int,
        min_submissions: int,
        threads: int,
        memory_limit: int,
    ) -> None: ...
    def add_one(self, client_id: str, update: Any, weight: float | None, convert: Convert) -> None: ...
    def add_all(self, names: list[str] | None, first: int, updates: list[Any], convert: Convert) -> None: ...
    def merge(self, other: Aggregator) -> None: ...
    def withdraw(self, client_ids: list[str]) -> int: ...
    def finish(self, finite: Sequence[int]) -> list[RawResult] | None: ...
    @property
    def engine(self) -> str: ...
    @property
    def num_submissions(self) -> int: ...
    @property
    def num_tuples(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def times(self) -> tuple[float, float, float]: ...
