"""The result of a cluster's round, as readers find it on the servers."""

from __future__ import annotations

import concurrent.futures
import math
import time
from collections.abc import Sequence
from typing import Any

from sparseagg._internal.base.arguments import Timeout, checked_seconds
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.blocking_round import Round
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.cluster.join import concatenated, dense, is_cut, is_dense
from sparseagg.cluster.plan import KeyRange
from sparseagg.cluster.published import Part, read_list, read_part
from sparseagg.errors import DeadlineExceededError, InvalidArgumentError

__all__ = ["PublishedResult"]

_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.05, 2.0  # between looks for a result


class PublishedResult:
    """The list of a result's ranges, and the ranges that it names.

    Args:
        clients: of each server.
        opened: the round of the first server.
        spec: of the cluster's round.
    """

    def __init__(self, clients: Sequence[Client], opened: Round, spec: RoundSpec) -> None:
        self._clients = clients
        self._opened = opened
        self._spec = spec

    def find(self) -> tuple[list[Part], dict[str, Any]] | None:
        """Returns the list, and what was written beside it; None if the result is not there."""
        return read_list(self._opened.name.removeprefix("rounds/"), self._clients[0])

    def wait(self, timeout: Timeout) -> tuple[list[Part], dict[str, Any]]:
        """Returns the same, as soon as it is there.

        Raises:
            DeadlineExceededError: it is not there after ``timeout``.
            NotFoundError: the round has been deleted.
        """
        seconds = checked_seconds("timeout", timeout)
        until = math.inf if seconds is None else time.monotonic() + seconds
        pause = _FIRST_PAUSE_S
        while (found := self.find()) is None:
            if time.monotonic() + pause > until:
                raise DeadlineExceededError(f"{self._opened.name} is not closed after {seconds:g} s")
            self._opened.refresh()  # NotFoundError: it has been deleted
            time.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE_S)
        return found

    def parts(self, tensor: str | None, timeout: Timeout) -> tuple[TensorSpec, list[Part]]:
        """Waits; returns a tensor, the only one for None, and the ranges of its result."""
        if tensor is None and len(self._spec.tensors) > 1:
            raise InvalidArgumentError(f"the round has {len(self._spec.tensors)} tensors: name one")
        found = self._spec.tensors[0] if tensor is None else self._spec.tensor(tensor)
        return found, [part for part in self.wait(timeout)[0] if part.tensor == found.name]

    def read(self, tensor: TensorSpec, listed: Sequence[Part], keys: KeyRange) -> TensorResult:
        """Returns the rows of a tensor with keys of a range, from the ranges that ``listed`` has of it.

        Raises:
            NotFoundError: a server has lost its part, or the result_ttl is over.
        """
        own = [part for part in listed if part.tensor == tensor.name]
        begin, end = keys
        met = [
            part for part in own if (end is None or part.begin < end) and (part.end is None or part.end > begin)
        ] or own[:1]
        with concurrent.futures.ThreadPoolExecutor(len(self._clients)) as pool:
            parts = list(pool.map(lambda part: read_part(part, tensor, self._clients, keys), met))
        whole = concatenated(self._spec, tensor, parts)
        cut = is_cut(self._spec, tensor)  # for sparse results alone
        if not cut and is_dense(self._spec, tensor, whole.dtype, sum(part.num_rows for part in own)):
            return dense(whole, keys)
        return whole
