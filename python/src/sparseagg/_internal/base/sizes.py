"""Numbers as people read them. The same units everywhere: data in kB, MB and GB; memory in MiB and GiB, as flags do."""

from __future__ import annotations

__all__ = ["binary_size", "decimal"]


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
