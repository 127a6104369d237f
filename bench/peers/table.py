"""Prints the result of comparison.py as Markdown: a summary, then every contestant of every workload."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

OURS = "sparseagg canonical"
OURS_IN_CPP = "sparseagg in C++ canonical"
# The same with keys as NumPy and torch make them; those of OURS have the engine's type.
OURS_INT64 = "sparseagg canonical, int64 keys"
# The summary's rows: a mode of ours by name, and the class of peers that it is compared with.
MODES = ("canonical", "canonical+counts", "fixed_point")


def measurements(file: dict[str, Any]) -> list[dict[str, Any]]:
    """The results with a row for each kind of memory, and the rate."""
    tuples = {facts["name"]: facts["tuples"] for facts in file["workloads"]}
    return [
        {
            **row,
            **row[memory],
            "memory": memory,
            "tuples_per_s": tuples[row["workload"]] / row[memory]["median_seconds"],
        }
        for row in file["results"]
        for memory in ("fresh", "warm")
        if memory in row
    ]


class Results:
    """The results of one file, to be asked."""

    def __init__(self, file: dict[str, Any]) -> None:
        self.file = file
        self.workloads = {facts["name"]: facts for facts in file["workloads"]}
        self.rows = measurements(file)

    def find(self, workload: str, contestant: str, output: str, threads: int, memory: str = "fresh") -> Any:
        """One result, or None."""
        wanted = (workload, contestant, output, threads, memory)
        keys = ("workload", "contestant", "output", "threads", "memory")
        return next((row for row in self.rows if tuple(row[key] for key in keys) == wanted), None)

    def best_peer(
        self, workload: str, output: str, threads: int, separate_only: bool = False, memory: str = "fresh"
    ) -> Any:
        """The fastest result that is not ours and uses no more threads, or None."""
        rows = [
            row
            for row in self.rows
            if row["workload"] == workload
            and row["output"] == output
            and (row["inputs"] == "separate" or not separate_only)
            and row["threads"] <= threads
            and row["memory"] == memory
            and not row["contestant"].startswith("sparseagg")
        ]
        return max(rows, key=lambda row: row["tuples_per_s"], default=None)

    def threads(self) -> list[int]:
        """Numbers of threads that there are limits of memory for, which are those that we run with."""
        return sorted(int(text.split()[0]) for text in self.file["machine"]["memory_bytes_per_s"])

    def floor_seconds(self, workload: str, threads: int) -> float:
        """What reading all input and writing all output takes at the speeds measured in the run."""
        facts, speeds = self.workloads[workload], self.file["machine"]["memory_bytes_per_s"][f"{threads} threads"]
        return float(facts["bytes_in"] / speeds["read"] + facts["bytes_out"] / speeds["write"])


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose columns but the first are right-aligned."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def rate(row: Any) -> str:
    """M tuples/s with about three digits."""
    if row is None:
        return "–"
    value = row["tuples_per_s"] / 1e6
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio(a: Any, b: Any) -> str:
    """How many times as fast as b is a."""
    return "–" if a is None or b is None else f"{a['tuples_per_s'] / b['tuples_per_s']:.1f}×"


def peer(row: Any) -> str:
    """A peer's name and rate."""
    return "–" if row is None else f"{row['contestant']} {rate(row)}"


def summary(results: Results) -> str:
    """One row a workload and number of threads: ours, the best peers, the floor, and Python against C++."""
    header = [
        "workload",
        "threads",
        "ours",
        "int64 keys",
        "+ counts",
        "fixed point",
        "best peer, sparse",
        "ours is",
        "warm",
        "best peer, dense",
        "ours is",
        "warm",
        "of those, from separate arrays",
        "ours is",
        "of the floor",
        "Python / C++",
    ]
    rows = []
    for name in results.workloads:
        for threads in results.threads():
            ours = [results.find(name, f"sparseagg {mode}", "sparse", threads) for mode in MODES]
            sparse = results.best_peer(name, "sparse", threads)
            dense = results.best_peer(name, "dense", threads)
            separate = results.best_peer(name, "dense", threads, separate_only=True)
            warm = results.find(name, OURS, "sparse", threads, "warm")
            # The fastest with warm memory may be another peer.
            warm_ratios = {
                output: ratio(warm, results.best_peer(name, output, threads, memory="warm"))
                for output in ("sparse", "dense")
            }
            native = results.find(name, OURS_IN_CPP, "sparse", threads)
            floor = results.floor_seconds(name, threads)
            rows.append(
                [
                    name,
                    str(threads),
                    rate(ours[0]),
                    rate(results.find(name, OURS_INT64, "sparse", threads)),
                    *[rate(row) for row in ours[1:]],
                    peer(sparse),
                    ratio(ours[0], sparse),
                    warm_ratios["sparse"],
                    peer(dense),
                    ratio(ours[0], dense),
                    warm_ratios["dense"],
                    peer(separate),
                    ratio(ours[0], separate),
                    "–" if ours[0] is None else f"{floor / ours[0]['median_seconds']:.0%}",
                    "–" if not (ours[0] and native) else f"{ours[0]['tuples_per_s'] / native['tuples_per_s']:.0%}",
                ]
            )
    return table(header, rows)


def everything(results: Results, name: str) -> str:
    """All contestants of one workload, fastest first."""
    header = ["", "answer", "from", "threads", "fresh", "warm"]
    header += ["least–most ms (fresh)", "runs", "of the floor", "peak MB"]
    fresh = [row for row in results.rows if row["workload"] == name and row["memory"] == "fresh"]
    rows = []
    for row in sorted(fresh, key=lambda row: -row["tuples_per_s"]):
        warm = results.find(name, row["contestant"], row["output"], row["threads"], "warm")
        threads = min(results.threads(), key=lambda count: abs(count - row["threads"]))
        rows.append(
            [
                row["contestant"],
                row["output"],
                row["inputs"],
                str(row["threads"]),
                rate(row),
                rate(warm),
                f"{row['least_seconds'] * 1e3:.1f}–{row['most_seconds'] * 1e3:.1f}",
                f"{row['repetitions']} + {warm['repetitions'] if warm else 0}",
                f"{results.floor_seconds(name, threads) / row['median_seconds']:.0%}",
                "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.0f}",
            ]
        )
    return table(header, rows)


def markdown(file: dict[str, Any]) -> str:
    """The whole page."""
    results = Results(file)
    machine = file["machine"]
    parts = [
        f"# Comparison of {file['date']}\n",
        f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}; {file['seconds']} s in all; seed "
        f"{file['seed']}"
        + (f"; clients divided by {file['divide_clients']}" if file["divide_clients"] != 1 else "")
        + ". Rates in million tuples a second, medians. How to read this: docs/performance.md.\n",
        table(
            ["memory, GB/s", "read", "write", "memcpy"],
            [
                [threads, *[f"{speeds[kind] / 1e9:.1f}" for kind in ("read", "write", "memcpy")]]
                for threads, speeds in machine["memory_bytes_per_s"].items()
            ],
        ),
        "## Summary\n",
        summary(results),
    ]
    for name, facts in results.workloads.items():
        parts += [
            f"## {name}: {facts['description']}\n",
            f"{facts['tuples'] / 1e6:.2f} M tuples of {facts['clients']} clients become "
            f"{facts['rows_out'] / 1e6:.2f} M rows; {facts['bytes_in'] / 1e6:.0f} MB in, "
            f"{facts['bytes_out'] / 1e6:.0f} MB out.\n",
            everything(results, name),
        ]
        out = [f"- {left['contestant']}: {left['reason']}" for left in file["left_out"] if left["workload"] == name]
        parts += ["Left out:\n", "\n".join(out) + "\n"] if out else []
    versions = ", ".join(f"{library} {version}" for library, version in sorted(file["versions"].items()))
    parts.append(f"## Versions\n\n{versions}\n")
    if file["absent"]:
        parts.append("Absent:\n")
        parts.append("\n".join(f"- {absent['library']}: {absent['reason']}" for absent in file["absent"]) + "\n")
    return "\n".join(parts)


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=pathlib.Path, help="JSON of comparison.py")
    parser.add_argument("--summary", action="store_true", help="without the contestants of each workload")
    options = parser.parse_args()
    file = json.loads(options.results.read_text(encoding="utf-8"))
    print(summary(Results(file)) if options.summary else markdown(file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
