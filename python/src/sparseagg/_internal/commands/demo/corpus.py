"""The clients' texts: each file, or each speaker of a play, is a client."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import hashlib
import pathlib
import re
import sysconfig
from typing import Any

import numpy as np

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec

# A word with the punctuation mark after it, if any. So `f(`, `f.` and `f=` are different tokens, and so are a word
# within a sentence and the same word at its end.
_TOKEN = re.compile(r"\w+[^\w\s]?")
_SPEAKER = re.compile(r"^([A-Z][^:\n]{0,40}):[ \t]*$", re.MULTILINE)
_MIN_TOKENS = 20
_HELD_OUT_EVERY = 20
_NOT_OURS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclasses.dataclass(frozen=True)
class Text:
    """One client's text."""

    name: str
    tokens: list[str]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The clients that take part, and the held-out texts, which measure the loss."""

    description: str
    clients: list[Text]
    held_out: list[Text]


def load(source: str | None, max_clients: int | None = None) -> Corpus:
    """Loads a folder (a client for each file), a play (a client for each speaker) or, for None, Python's standard
    library.

    Raises ``ValueError`` for fewer than two texts of a useful length.
    """
    if source is None:
        description, texts = "Python's standard library", load_standard_library()
    elif pathlib.Path(source).is_dir():
        description, texts = source, load_directory(pathlib.Path(source))
    else:
        description, texts = source, load_play(pathlib.Path(source))
    texts = [text for text in texts if len(text.tokens) >= _MIN_TOKENS]
    if len(texts) < 2:
        raise ValueError(f"{description} has {len(texts)} texts of {_MIN_TOKENS} tokens or more; at least 2 are needed")
    if max_clients is not None:
        texts = texts[: max_clients + max(1, max_clients // (_HELD_OUT_EVERY - 1))]
    every = min(_HELD_OUT_EVERY, len(texts))
    return Corpus(
        description=description,
        clients=[text for i, text in enumerate(texts) if i % every != every - 1],
        held_out=texts[every - 1 :: every],
    )


def load_standard_library() -> list[Text]:
    """Returns the Python files of this interpreter's standard library, without its tests, in order of path."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    paths = (path for path in root.rglob("*.py") if not _NOT_OURS & set(path.relative_to(root).parts))
    return [_read(path, root) for path in sorted(paths)]


def load_directory(root: pathlib.Path) -> list[Text]:
    """Returns the text files below a folder, in order of path."""
    texts = []
    for path in sorted(root.rglob("*")):
        if path.is_file() and b"\0" not in path.open("rb").read(4096):
            texts.append(_read(path, root))
    return texts


def load_play(path: pathlib.Path) -> list[Text]:
    """Returns the speakers of a play. A line ``Name:`` begins a speech, which ends at the next such line."""
    parts = _SPEAKER.split(path.read_text(encoding="utf-8", errors="replace"))
    speeches: dict[str, list[str]] = {}
    for name, speech in zip(parts[1::2], parts[2::2]):
        speeches.setdefault(name, []).extend(_TOKEN.findall(speech))
    return [Text(name, tokens) for name, tokens in sorted(speeches.items())]


def _read(path: pathlib.Path, root: pathlib.Path) -> Text:
    content = path.read_text(encoding="utf-8", errors="replace")
    return Text(path.relative_to(root).as_posix(), _TOKEN.findall(content))


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
    """Tokens by id, the most frequent first."""

    hashes: Array  # hashes of the tokens, ascending, uint64
    ids: Array  # the id of each hash
    counts: Array  # by id, how often the token occurs in all clients' texts

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
    """Runs the round of counts: returns the ``size`` most frequent tokens, the round, and how many tokens two clients
    use.

    Raises ``ValueError`` if no two clients share a token.
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
