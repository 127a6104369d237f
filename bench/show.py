"""Shows the JSON of a benchmark: prints its tables as Markdown, and draws its picture.

    show.py FILE.json … [--summary] [--png OUT.png]

Files of run.py and of gpu_bench: a second file, of gpu_peers.py, adds its lines; of gpu_bench --calls, a later run.
"""

from __future__ import annotations

import argparse
import json
import operator
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

OURS, PEER, OTHER = "#c1272d", "#1f4e79", "#8a8a8a"  # colours
STAGES = {"create": OTHER, "submit": OURS, "merge": PEER, "read": "#7fb069"}
CANONICAL = "sparseagg canonical"

File = dict[str, Any]


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table whose columns but the first are right-aligned; numbers have three digits, None is a dash."""

    def text(cell: Any) -> str:
        if isinstance(cell, float):
            return f"{cell:.3g}" if abs(cell) < 1000 else f"{round(cell)}"
        return "–" if cell is None else str(cell)

    lines = [header, ["---", *["---:"] * (len(header) - 1)], *[[text(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def measurements(file: File) -> list[dict[str, Any]]:
    """The results of the mode merge, with a row for each kind of memory, and the rate in M tuples/s."""
    tuples = {facts["name"]: facts["tuples"] for facts in file["workloads"]}
    return [
        {**row, **row[memory], "memory": memory, "rate": tuples[row["workload"]] / row[memory]["median_seconds"] / 1e6}
        for row in file["results"]
        for memory in ("fresh", "warm")
        if memory in row
    ]


def merge_tables(file: File, is_summary: bool) -> str:
    """A summary with the best peers, then the contestants of each workload, the fastest first."""
    rows = measurements(file)
    speeds = file["machine"]["memory_bytes_per_s"]
    summary, parts = [], []
    for facts in file["workloads"]:
        of_workload = [row for row in rows if row["workload"] == facts["name"]]
        for threads in sorted(int(text.split()[0]) for text in speeds):
            speed = speeds[f"{threads} threads"]
            floor = facts["bytes_in"] / speed["read"] + facts["bytes_out"] / speed["write"]
            ours = {
                (row["contestant"], row["memory"]): row
                for row in of_workload
                if row["threads"] == threads and row["output"] == "sparse"
            }
            mine = ours.get((CANONICAL, "fresh"))
            int64 = ours.get((f"{CANONICAL}, int64 keys", "fresh"))
            cells: list[Any] = [facts["name"], threads, mine and mine["rate"], int64 and int64["rate"]]
            for output in ("sparse", "dense"):
                for memory in ("fresh", "warm"):
                    peers = [
                        (row["rate"], row["contestant"])
                        for row in of_workload
                        if (row["output"], row["memory"]) == (output, memory) and row["threads"] <= threads
                        if "sparseagg" not in row["contestant"]
                    ]
                    own = ours.get((CANONICAL, memory))
                    rate, name = max(peers, default=(None, "–"))
                    cells += [f"{name} {rate:.3g}" if rate else None] if memory == "fresh" else []
                    cells.append(f"{own['rate'] / rate:.1f}×" if own and rate else None)
            summary.append([*cells, f"{floor / mine['median_seconds']:.0%}" if mine else None])
        parts.append(f"## {facts['name']}: {facts['description']}\n")
        lines = [
            [
                *(row[name] for name in ("contestant", "output", "inputs", "threads", "memory", "rate")),
                *(row["least_seconds"] * 1e3, row["most_seconds"] * 1e3, row["repetitions"]),
                row["peak_bytes"] and round(row["peak_bytes"] / 1e6),
            ]
            for row in sorted(of_workload, key=lambda row: -row["rate"])
        ]
        header = ["", "answer", "from", "threads", "memory", "M tuples/s", "least ms", "most ms", "runs", "peak MB"]
        parts.append(table(header, lines))
    header = ["workload", "threads", "ours", "int64 keys", "best peer, sparse", "ours is", "warm"]
    header += ["best peer, dense", "ours is", "warm", "of the floor"]
    return "\n".join([table(header, summary), *([] if is_summary else parts)])


def round_table(file: File) -> str:
    """The rounds, in seconds by stage."""
    columns = [name for name in file["rounds"][0] if name not in ("bytes", "clients")]
    return table(columns, [[row.get(name) for name in columns] for row in file["rounds"] if "absent" not in row])


# Columns of the table in docs/gpu.md: a heading, and what a row of the JSON says under "what" and "memory".
GPU_COLUMNS = {
    "resident": ("resident", "device"),
    "CUB": ("cub", "device"),
    "Thrust": ("thrust", "device"),
    "torch coalesce": ("torch coalesce", None),
    "CuPy": ("CuPy unique, add.at", None),
    "dense: torch index_add_": ("torch index_add_", None),
    "finish": ("finish", "pinned"),
    "end to end, pageable": ("end_to_end", "pageable"),
}


def gpu_table(file: File, peers: File | None) -> str:
    """What gpu_bench and gpu_peers.py measured on a GPU, in million tuples/s: the table of docs/gpu.md."""
    if not file["is_gpu"]:
        raise SystemExit("this was written without a GPU: there is nothing to show")
    if peers is not None and peers["clients_divided_by"] != file["clients_divided_by"]:
        raise SystemExit("the peers had fewer or more clients")
    widths = {row["workload"]: row["row_width"] for row in file["results"]}
    rows: dict[str, dict[tuple[str, str | None], float]] = {}
    for row in file["results"] + (peers["results"] if peers else []):
        width = widths[row["workload"]]
        name = row["workload"] + (f" (rows of {width})" if width > 1 else "")
        name += f", {row['variant']}" if row.get("variant", "plain") != "plain" else ""
        rows.setdefault(name, {})[row["what"], row.get("memory")] = row["tuples_per_s"] / 1e6
    cells = [
        [name, *(f"{row[key]:,.0f}" if key in row else None for key in GPU_COLUMNS.values())]
        for name, row in sorted(rows.items())
    ]
    limits = ", ".join(f"{name} {value / 1e9:.1f} GB/s" for name, value in file["limits"].items())
    return f"{file['date']}, {file['device']} ({file['cpu']}); {limits}\n\n{table(['workload', *GPU_COLUMNS], cells)}"


# Kinds of calls that calls_table shows, by their names in the JSON; kernels are all others.
CALL_COLUMNS = {
    "copies in": ["copy_in"],
    "within": ["copy_within"],
    "out": ["copy_out"],
    "fills": ["fill"],
    "allocations": ["allocate", "allocate_pinned"],
    "waits of the host": ["await"],
}


def calls_table(before: File, after: File | None) -> str:
    """Calls to the device of one run, or of one run and a later one, and the megabytes that copies moved."""

    def calls(row: dict[str, Any], names: Sequence[str]) -> str:
        counts = [row["calls"][name] for name in names if name in row["calls"]]
        megabytes = sum(size for _, size in counts) / 1e6
        text = str(sum(number for number, _ in counts))
        return f"{text} ({megabytes:.3g} MB)" if "copy" in names[0] and counts else text

    def cells(row: dict[str, Any]) -> list[str]:
        shown = {name for names in CALL_COLUMNS.values() for name in names} | {"record", "wait"}
        kernels = ", ".join(f"{name} {number}" for name, (number, _) in row["calls"].items() if name not in shown)
        return [kernels, *(calls(row, names) for names in CALL_COLUMNS.values())]

    key = operator.itemgetter("workload", "variant", "what", "memory")
    later = {key(row): cells(row) for row in (after or before)["results"]}
    rows = [
        [f"{row['workload']} {row['what']}, {row['memory']}"]
        + [old if old == new else f"{old} → {new}" for old, new in zip(cells(row), later[key(row)])]
        for row in before["results"]
        if key(row) in later
    ]
    commits = " → ".join(file["commit"] for file in (before, after) if file)
    return f"{commits}\n\n{table(['', 'kernels', *CALL_COLUMNS], rows)}"


def left_out(files: Sequence[File]) -> str:
    """Who is not in the tables, and why."""
    lines = [
        " ".join(str(value) for name, value in each.items() if name != "reason") + f": {each['reason']}"
        for file in files
        for each in [*file.get("absent", []), *file.get("left_out", [])]
    ]
    return "\n".join(["Absent or left out:\n", *(f"- {line}" for line in lines)]) if lines else ""


def new(*shape: int, size: tuple[float, float], **more: Any) -> tuple[Any, Any]:
    """A figure, and its axes in ``shape`` rows and columns."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(*shape, figsize=size, layout="constrained", **more)


def style(axes: Any, which: str = "major") -> None:
    """Lines of a grid at the ``which`` ticks of y, and no frame above and at the right."""
    axes.grid(axis="y", which=which, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw_merge(file: File) -> Any:
    """A column of points for each workload: rates with fresh memory; a peer by its best number of threads."""
    names = [facts["name"] for facts in file["workloads"]]
    figure, axes = new(size=(1 + 1.4 * len(names), 5.6))
    rows = [row for row in measurements(file) if row["memory"] == "fresh"]
    for kind, offset, colour in (("dense", 0.24, OTHER), ("sparse", -0.24, PEER), ("ours", 0.0, OURS)):
        for x, name in enumerate(names):
            best: dict[str, float] = {}
            for row in (row for row in rows if row["workload"] == name):
                is_ours = row["contestant"] == CANONICAL and row["output"] == "sparse"
                if is_ours if kind == "ours" else row["output"] == kind and "sparseagg" not in row["contestant"]:
                    label = f"{row['threads']} threads" if is_ours else row["contestant"]
                    best[label] = max(best.get(label, 0.0), row["rate"])
            marks = {"s": 70, "marker": "D"} if kind == "ours" else {"s": 26}
            label = None if x else "sparseagg, canonical" if kind == "ours" else f"peers that give a {kind} answer"
            axes.scatter([x + offset] * len(best), best.values(), color=colour, label=label, zorder=3, **marks)
            if best and kind != "ours":
                fastest = max(best, key=lambda each: best[each])
                above = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center"}
                axes.annotate(fastest, (x + offset, best[fastest]), fontsize=6, color=colour, **above)
    axes.set_yscale("log")
    labels = [facts["description"].replace(": ", "\n").replace(", ", "\n") for facts in file["workloads"]]
    axes.set_xticks(range(len(names)), labels)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_ylabel("million tuples a second")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(f"{file['machine']['cpu']}, fresh memory, {file['date']}", fontsize=9)
    style(axes, "both")
    return figure


def draw_rounds(file: File) -> Any:
    """A bar for each contestant and case, made of the stages."""
    lines = [line for line in file["rounds"] if "absent" not in line]
    cases = list(dict.fromkeys(line["case"] for line in lines))
    names = list(dict.fromkeys(line["name"] for line in lines))[::-1]
    figure, every_axes = new(1, len(cases), size=(3.0 * len(cases), 2.8), squeeze=False, sharey=True)
    for axes, case in zip(every_axes[0], cases):
        of_case = {line["name"]: line for line in lines if line["case"] == case}
        ends = [0.0] * len(names)
        for stage, colour in STAGES.items():
            seconds = [of_case[name][stage] if name in of_case else 0.0 for name in names]
            axes.barh(names, seconds, left=ends, color=colour, label=stage)
            ends = [end + more for end, more in zip(ends, seconds)]
        for row, name in enumerate(names):
            text = f" {of_case[name]['total']:.3g}" if name in of_case else " left out"
            axes.text(ends[row], row, text, va="center", fontsize=8)
        axes.set(title=case, xlabel="seconds of a round", xlim=(0, 1.2 * max(ends)))
        style(axes)
    every_axes[0][-1].legend(frameon=False, fontsize=8)
    return figure


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=pathlib.Path, nargs="+", help="JSON of a benchmark")
    parser.add_argument("--summary", action="store_true", help="without the contestants of each workload")
    parser.add_argument("--png", type=pathlib.Path, help="picture to write")
    options = parser.parse_args()
    files = [json.loads(path.read_text(encoding="utf-8")) for path in options.files]
    first = files[0]
    if "workloads" in first:
        text, draw = merge_tables(first, options.summary), draw_merge
    elif "is_gpu" in first:
        show = gpu_table if "limits" in first else calls_table
        text, draw = show(first, files[1] if len(files) > 1 else None), None
    else:
        text, draw = round_table(first), draw_rounds
    print(text)
    print(left_out(files))
    if options.png is not None and draw is not None:
        draw(first).savefig(options.png, dpi=160)
    return 0


if __name__ == "__main__":
    sys.exit(main())
