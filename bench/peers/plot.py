"""Draws the result of peers/comparison.py: a column of points for each workload, on a scale of powers of ten."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import picture
from table import measurements

OURS = "sparseagg canonical"
COLOURS = {"ours": picture.OURS, "sparse": picture.PEER, "dense": picture.OTHER}
LABELS = {
    "ours": "sparseagg, canonical float64, sparse answer",
    "sparse": "peers that give a sparse answer",
    "dense": "peers that give a dense answer",
}


def points(file: dict[str, Any], workload: str) -> dict[str, list[tuple[float, str]]]:
    """Rates in M tuples/s with fresh memory and names, by class; a peer with several numbers of threads by its best."""
    best: dict[tuple[str, str], float] = {}
    for row in measurements(file):
        if row["workload"] != workload or row["memory"] != "fresh":
            continue
        name = row["contestant"]
        if name == OURS and row["output"] == "sparse":
            key = ("ours", f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}")
        elif name.startswith("sparseagg"):
            continue
        else:
            key = (row["output"], name)
        best[key] = max(best.get(key, 0.0), row["tuples_per_s"] / 1e6)
    found: dict[str, list[tuple[float, str]]] = {kind: [] for kind in COLOURS}
    for (kind, name), value in best.items():
        found[kind].append((value, name))
    return found


def draw(file: dict[str, Any], out: pathlib.Path) -> None:
    """Writes the picture."""
    names = [facts["name"] for facts in file["workloads"]]
    figure, axes = picture.new(size=(10, 5.2))
    for x, name in enumerate(names):
        for kind, offset in (("dense", 0.24), ("sparse", -0.24), ("ours", 0.0)):
            found = sorted(points(file, name)[kind], reverse=True)
            axes.scatter(
                [x + offset] * len(found),
                [value for value, _ in found],
                s=70 if kind == "ours" else 26,
                marker="D" if kind == "ours" else "o",
                color=COLOURS[kind],
                label=LABELS[kind] if x == 0 else None,
                zorder=3,
            )
            if found and kind != "ours":
                axes.annotate(
                    found[0][1].replace(" ", "\n", 1),
                    (x + offset, found[0][0]),
                    xytext=(0, 5),
                    textcoords="offset points",
                    ha="center",
                    fontsize=6,
                    color=COLOURS[kind],
                )
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), [facts["description"].replace(", ", "\n") for facts in file["workloads"]])
    axes.tick_params(axis="x", labelsize=7)
    for x, name in enumerate(names):
        axes.annotate(name, (x, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom", weight="bold")
    axes.set_ylabel("million tuples a second")
    picture.style(axes, "both")
    axes.margins(y=0.12)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False, fontsize=8)
    threads = max(file["machine"]["memory_bytes_per_s"], key=lambda text: int(text.split()[0]))
    axes.set_title(f"{file['machine']['cpu']}, up to {threads}, fresh memory, {file['date']}", fontsize=9, pad=18)
    picture.save(figure, out)


if __name__ == "__main__":
    sys.exit(picture.main(draw, __doc__))
