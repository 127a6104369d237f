"""Text for people: without control characters, as tables of notebooks, and numbers with units."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence

_MOST_SHOWN = 5


def html_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table in HTML; whatever text the cells have is shown as it is. Columns of numbers are on the right.

    A column is of numbers if its first cell is one; behind the first column, which names the rows, also a text of one.
    """
    rows = list(rows)
    sides = _sides(heads, rows)
    made = [
        "<tr>"
        + "".join(
            f'<{kind} style="text-align: {side}">{html.escape(plain(str(cell)))}</{kind}>'
            for side, cell in zip(sides, cells)
        )
        + "</tr>"
        for kind, cells in [("th", heads), *(("td", row) for row in rows)]
    ]
    return "<table>" + "".join(made) + "</table>"


def plain_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Returns the lines of a table in plain text, with columns of numbers on the right as in ``html_table``."""
    rows = list(rows)
    sides = _sides(heads, rows)
    lines = [[plain(str(cell)) for cell in row] for row in ([head.upper() for head in heads], *rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return [
        "  ".join(
            cell.ljust(width) if side == "left" else cell.rjust(width) for cell, width, side in zip(line, widths, sides)
        ).rstrip()
        for line in lines
    ]


def _sides(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    return [
        "left" if isinstance(cell, str) and (i == 0 or not re.fullmatch(r"-?[\d.,]+ ?%?", cell)) else "right"
        for i, cell in enumerate((rows or [heads])[0])
    ]


def plain(text: str, keep: str = "") -> str:
    """Returns ``text`` with a space in place of each character that a terminal would obey or would not show, but
    ``keep``.

    These are control characters, among them the ends of lines and the escapes that clear the screen or set its title,
    and marks that reverse the direction of writing. A tensor's name, a reason and an error's text come from a server,
    or from another client by way of it. What a file's name has in place of bytes that are not UTF-8 becomes "\\udcff".
    """
    if text.isprintable():
        return text
    shown = "".join(each if each.isprintable() or each in keep or _is_surrogate(each) else " " for each in text)
    return shown.encode(errors="backslashreplace").decode()


def _is_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def decimal(number: float, unit: str = "") -> str:
    """Returns a number in three digits or so, with a decimal prefix: "12.3 M", or "12.3 MB" for the unit "B"."""
    for prefix in ("", "k", "M", "G", "T"):
        if round(number) < 1000 or prefix == "T":
            break
        number /= 1000
    digits = f"{number:.0f}" if not prefix or number >= 100 else f"{number:.1f}"
    return f"{digits} {prefix}{unit}".rstrip()


def binary_size(number: float) -> str:
    """Returns a size of memory in bytes, as flags write it: "1.5 GiB"."""
    for unit in ("MiB", "GiB", "TiB"):
        number /= 1024 if unit != "MiB" else 1 << 20
        if number < 1024:
            break
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.1f} {unit}"


def largest_of(sizes: Mapping[str, int]) -> str:
    """Returns the sum of bytes by name, and the largest of them: "1,200 bytes ('w' 1,000, 'b' 200)"."""
    shown = sorted(sizes, key=lambda name: -sizes[name])[:_MOST_SHOWN]
    text = ", ".join(f"{name!r} {sizes[name]:,}" for name in shown) + (", …" if len(sizes) > len(shown) else "")
    return f"{sum(sizes.values()):,} bytes ({text or 'none'})"
