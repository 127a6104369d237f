"""A cycle of the crash test that is a round, of a server that may lose what it has acknowledged."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import sparseagg as sa

from crash.failure import Failure
from crash.round_cycle import RoundCycle
from crash.updates import SPEC, Client, arrays_of, digest, digest_of, expected

ATTEMPTS = 20
T = TypeVar("T")


class LossyRoundCycle(RoundCycle):
    """One round under ``--durability=async``, and ends of the machine.

    What was acknowledged may be lost, the round included; clients submit again. No submission is left in part: a result
    is the sum of the listed submissions, and stays what it was, or the round is failed or gone, or open again.
    """

    _has_lost_its_end = False

    def _submit(self, who: Client) -> None:
        for attempt in range(ATTEMPTS):
            try:
                with self.connected(who.chunk_bytes) as client:
                    rnd = client.create_round(SPEC, round_id=self._id)
                    update = {"v": (who.keys, who.rows)}
                    rnd.submit(who.id, update, weight=who.weight, resumable=who.resumable)
                    return
            except (
                sa.errors.NotFoundError,
                sa.errors.FailedPreconditionError,
            ) as error:  # the round or the upload is lost
                if attempt == ATTEMPTS - 1:
                    who.error = error
            except Exception as error:
                who.error = error
                return

    def _submit_batch(self, batch: list[Client]) -> None:
        ids, weights = [who.id for who in batch], [who.weight for who in batch]
        for attempt in range(ATTEMPTS):
            try:
                with self.connected(batch[0].chunk_bytes) as client:
                    rnd = client.create_round(SPEC, round_id=self._id)
                    receipt = rnd.submit_batch(ids, {"v": arrays_of(batch)}, weights)
                    for error in receipt.refused.values():
                        raise error
                    return
            except (sa.errors.NotFoundError, sa.errors.FailedPreconditionError) as error:  # the round is lost
                if attempt == ATTEMPTS - 1:
                    batch[0].error = error
            except Exception as error:
                batch[0].error = error
                return

    def _finish(self) -> tuple[frozenset[str], str]:
        """Closes, reads, kills, and reads what is there then."""
        with self.disturbed(at_random=False) as kill_now, self.connected() as client:
            listed, first = self._undisturbed(lambda: self._read(client.create_round(SPEC, round_id=self._id)))
            kill_now.set()
            while kill_now.is_set():
                time.sleep(0.001)
            self._undisturbed(lambda: self._check_again(client, listed, first))
        with self.disturbed(), self.connected() as client, contextlib.suppress(sa.errors.NotFoundError):
            client.get_round(self._id).delete()
        return listed, first

    def _undisturbed(self, function: Callable[[], T]) -> T:
        """Calls ``function`` until no kill, at the cycle's fail point, comes between its calls."""
        while True:
            num_kills = self.num_kills
            try:
                value = function()
            except (sa.SparseaggError, Failure):
                if self.num_kills == num_kills:
                    raise
            else:
                if self.num_kills == num_kills:
                    return value

    def _read(self, rnd: sa.Round) -> tuple[frozenset[str], str]:
        """Closes the round. Returns who is in the result, and its hash, which is that of their sum."""
        result = rnd.finish()["v"]
        listed = frozenset(each.client_id for each in rnd.submissions())
        found = digest_of(result)
        if found != digest(*expected([client for client in self._clients if client.id in listed])):
            raise Failure("the result has other bits than the sum of the listed submissions")
        return listed, found

    def _check_again(self, client: sa.Client, listed: frozenset[str], first: str) -> None:
        try:
            rnd = client.get_round(self._id)
        except sa.errors.NotFoundError:
            return
        state = rnd.info.state
        if state == "failed":
            if "lost submissions that are in the result" not in rnd.info.state_reason:
                raise Failure(f"the round is failed: {rnd.info.state_reason}")
            return
        # A round that has lost its end is open again, and this check, which may be repeated, gives it another one.
        self._has_lost_its_end |= state != "done"
        if self._read(rnd) != (listed, first) and not self._has_lost_its_end:
            raise Failure("the result has other bits after the restart")
