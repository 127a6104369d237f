"""Text of others, made fit for a terminal, a notebook or a log."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

__all__ = ["html_table", "plain"]


def html_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table in HTML; whatever text the cells have is shown as it is."""
    lines = [("th", heads), *(("td", row) for row in rows)]
    made = [
        "<tr>" + "".join(f"<{kind}>{html.escape(plain(str(cell)))}</{kind}>" for cell in cells) + "</tr>"
        for kind, cells in lines
    ]
    return "<table>" + "".join(made) + "</table>"


def plain(text: str, keep: str = "") -> str:
    """Returns ``text`` with a space in place of each character that a terminal would obey, or would not show.

    These are control characters, among them the ends of lines and the escapes that clear the screen or set its title,
    and marks that reverse the direction of writing. A tensor's name, a reason and an error's text come from a server,
    or from another client by way of it. What a file's name has in place of bytes that are not UTF-8 becomes "\\udcff".

    Args:
        text: any text.
        keep: such characters that stay, as "\\n" where the text has lines of its own.
    """
    if text.isprintable():
        return text
    shown = "".join(each if each.isprintable() or each in keep or _is_surrogate(each) else " " for each in text)
    return shown.encode(errors="backslashreplace").decode()


def _is_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"
