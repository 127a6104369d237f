"""A cycle of the crash test that is a round."""

from __future__ import annotations

import contextlib
import random
import threading
import time

import sparseagg as sa

from crash.cycle import Cycle
from crash.fail_points import is_at_restart
from crash.failure import Failure
from crash.server import Server
from crash.updates import SPEC, Client, arrays_of, check_round, digest_of


class RoundCycle(Cycle):
    """One round, from its creation to its deletion."""

    def __init__(
        self,
        server: Server,
        number: int,
        rng: random.Random,
        point: str,
        clients: list[Client],
        batches: list[list[Client]],
    ) -> None:
        # The deletion comes after the kill between the two reads.
        super().__init__(server, rng, point, is_at_restart(point) or point.endswith("_delete"))
        self._id = f"round-{number}"
        self._submitted_alone = clients
        self._batches = batches
        self._seals = number % 2 == 0
        self._clients = [*clients, *(client for batch in batches for client in batch)]

    def run(self) -> tuple[frozenset[str], str]:
        """Returns who is in the result, and its hash."""
        self.start()
        threads = [
            threading.Thread(target=self._submit, args=(client,), daemon=True) for client in self._submitted_alone
        ]
        for batch in self._batches:
            threads.append(threading.Thread(target=self._submit_batch, args=(batch,), daemon=True))
        coordinator = threading.Thread(target=self._create, daemon=True)
        coordinator.start()
        for thread in threads:
            thread.start()
        self.disturb(threads)
        coordinator.join()
        for thread in threads:
            thread.join()
        for client in self._clients:
            if client.error is not None:
                raise Failure(f"{client.id} failed: {client.error!r}") from client.error
        return self._finish()

    def _create(self) -> None:
        with self.connected() as client:
            client.create_round(SPEC, round_id=self._id)

    def _submit(self, who: Client) -> None:
        try:
            with self.connected(who.chunk_bytes) as client:
                rnd = client.create_round(SPEC, round_id=self._id)
                update = {"v": (who.keys, who.rows)}
                rnd.submit(who.id, update, weight=who.weight, resumable=who.resumable)
                who.is_acknowledged = True
                if who.repeats:
                    self._repeat(rnd, who)
                if who.withdraws:
                    rnd.withdraw(who.id)
                    who.is_withdrawn = True
        except Exception as error:
            who.error = error

    def _repeat(self, rnd: sa.Round, who: Client) -> None:
        """Submits again: the same, which does not count, and something else, which is refused."""
        again = rnd.submit(who.id, {"v": (who.keys, who.rows)}, weight=who.weight, resumable=not who.resumable)
        if not again.duplicate:
            raise Failure("an acknowledged submission counted a second time")
        with contextlib.suppress(sa.errors.AlreadyExistsError):
            rnd.submit(who.id, {"v": (who.keys, who.rows + 1)}, weight=who.weight, resumable=who.resumable)
            raise Failure("other content of an acknowledged client counted")

    def _submit_batch(self, batch: list[Client]) -> None:
        try:
            with self.connected(batch[0].chunk_bytes) as client:
                rnd = client.create_round(SPEC, round_id=self._id)
                ids, weights = [who.id for who in batch], [who.weight for who in batch]
                offsets, keys, rows = arrays_of(batch)
                receipt = rnd.submit_batch(ids, {"v": (offsets, keys, rows)}, weights)
                if receipt.refused or receipt.num_submissions != len(batch):
                    raise Failure(f"of a batch of {len(batch)}, {receipt} counts")
                for who in batch:
                    who.is_acknowledged = True
                if not batch[0].repeats:
                    return
                again = rnd.submit_batch(ids, {"v": (offsets, keys, rows)}, weights)
                if again.num_duplicates != len(batch):
                    raise Failure(f"submitted again, a batch of {len(batch)} has {again.num_duplicates} duplicates")
                other = rnd.submit_batch(ids, {"v": (offsets, keys, rows)}, [weight + 1 for weight in weights])
                if other.refused.keys() != set(ids):
                    raise Failure("other content of acknowledged clients of a batch counted")
        except Exception as error:
            batch[0].error = error

    def _finish(self) -> tuple[frozenset[str], str]:
        """Seals every other round, closes, reads, kills, reads again, and deletes."""
        with self.disturbed() as kill_now, self.connected() as client:
            rnd = client.get_round(self._id)
            frozen = frozenset(each.client_id for each in rnd.submissions()) if self._seals and rnd.seal() else None
            result = rnd.finish()["v"]
            listed = frozenset(each.client_id for each in rnd.submissions())
            if frozen not in (None, listed):
                raise Failure(f"the sealed round had {sorted(frozen)}, and counts {sorted(listed)}")
            proof = self._proof(rnd, listed)
            kill_now.set()
            while kill_now.is_set():
                time.sleep(0.001)
            again = rnd.result()["v"]
            if self._proof(rnd, listed) != proof:
                raise Failure("the certificate, or a receipt, is another one after the restart")
            rnd.delete()
        first = digest_of(result)
        check_round(self._clients, listed, first, digest_of(again))
        return listed, first

    def _proof(
        self, rnd: sa.Round, listed: frozenset[str]
    ) -> tuple[sa.types.Certificate, list[sa.types.SubmissionReceipt]]:
        """Returns the certificate and all receipts, which are verified."""
        certificate = rnd.certificate()
        receipts = [sa.certificates.receipt(rnd, client_id) for client_id in sorted(listed)]
        for receipt in receipts:
            sa.certificates.verify(certificate, self.server.public_key, receipt=receipt)
        if certificate.statement["predicate"]["numSubmissions"] != len(listed):
            raise Failure("the certificate counts other submissions than those of the result")
        return certificate, receipts
