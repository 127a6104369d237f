"""The table and the plot of the demo."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence

from sparseagg._internal.commands.demo.coordinator import RoundReport

# What to do where ``plot`` draws nothing.
NO_PLOT = "matplotlib is not installed; `pip install matplotlib` installs it"

# Title, width, the unit or explanation below the title, and how a ``RoundReport`` and its loss fill the cell.
_COLUMNS: tuple[tuple[str, int, str, Callable[[RoundReport, float], str]], ...] = (
    ("round", 5, "", lambda report, _: f"{report.number}"),
    ("clients", 7, "", lambda report, _: f"{report.clients}"),
    ("tuples in", 9, "", lambda report, _: f"{report.tuples}"),
    ("keys out", 8, "", lambda report, _: f"{report.keys}"),
    ("sparse", 8, "MB", lambda report, _: f"{report.bytes_sparse / 1e6:.1f}"),
    ("dense", 8, "MB", lambda report, _: f"{report.bytes_dense / 1e6:.1f}"),
    ("compute", 8, "ms, sum", lambda report, _: f"{report.compute_ms:.0f}"),
    ("upload", 8, "ms, sum", lambda report, _: f"{report.upload_ms:.0f}"),
    ("merge", 6, "ms", lambda report, _: f"{report.merge_ms:.0f}"),
    ("download", 8, "ms", lambda report, _: f"{report.download_ms:.0f}"),
    ("apply", 6, "ms", lambda report, _: f"{report.apply_ms:.0f}"),
    ("round", 7, "ms", lambda report, _: f"{report.wall_ms:.0f}"),
    ("held-out", 8, "loss", lambda _, loss: f"{loss:.4f}"),
)


def table_header() -> str:
    """Returns the head of the table: two lines and a rule."""
    titles = "  ".join(title.rjust(width) for title, width, *_ in _COLUMNS)
    units = "  ".join(unit.rjust(width) for _, width, unit, _ in _COLUMNS)
    return f"{titles}\n{units}\n{'─' * len(titles)}"


def table_row(report: RoundReport, loss: float) -> str:
    """Returns one round's line."""
    return "  ".join(cell(report, loss).rjust(width) for _, width, _, cell in _COLUMNS)


def plot(path: pathlib.Path, losses: Sequence[float], reports: Sequence[RoundReport]) -> bool:
    """Draws the loss, and the bytes sent against those of dense updates, as a PNG.

    Args:
        path: of the picture.
        losses: before the first round, and after each round.
        reports: of the rounds.

    Returns:
        Whether matplotlib is installed and has drawn the picture.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    loss_axes, bytes_axes = figure.subplots(1, 2)
    loss_axes.plot(range(len(losses)), losses, marker="o")
    loss_axes.set(title="Loss on held-out text", xlabel="round", ylabel="skip-gram loss per pair")
    loss_axes.set_ylim(bottom=0)
    numbers = [report.number for report in reports]
    for label, sizes in (
        ("dense updates would be", [report.bytes_dense for report in reports]),
        ("sparse updates sent", [report.bytes_sparse for report in reports]),
    ):
        bytes_axes.plot(numbers, [size / 1e6 for size in sizes], marker="o", label=label)
    bytes_axes.set(title="Upload of all clients", xlabel="round", ylabel="MB", yscale="log")
    bytes_axes.legend()
    for axes in (loss_axes, bytes_axes):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    return True
