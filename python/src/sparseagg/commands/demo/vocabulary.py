"""A vocabulary that nobody has to show their words for.

Each client submits how often it uses each token, at the token's 64-bit hash. The server adds the counts up, and with
``min_contributors`` = 2 reveals only hashes that two clients share: what only one of them writes stays with that one.
The most frequent of the rest get ids. A client finds its own tokens by hashing them; nobody needs to invert a hash.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np

from sparseagg.client.blocking_client import Client
from sparseagg.client.progress import ProgressBar
from sparseagg.commands.demo.corpus import Text
from sparseagg.info import RoundInfo
from sparseagg.spec import RoundSpec, TensorSpec

__all__ = ["Vocabulary", "learn_vocabulary"]

Array = np.ndarray[Any, Any]

_SPEC = RoundSpec(
    tensors=[TensorSpec("count", dtype="int64", dimension=0)],  # dimension 0: keys are hashes, all of uint64
    op="sum",
    min_contributors=2,
)


@functools.cache
def hash_token(token: str) -> int:
    """Returns 64 bits that stand for the token."""
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest(), "little")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, the most frequent first.

    Attributes:
        hashes: of the tokens, ascending, uint64.
        ids: of ``hashes``, in their order.
        counts: how often each id occurs in all clients' texts.
    """

    hashes: Array
    ids: Array
    counts: Array

    def __len__(self) -> int:
        return len(self.ids)

    def encode(self, tokens: list[str]) -> Array:
        """Returns the ids of the known ones among the tokens."""
        hashes = np.fromiter((hash_token(token) for token in tokens), np.uint64, len(tokens))
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        encoded: Array = self.ids[at[self.hashes[at] == hashes]]
        return encoded


def count_tokens(tokens: list[str]) -> tuple[Array, Array]:
    """Returns a client's update: the hashes of its distinct tokens, and how often it uses each."""
    counts = collections.Counter(tokens)
    hashes = np.fromiter((hash_token(token) for token in counts), np.uint64, len(counts))
    return hashes, np.fromiter(counts.values(), np.int64, len(counts))


def learn_vocabulary(
    client: Client, texts: list[Text], size: int, concurrency: int
) -> tuple[Vocabulary, RoundInfo, int]:
    """Runs the round of counts.

    Args:
        client: of the server.
        texts: of the clients that take part.
        size: the most tokens to keep.
        concurrency: clients that submit at a time.

    Returns:
        The vocabulary, the round, and the number of tokens that at least two clients use.

    Raises:
        ValueError: no two clients share a token.
    """
    counting = client.create_round(_SPEC)
    with (
        ProgressBar("vocabulary", len(texts), "clients") as bar,
        concurrent.futures.ThreadPoolExecutor(concurrency) as pool,
    ):
        for _ in pool.map(lambda text: counting.submit(text.name, count_tokens(text.tokens)), texts):
            bar.advance()
    merged = counting.close()["count"]
    counting.delete()
    if len(merged) == 0 or merged.values is None:
        raise ValueError("no two clients share a token")
    # The most frequent first; hashes break ties, so that the ids are the same in every run.
    chosen = np.lexsort((merged.keys, -merged.values))[:size]
    by_hash = np.argsort(merged.keys[chosen])
    vocabulary = Vocabulary(hashes=merged.keys[chosen][by_hash], ids=by_hash, counts=merged.values[chosen])
    return vocabulary, counting.info, len(merged)
