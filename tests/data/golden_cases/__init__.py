"""The cases of the golden suite."""

from __future__ import annotations

from golden_cases.case import Case
from golden_cases.numbers import binned, numbers
from golden_cases.refusals import refusals
from golden_cases.sums import keys, layouts, ops
from golden_cases.wire import packed, packed_refusals

__all__ = ["Case", "cases"]


def cases() -> list[Case]:
    """All cases, in the order of the file."""
    found = [*ops(), *keys(), *layouts(), *numbers(), *binned(), *packed(), *refusals(), *packed_refusals()]
    names = [case.name for case in found]
    assert len(set(names)) == len(names), "names are unique"
    return found
