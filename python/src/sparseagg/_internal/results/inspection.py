"""What the submissions of a sealed round have in common: inner products, distances, shared keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparseagg._internal.base.arguments import shown
from sparseagg.errors import InvalidArgumentError, UnimplementedError
from sparseagg.v1 import aggregation_pb2 as pb


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
    def _from_pages(cls, pages: Sequence[pb.InspectRoundResponse]) -> Inspection:
        """Returns the matrices, of which the pages have the lower triangles, row after row; ``UnimplementedError`` if
        the server is older than ``squared_distances``.
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
