"""What the pictures of the benchmarks share: colours, axes, and the command that draws one from a JSON file."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Callable
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OURS, PEER, OTHER = "#c1272d", "#1f4e79", "#8a8a8a"


def new(*shape: int, size: tuple[float, float], **more: Any) -> tuple[Any, Any]:
    """A figure, and its axes in ``shape`` rows and columns."""
    return plt.subplots(*shape, figsize=size, layout="constrained", **more)


def style(axes: Any, which: str = "major") -> None:
    """Lines of a grid at the ``which`` ticks of y, and no frame above and at the right."""
    axes.grid(axis="y", which=which, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Any, out: pathlib.Path) -> None:
    """Writes the PNG."""
    figure.savefig(out, dpi=160)


def main(draw: Callable[[dict[str, Any], pathlib.Path], None], description: str | None) -> int:
    """The command of a picture: reads the JSON file, draws; returns the exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("results", type=pathlib.Path, help="JSON of the benchmark")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="PNG to write")
    options = parser.parse_args()
    draw(json.loads(options.results.read_text(encoding="utf-8")), options.out)
    return 0
