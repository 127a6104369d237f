"""Which of the rounds ``sparseagg top`` shows: the filter, and how far a person has scrolled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

__all__ = ["Window"]


@dataclasses.dataclass
class Window:
    """The part of the rounds on the screen. Not thread-safe.

    ``top`` owns it, gives it every key, and the view tells it with ``fit`` how many rounds there are.

    Attributes:
        filter: words, each of which must occur in the id or the state of a round; upper and lower case are the same.
        is_typing: whether keys go into the filter.
        first: number of rounds above the screen.
        page: number of rounds on the screen.
    """

    filter: str = ""
    is_typing: bool = False
    first: int = 0
    page: int = 1

    def press(self, key: str) -> bool:
        """Obeys a key, as ``split_keys`` names it; returns whether the key ends the command."""
        if self.is_typing:
            self._type(key)
            return False
        if key == "/":
            self.is_typing = True
        elif key == "escape":
            self.filter, self.first = "", 0
        else:
            steps = {
                **dict.fromkeys(("up", "k"), -1),
                **dict.fromkeys(("down", "j"), 1),
                "page up": -self.page,
                **dict.fromkeys(("page down", " "), self.page),
                **dict.fromkeys(("home", "g"), -self.first),
            }
            self.first += steps.get(key, 0)
            if key in ("end", "G"):
                self.first = 1 << 62  # fit() brings it back
        return key == "q"

    def _type(self, key: str) -> None:
        if key == "enter":
            self.is_typing = False
        elif key == "escape":
            self.is_typing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1:
            self.filter += key
        self.first = 0

    def fit(self, num_rounds: int, page: int) -> None:
        """Keeps the screen full: with ``num_rounds`` that pass the filter, and lines for ``page`` of them."""
        self.page = max(1, page)
        self.first = max(0, min(self.first, num_rounds - self.page))

    def passes(self, *texts: str) -> bool:
        """Returns whether each word of the filter occurs in one of ``texts``."""
        found = " ".join(texts).lower()
        return all(word in found for word in self._words())

    def _words(self) -> Iterable[str]:
        return self.filter.lower().split()
