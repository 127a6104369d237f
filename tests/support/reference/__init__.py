"""What a round's result is, computed the slow and obvious way.

This is the numerics contract (docs/numerics.md) in plain Python, one number at a time, to hold servers to: it shares no
code with any engine. A Python float is an IEEE double, ``+``, ``*`` and ``/`` round once, and integers are exact, so
that every rule reads here as it does there. Not for use where speed matters.
"""

from reference.checks import check_spec, check_update
from reference.clip import Clipped, clip
from reference.differences import differences
from reference.merge import MergedTensor, merge
from reference.numbers import encode_values, round_to_dtype
from reference.update import Update, multiplied, with_factor

__all__ = [
    "Clipped",
    "MergedTensor",
    "Update",
    "check_spec",
    "check_update",
    "clip",
    "differences",
    "encode_values",
    "merge",
    "multiplied",
    "round_to_dtype",
    "with_factor",
]
