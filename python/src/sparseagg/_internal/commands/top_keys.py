"""The keys that a person presses while ``sparseagg top`` runs."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator

__all__ = ["keys", "split_keys"]

_WAIT_S = 0.1  # for a key
_REST_WAIT_S = 0.05  # for the rest of an escape sequence
_READ_BYTES = 1024

# An escape sequence of a terminal, or one character.
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])|[\s\S]")
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-9;]*|O)?\Z")
_NAMES = {
    "\x1b": "escape",
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\r": "enter",
    "\n": "enter",
    "\x08": "backspace",
    "\x7f": "backspace",
}


def split_keys(text: str) -> list[str]:
    """Returns the keys of what a terminal has sent: a character, or a name such as "page up".

    Escape sequences of other keys are left out.
    """
    keys = []
    for found in _KEY.findall(text):
        name = _NAMES.get(found, found)
        if name.isprintable():
            keys.append(name)
    return keys


@contextlib.contextmanager
def keys() -> Iterator[Callable[[], list[str]]]:
    """Yields a function that returns the next keys, or [] after a moment without one. Then restores the terminal.

    Without a terminal as standard input there are no keys. If the terminal goes away, the key is "q".
    """
    if not sys.stdin.isatty():
        yield _no_keys
        return
    import termios  # where there are such terminals
    import tty

    terminal = sys.stdin.fileno()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def is_ready(wait_s: float) -> bool:
        return bool(select.select([terminal], [], [], wait_s)[0])

    def next_keys() -> list[str]:
        if not is_ready(_WAIT_S):
            return []
        data = os.read(terminal, _READ_BYTES)
        if not data:
            return ["q"]
        while _UNFINISHED.search(data) and is_ready(_REST_WAIT_S):
            rest = os.read(terminal, _READ_BYTES)
            if not rest:
                break
            data += rest
        return split_keys(decoder.decode(data))

    modes = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield next_keys
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, modes)


def _no_keys() -> list[str]:
    time.sleep(_WAIT_S)
    return []
