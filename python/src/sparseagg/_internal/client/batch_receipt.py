"""The receipt of a batch, from the answers to its messages."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from sparseagg._internal.results.info import BatchReceipt
from sparseagg._internal.updates.batch import Batch
from sparseagg.errors import InternalError, SparseaggError, error_of
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["batch_receipt"]

_CODES = {code.value[0]: code for code in grpc.StatusCode}


def batch_receipt(answers: Iterable[tuple[Batch, pb.SubmitBatchResponse]]) -> BatchReceipt:
    """Returns the receipt of all answers; ``InternalError`` if one is not of its batch."""
    num_submissions = num_duplicates = num_tuples = num_bytes = 0
    refused: dict[str, SparseaggError] = {}
    for batch, answer in answers:
        if len(answer.codes) != batch.stop - batch.first:
            raise InternalError(f"the server answered {len(answer.codes)} of {batch.stop - batch.first} submissions")
        num_duplicates += answer.num_duplicates
        num_tuples += answer.num_tuples
        num_bytes += answer.num_bytes
        num_counted = answer.codes.count(0)
        num_submissions += num_counted
        if num_counted == len(answer.codes):
            continue
        reasons = {refusal.index: refusal.reason for refusal in answer.refusals}
        for index, client_id in enumerate(batch.client_ids.split("\n")):
            if answer.codes[index]:
                code = _CODES.get(answer.codes[index], grpc.StatusCode.UNKNOWN)
                refused[client_id] = error_of(code, f"client {client_id!r}: {reasons.get(index, code.name)}")
    return BatchReceipt(num_submissions, num_duplicates, num_tuples, num_bytes, refused)
