"""Draws the result of service.py: our share of the wire, tails, latencies of small rounds, memory."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import picture
from picture import OTHER as SINK
from picture import OURS
from picture import PEER as PARSED


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' if number > 1 else ''}"


def draw_share(axes: Any, runs: list[dict[str, Any]]) -> None:
    """Bars of bytes a second, by number of streams."""
    bars = (
        ("bare gRPC", SINK, lambda run: run["sinks"]["raw"]["bytes_per_s"]),
        ("gRPC, parsed", PARSED, lambda run: run["sinks"]["typed"]["bytes_per_s"]),
        ("sparseagg", OURS, lambda run: run["bytes_per_s"]),
    )
    for i, (label, colour, rate) in enumerate(bars):
        places = [x + (i - 1) * 0.27 for x in range(len(runs))]
        axes.bar(places, [rate(run) / 1e6 for run in runs], width=0.25, color=colour, label=label)
    for x, run in enumerate(runs):
        share = run["sinks"]["raw"]["share"]
        axes.annotate(f"{share:.0%}", (x + 0.27, run["bytes_per_s"] / 1e6), ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(runs)), [_count(run["streams"], "stream") for run in runs])
    axes.set_ylabel("MB/s")
    axes.set_title("ingest, and its share of bare gRPC", fontsize=9)
    axes.margins(y=0.3)  # for the legend
    axes.legend(frameon=False, fontsize=7, loc="upper left")


def draw_packed(axes: Any, runs: list[dict[str, Any]]) -> None:
    """Bars of tuples a second, by number of streams."""
    bars = (
        ("plain", SINK, lambda run: run["plain"]),
        ("packed keys, float16", OURS, lambda run: run),
    )
    for i, (label, colour, part) in enumerate(bars):
        rates = [part(run)["tuples_per_s"] / 1e6 for run in runs]
        label = f"{label}: {part(runs[0])['bytes_per_tuple']:.1f} bytes a tuple"
        axes.bar([x + (i - 0.5) * 0.4 for x in range(len(runs))], rates, width=0.38, color=colour, label=label)
    for x, run in enumerate(runs):
        times = run["plain"]["tuples_per_s_against_it"]
        axes.annotate(f"{times:.1f}×", (x + 0.2, run["tuples_per_s"] / 1e6), ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(runs)), [_count(run["streams"], "stream") for run in runs])
    axes.set_ylabel("M tuples/s")
    axes.set_title("ingest in fewer bytes", fontsize=9)
    axes.margins(y=0.3)  # for the legend
    axes.legend(frameon=False, fontsize=7, loc="upper left")


def draw_client_python(axes: Any, runs: list[dict[str, Any]]) -> None:
    """Bars of bytes a second with their spread, by number of threads."""
    names = [_count(run["threads"], "thread") for run in runs]
    rates = [run["bytes_per_s"] / 1e6 for run in runs]
    spread = [
        [(run["bytes_per_s"] - run["slowest_bytes_per_s"]) / 1e6 for run in runs],
        [(run["fastest_bytes_per_s"] - run["bytes_per_s"]) / 1e6 for run in runs],
    ]
    axes.bar(names, rates, yerr=spread, color=OURS, width=0.5, ecolor=SINK)
    axes.axhline(800, color=SINK, linewidth=1)
    axes.set_ylabel("MB/s")
    axes.set_title("one Python process", fontsize=9)


def draw_tails(axes: Any, runs: list[dict[str, Any]]) -> None:
    """Bars of the share of time after the close, by network."""
    workloads = list(dict.fromkeys(run["workload"] for run in runs))
    networks = list(dict.fromkeys(run["gigabits_per_s"] for run in runs))
    width = 0.8 / len(networks)
    for i, network in enumerate(networks):
        of_network = [run for run in runs if run["gigabits_per_s"] == network]
        axes.bar(
            [workloads.index(run["workload"]) + (i - (len(networks) - 1) / 2) * width for run in of_network],
            [100 * run["tail_share"] for run in of_network],
            color=OURS,
            alpha=1 - 0.35 * i,
            width=width,
            label="loopback" if network is None else f"{network} Gbit/s",
        )
    axes.set_xticks(range(len(workloads)), workloads)
    axes.legend(fontsize=7)
    axes.axhline(10, color=SINK, linewidth=1)
    axes.set_ylabel("% of the ingest time")
    axes.set_title("from the close to the result", fontsize=9)


def draw_latency(axes: Any, run: dict[str, Any]) -> None:
    """Percentiles of whole small rounds."""
    names = ("p50", "p90", "p99", "max")
    axes.bar(names, [run["latency"][f"{name}_ms"] for name in names], color=OURS, width=0.5)
    axes.set_ylabel("ms")
    axes.set_title(f"{run['clients']} clients × {run['tuples'] // run['clients']} tuples, create to result", fontsize=9)


def draw_memory(axes: Any, growth: dict[str, Any]) -> None:
    """A line over rounds."""
    resident = growth["resident_bytes"]
    rounds = [growth["rounds_per_sample"] * (i + 1) for i in range(len(resident))]
    axes.plot(rounds, [size / 1e6 for size in resident], color=OURS, marker="o", markersize=3)
    axes.set_ylim(bottom=0, top=1.2 * max(resident) / 1e6)
    axes.set_ylabel("MB resident")
    axes.set_title("the server's memory over rounds", fontsize=9)


def draw_soak(axes: Any, run: dict[str, Any]) -> None:
    """A line over time, under the limit."""
    seconds, resident = zip(*run["resident"])
    axes.plot(seconds, [size / 1e6 for size in resident], color=OURS, linewidth=1)
    axes.axhline(run["limit_bytes"] / 1e6, color=SINK, linewidth=1)
    axes.annotate("--memory-limit", (0, run["limit_bytes"] / 1e6), va="bottom", fontsize=7, color=SINK)
    axes.set_ylim(bottom=0, top=1.2 * run["limit_bytes"] / 1e6)
    axes.set_xlabel("s")
    axes.set_ylabel("MB resident")
    axes.set_title(f"{run['clients_at_once']} connections, three quarters of them bad", fontsize=9)


PARTS = (
    ("share_of_sink", draw_share),
    ("packed", draw_packed),
    ("client_python", draw_client_python),
    ("tails", draw_tails),
    ("small_rounds", draw_latency),
    ("memory_growth", draw_memory),
    ("soak", draw_soak),
)


def draw(file: dict[str, Any], out: pathlib.Path) -> None:
    """Writes the picture of what the file has."""
    parts = [(name, part) for name, part in PARTS if name in file]
    columns = min(2, len(parts))
    rows = -(-len(parts) // columns)
    figure, grid = picture.new(rows, columns, size=(10, 3.2 * rows), squeeze=False)
    for axes, (name, part) in zip(grid.flat, parts):
        part(axes, file[name])
        picture.style(axes)
    for axes in list(grid.flat)[len(parts) :]:
        axes.set_visible(False)
    figure.suptitle(f"{file['cores']} cores, {file['date']}{', a quick look' if file['quick'] else ''}", fontsize=9)
    picture.save(figure, out)


if __name__ == "__main__":
    sys.exit(picture.main(draw, __doc__))
