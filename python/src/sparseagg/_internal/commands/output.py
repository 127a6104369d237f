"""What commands print."""

from __future__ import annotations

import sys
from typing import TextIO

from sparseagg._internal.base.plain_text import plain

__all__ = ["put"]


def put(*lines: str, to: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Prints lines. Names and texts in them, of servers, clients and files, reach the terminal as ``plain`` text only.

    Args:
        lines: without their ends.
        to: where to print; None: standard output.
        end: of each line.
        flush: whether readers have the lines when this returns.
    """
    stream = sys.stdout if to is None else to
    for line in lines:
        print(plain(line), file=stream, end=end, flush=flush)
