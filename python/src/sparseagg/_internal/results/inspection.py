"""Inner products of the submissions of a sealed round."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from sparseagg._internal.base.arguments import shown
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["Inspection"]


@dataclasses.dataclass(frozen=True, eq=False)
class Inspection:
    """The Gram matrix of the submissions of a sealed round, and how many keys each two of them share.

    The vector of a submission has the values of all inspected tensors at all keys, and zeros at absent keys. Repeated
    keys are folded, and the bounds of the round (``ClipSpec``) are applied; weights are not. The sums are defined to
    the bit: see docs/robust.md.

    Attributes:
        clients: n client ids in ascending bytewise order, the order of the rows and columns.
        gram: ⟨v_j, v_k⟩ as float64, of shape (n, n), symmetric.
        overlap: number of pairs (tensor, key) that both submissions list, as int64, of shape (n, n), symmetric. The
            diagonal has the number of keys of each submission.
    """

    clients: tuple[str, ...]
    gram: npt.NDArray[np.float64]
    overlap: npt.NDArray[np.int64]

    def only(self, client_ids: Collection[str]) -> Inspection:
        """Returns the inspection of some of the clients.

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
        return Inspection(clients, self.gram[of_both], self.overlap[of_both])

    @classmethod
    def from_pages(cls, pages: Sequence[pb.InspectRoundResponse]) -> Inspection:
        """Returns the matrices, of which the pages have the lower triangles, row after row."""
        clients = tuple(client_id for page in pages for client_id in page.client_ids)
        n = len(clients)
        lower = np.tril_indices(n)
        gram, overlap = np.zeros((n, n)), np.zeros((n, n), np.int64)
        gram[lower] = np.frombuffer(b"".join(page.gram for page in pages), "<f8")
        overlap[lower] = np.frombuffer(b"".join(page.overlap for page in pages), "<u8")
        for matrix in (gram, overlap):
            matrix.T[lower] = matrix[lower]
        return cls(clients, gram, overlap)
