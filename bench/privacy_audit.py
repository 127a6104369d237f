"""The audit of the privacy mechanism as a picture: what many runs prove about ε, and what is claimed.

    python bench/privacy_audit.py --test build/dev/tests/host/sparseagg_privacy_test [--runs 10000,100000,1000000]
        [--out FILE.json] [--plot FILE.png]

Runs the audit of tests/host/privacy/privacy_audit_test.cc with so many runs of the mechanism. Its bound on ε grows with
the number of runs, and stays below the claim; those of three faulty mechanisms do not.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import time
from typing import Any

import json_lines

_LINE = re.compile(
    r"^(noise multiplier )?(?P<what>[^:\n]+): at least (?P<found>[\d.]+), claimed (?P<claim>[\d.]+)$", re.M
)


def measure(test: pathlib.Path, runs: int) -> list[dict[str, Any]]:
    """Returns what the audit prints for each mechanism."""
    done = subprocess.run(
        [str(test), "--gtest_filter=PrivacyAudit.*"],
        env={**os.environ, "SPARSEAGG_AUDIT_RUNS": str(runs)},
        capture_output=True,
        text=True,
        check=False,  # which fails where too few runs catch no fault
    )
    return [
        {"runs": runs, "mechanism": line["what"], "found": float(line["found"]), "claimed": float(line["claim"])}
        for line in _LINE.finditer(done.stdout)
    ]


def draw(lines: list[dict[str, Any]], out: pathlib.Path) -> None:
    """Draws the bounds beside the claims. Needs matplotlib."""
    import show

    figure, axes = show.new(size=(7.5, 4.2))
    sound = [line for line in lines if line["mechanism"][0].isdigit()]
    claims = sorted({(float(line["mechanism"]), line["claimed"]) for line in sound})
    axes.plot(*zip(*claims), color=show.PEER, label="claimed")
    numbers = sorted({line["runs"] for line in lines})
    for shade, runs in zip((0.35, 0.65, 1.0), numbers):
        points = [(float(line["mechanism"]), line["found"]) for line in sound if line["runs"] == runs]
        axes.plot(*zip(*points), "o-", markersize=4, color=show.OURS, alpha=shade, label=f"found in {runs:,} runs")
    for line in lines:
        if line["runs"] == numbers[-1] and line not in sound:
            axes.plot([1.0], [line["found"]], "x", color="black")
            axes.annotate(line["mechanism"], (1.0, line["found"]), (6, -3), textcoords="offset points", fontsize=8)
    axes.plot([], [], "x", color="black", linestyle="none", label=f"faulty, found in {numbers[-1]:,} runs")
    axes.set(xlabel="noise multiplier", ylabel="ε at δ = 10⁻⁵", yscale="log", xscale="log")
    axes.set_xticks([x for x, _ in claims], [f"{x:g}" for x, _ in claims])
    axes.minorticks_off()
    show.style(axes)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=160)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--test", type=pathlib.Path, required=True, help="the program with the audit")
    parser.add_argument("--runs", default="10000,100000,1000000")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    options = parser.parse_args()
    lines = [line for runs in options.runs.split(",") for line in measure(options.test, int(runs))]
    for line in lines:
        print(f"{line['runs']:>9} runs, {line['mechanism']:20} {line['found']:8.3f} of {line['claimed']:.3f}")
    if options.out is not None:
        json_lines.write(options.out, {"date": time.strftime("%Y-%m-%d", time.gmtime()), "bounds": lines})
    if options.plot is not None:
        draw(lines, options.plot)


if __name__ == "__main__":
    main()
