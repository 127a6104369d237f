"""Tables of what gpu_bench and peers/gpu_peers.py wrote: per workload ours, the peers and the limits.

Figures of a run without a GPU are refused: on the host gpu_bench tests itself and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

OURS = ("resident", "kernels")
NATIVE_PEERS = ("thrust", "cub")
COLUMNS = (
    *("resident", "kernels", "of copy", "finish", "from pinned", "of link", "from pageable"),
    *("best peer", "ours / peer", "peak MB"),
)

File = dict[str, Any]


def find(gpu: File, workload: str, variant: str, what: str, memory: str | None = None) -> File | None:
    """The one measurement of that kind; None if it was not made."""
    for row in gpu["results"]:
        if (row["workload"], row["variant"], row["what"]) == (workload, variant, what) and memory in (
            None,
            row["memory"],
        ):
            return row
    return None


def cases(gpu: File) -> list[tuple[str, str]]:
    """Workloads and variants, in the order of the file."""
    return list(dict.fromkeys((row["workload"], row["variant"]) for row in gpu["results"]))


def peer_rates(gpu: File, peers: File | None, workload: str, variant: str) -> list[tuple[float, str]]:
    """Rates and names of all peers on a case, the fastest first. Those of Python ran the plain workloads alone."""
    found = []
    for what in NATIVE_PEERS:
        if row := find(gpu, workload, variant, what):
            found.append((row["tuples_per_s"], what))
    if peers is not None and variant == "plain" and peers["clients_divided_by"] == gpu["clients_divided_by"]:
        found += [(row["tuples_per_s"], row["what"]) for row in peers["results"] if row["workload"] == workload]
    return sorted(found, reverse=True)


def rate(row: File | None) -> str:
    """In M tuples/s."""
    return "–" if row is None else f"{row['tuples_per_s'] / 1e6:,.0f}"


def share(row: File | None) -> str:
    """Of the limit that the row is held to."""
    return "–" if row is None else f"{row['share_of_limit']:.0%}"


def markdown(gpu: File, peers: File | None) -> str:
    """The tables."""

    def gigabytes(limit: str) -> str:
        return f"{gpu['limits'][limit + '_bytes_per_s'] / 1e9:,.1f} GB/s"

    lines = [
        f"Measured {gpu['date']} on {gpu['device']} ({gpu['cpu']}).",
        "",
        f"Copies in the same run: {gigabytes('copy')} read and written on the device; from the host "
        f"{gigabytes('pinned_in')} pinned, {gigabytes('pageable_in')} pageable; to it {gigabytes('pinned_out')}.",
    ]
    if gpu["clients_divided_by"] != 1:
        lines += ["", f"A quick look: a {gpu['clients_divided_by']}th of the clients."]
    lines += [
        "",
        "Million (key, row) tuples a second, medians. *Of copy* is bytes in and out against the copies on the device, "
        "*of link* bytes in against pinned copies from the host. *Ours / peer* takes `resident`, the slower of ours.",
        "",
        "| " + " | ".join(("", "variant", *COLUMNS)) + " |",
        "|---|---|" + "---|" * len(COLUMNS),
    ]
    for workload, variant in cases(gpu):
        resident, kernels = (find(gpu, workload, variant, what) for what in OURS)
        finish = find(gpu, workload, variant, "finish")
        pinned = find(gpu, workload, variant, "end_to_end", "pinned")
        pageable = find(gpu, workload, variant, "end_to_end", "pageable")
        best = (peer_rates(gpu, peers, workload, variant) or [None])[0]
        cells = [
            workload,
            variant,
            rate(resident),
            rate(kernels),
            share(kernels),
            rate(finish),
            rate(pinned),
            share(pinned),
            rate(pageable),
            f"{best[1]} {best[0] / 1e6:,.0f}" if best else "–",
            f"{resident['tuples_per_s'] / best[0]:.1f}×" if best and resident else "–",
            f"{resident['device_peak_bytes'] / 1e6:,.0f}" if resident else "–",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "What the device was busy with, of `kernels`:", "", "| | variant | ms | |", "|---|---|---|---|"]
    for workload, variant in cases(gpu):
        if row := find(gpu, workload, variant, "kernels"):
            total = sum(row["kernels"].values()) or 1.0
            parts = sorted(row["kernels"].items(), key=lambda part: -part[1])
            text = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts if seconds >= 0.01 * total)
            lines.append(f"| {workload} | {variant} | {row['median_seconds'] * 1e3:.3f} | {text} |")
    out = [
        f"- {each['contestant']} on {each['workload']} ({each['variant']}): {each['reason']}"
        for each in gpu["left_out"]
    ]
    if peers is not None:
        out += [f"- {each['library']}: {each['reason']}" for each in peers["absent"]]
        out += [f"- {each['contestant']} on {each['workload']}: {each['reason']}" for each in peers["left_out"]]
    if out:
        lines += ["", "Absent or left out:", "", *out]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gpu", type=pathlib.Path, help="JSON of gpu_bench")
    parser.add_argument("--peers", type=pathlib.Path, help="JSON of gpu_peers.py")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="Markdown to write")
    options = parser.parse_args()
    gpu = json.loads(options.gpu.read_text(encoding="utf-8"))
    peers = json.loads(options.peers.read_text(encoding="utf-8")) if options.peers else None
    if not gpu["is_gpu"]:
        print(f"{options.gpu} was written without a GPU: there is nothing to show", file=sys.stderr)
        return 1
    options.out.write_text(markdown(gpu, peers), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
