"""Pictures of results. matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparseagg._internal.base.plain_text import plain

if TYPE_CHECKING:
    from sparseagg._internal.results.result import TensorResult

__all__ = ["draw"]

_PARTS = 64


def draw(tensors: Sequence[TensorResult]) -> Any:
    """Returns a figure with the places and the counts of the rows of each tensor. Each must be sparse and have rows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.6 * len(tensors)), layout="constrained")
    FigureCanvasAgg(figure)
    for tensor, (places, counts) in zip(tensors, figure.subplots(len(tensors), 2, squeeze=False)):
        end = tensor.num_rows or 1 << 64
        edges = np.linspace(0.0, float(end), _PARTS + 1)
        rows, _ = np.histogram(tensor.keys.astype(np.float64), edges)
        places.stairs(rows / (edges[1] - edges[0]), edges, fill=True)
        places.set(title=plain(tensor.name), xlabel="key", ylabel="share of the rows")
        if tensor.counts is None:
            counts.set_axis_off()
            counts.text(0, 0.5, "no counts: the round was made without return_counts")
            continue
        counts.hist(tensor.counts, bins=min(_PARTS, int(tensor.counts.max())))
        counts.set(title=f"{len(tensor):,} rows", xlabel="clients of a row", ylabel="rows", yscale="log")
    return figure
