"""A vocabulary that reveals no client's own words.

Each client submits the number of times it uses each token, at the token's 64-bit hash. The server adds up the counts.
With ``min_contributors`` = 2 the result has only the hashes of tokens that two clients or more use. The most frequent
of these tokens get ids. A client finds its own tokens by hashing them, so nobody has to invert a hash.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.commands.demo.corpus import Text
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec

__all__ = ["Vocabulary", "learn_vocabulary"]

Array = np.ndarray[Any, Any]

_SPEC = RoundSpec(
    tensors=[TensorSpec("count", dtype="int64", num_rows=0)],  # num_rows 0: keys are hashes, all of uint64
    op="sum",
    min_contributors=2,
)


@functools.cache
def hash_token(token: str) -> int:
    """Returns the token's 64-bit hash."""
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest(), "little")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, the most frequent first.

    Attributes:
        hashes: hashes of the tokens, ascending, uint64.
        ids: the id of each hash.
        counts: by id, how often the token occurs in all clients' texts.
    """

    hashes: Array
    ids: Array
    counts: Array

    def __len__(self) -> int:
        return len(self.ids)

    def encode(self, tokens: list[str]) -> Array:
        """Returns the ids of those tokens that the vocabulary has."""
        hashes = np.fromiter((hash_token(token) for token in tokens), np.uint64, len(tokens))
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        encoded: Array = self.ids[at[self.hashes[at] == hashes]]
        return encoded


def count_tokens(tokens: list[str]) -> tuple[Array, Array]:
    """Returns a client's update: the hashes of its tokens, and how often the client uses each token."""
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
        size: number of tokens to keep at most.
        concurrency: number of clients that submit at the same time.

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
    merged = counting.finish()["count"]
    counting.delete()
    if len(merged) == 0 or merged.values is None:
        raise ValueError("no two clients share a token")
    # The most frequent tokens first. Hashes break ties, so that every run gives the same ids.
    chosen = np.lexsort((merged.keys, -merged.values))[:size]
    by_hash = np.argsort(merged.keys[chosen])
    vocabulary = Vocabulary(hashes=merged.keys[chosen][by_hash], ids=by_hash, counts=merged.values[chosen])
    return vocabulary, counting.info, len(merged)
