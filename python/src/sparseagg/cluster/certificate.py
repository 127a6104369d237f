"""The certificate of a cluster's round, and receipts that fit it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from sparseagg._internal.certificates import statement
from sparseagg._internal.certificates.statement import make_certificate, payload_of, read_private_key, time_now
from sparseagg._internal.client.blocking_client import Round
from sparseagg._internal.results.info import Certificate, Leaves, SubmissionReceipt
from sparseagg._internal.results.result import Result
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg.cluster.exchange import leaves as leaves_of
from sparseagg.cluster.plan import on_all
from sparseagg.errors import FailedPreconditionError


@dataclasses.dataclass(frozen=True)
class RoundCertificate:
    """The certificate of a round, and the leaves of its tree."""

    certificate: Certificate
    leaves: Leaves

    def complete(self, receipt: SubmissionReceipt) -> SubmissionReceipt:
        """Returns the receipt of a home server with the proof that the certificate counts the submission."""
        counted = self.leaves.counted
        index = list(counted).index(receipt.client_id)
        path = statement.path_of(counted.values(), index)
        return dataclasses.replace(receipt, leaf_index=index, tree_size=len(counted), path=path)


def certify(
    name: str,
    spec: RoundSpec,
    result: Result,
    rounds: Sequence[Round],
    key_file: pathlib.Path,
    close_time: str | None = None,
) -> RoundCertificate:
    """Signs what the servers of a cluster have computed together: a result of all submissions of sealed rounds.

    Args:
        key_file: an Ed25519 private key in PEM.
        close_time: from ``time_now``; None: now.

    Raises:
        FailedPreconditionError: there is no submission.
        InvalidArgumentError, OSError: the file has no such key, or cannot be read.
    """
    key = read_private_key(key_file)
    parts = on_all(rounds, leaves_of)
    firsts = [(opened, next(iter(part.counted))) for opened, part in zip(rounds, parts) if part.counted]
    promises = [payload_of(opened._receipt(client).promise, "promise") for opened, client in firsts]
    if not promises:
        raise FailedPreconditionError(f"{name} has no submissions to make a certificate of")
    counted = {client: leaf for part in parts for client, leaf in part.counted.items()}
    ordered = {client: counted[client] for client in sorted(counted, key=lambda each: each.encode())}
    leaves = Leaves(ordered, tuple(leaf for part in parts for leaf in part.withdrawn))
    bytes_of_spec = spec._to_proto().SerializeToString(deterministic=True)
    tensors = dict(result.items()).values()
    made = make_certificate(name, bytes_of_spec, leaves, tensors, "cpu", promises, key, close_time or time_now())
    return RoundCertificate(made, leaves)
