"""The clients' texts: each file, or each speaker of a play, is a client."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import sysconfig

__all__ = ["Corpus", "Text", "load", "load_directory", "load_play", "load_standard_library"]

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
    """Loads a folder (a client for each file), a play (a client for each speaker) or Python's standard library.

    Args:
        source: path of a folder or a play; None for the standard library.
        max_clients: number of clients at most, the first ones; None for all.

    Raises:
        ValueError: fewer than two texts of a useful length.
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
