"""Tables of ``sparseagg top`` that fit the terminal: a narrow one has fewer columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

__all__ = ["Column", "fitted_table"]

_MIN_NAME_WIDTH = 16  # of the first column, before other columns are left out


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: in the first line.
        rank: columns of the highest rank are left out first; those of rank 0 stay.
        is_right: whether the cells are aligned to the right.
    """

    title: str
    rank: int = 0
    is_right: bool = True


def fitted_table(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int, style: str) -> Table:
    """Returns a table of at most ``width`` characters, one line for a row.

    The first column has names, which lose their middle where they do not fit: ends tell them apart.
    """
    widths = [
        max([len(column.title), *(row[i].cell_len for row in rows)]) + 1  # and a space
        for i, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))

    def room() -> int:
        """Returns the width that is left for the names."""
        return width - sum(widths[i] for i in kept[1:])

    while room() < min(widths[0] - 1, _MIN_NAME_WIDTH):
        last = max(kept[1:], key=lambda i: columns[i].rank)
        if columns[last].rank == 0:
            break
        kept.remove(last)
    name_width = max(len(columns[0].title), min(widths[0] - 1, room()))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), style=style, header_style="bold")
    for i in kept:
        is_right = columns[i].is_right and i > 0
        table.add_column(
            columns[i].title,
            no_wrap=True,
            justify="right" if is_right else "left",
            width=widths[i] - 1 if i > 0 else name_width,
        )
    for row in rows:
        table.add_row(_cut(row[0], name_width), *(row[i] for i in kept[1:]))
    return table


def _cut(name: Text, width: int) -> Text:
    if name.cell_len <= width:
        return name
    begin = (width - 1) // 2
    end = width - 1 - begin
    return Text(f"{name.plain[:begin]}…{name.plain[len(name.plain) - end :]}")
