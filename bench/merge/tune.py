"""Reads what merge_tune measured: prints what it would change in host/cpu/tuning.h, draws which algorithm runs when.

Costs are also fitted, by least squares with relative errors weighing alike. A value should change only where another
one makes the workloads faster on the whole.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import sys
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import show

COSTS = ("visit_cost", "table_slot_cost", "table_value_cost", "sort_tuple_cost")
# What a value has to gain, over the geometric mean of the workloads, before it is worth a change.
WORTHWHILE = 0.03


def seconds(cell: dict[str, Any], method: str) -> float:
    """The best of the runs: what disturbs a run only ever slows it down."""
    return float(min(cell[method]))


def fit_costs(cells: list[dict[str, Any]]) -> dict[str, float]:
    """Nanoseconds, by least squares on relative errors; what would be negative is left out as 0."""
    rows = []
    for cell in cells:
        for method in ("table", "sort"):
            rows.append(np.array(cell[f"{method}_expected"]) / (seconds(cell, method) * 1e9))
    matrix = np.array(rows)
    used = list(range(len(COSTS)))
    while True:
        found, *_ = np.linalg.lstsq(matrix[:, used], np.ones(len(rows)), rcond=None)
        if all(cost >= 0 for cost in found):
            break
        del used[int(np.argmin(found))]
    fitted = dict.fromkeys(COSTS, 0.0)
    fitted.update({COSTS[index]: float(cost) for index, cost in zip(used, found, strict=True)})
    return fitted


def regret(cells: list[dict[str, Any]], costs: dict[str, float]) -> tuple[float, float]:
    """By how much the way that `costs` let choose is slower than the better one: on average, and at worst."""
    vector = np.array([costs[name] for name in COSTS])
    ratios = []
    for cell in cells:
        expected = {method: float(np.dot(cell[f"{method}_expected"], vector)) for method in ("table", "sort")}
        chosen = min(expected, key=lambda method: expected[method])
        ratios.append(seconds(cell, chosen) / min(seconds(cell, "table"), seconds(cell, "sort")))
    return statistics.geometric_mean(ratios) - 1, max(ratios) - 1


def report_costs(measured: dict[str, Any]) -> None:
    """Prints the costs in use beside those of the fit, and what either leaves on the table."""
    cells = measured["cells"]
    now = measured["costs_now"]
    fitted = fit_costs(cells)
    unit = now["sort_tuple_cost"] / fitted["sort_tuple_cost"] if fitted["sort_tuple_cost"] else 1.0
    print(f"costs, over {len(cells)} cells (ns; only the ratios matter, so the fit is also given in today's unit)")
    for name in COSTS:
        values = (now[name], fitted[name], fitted[name] * unit)
        print(f"  {name:18} now {values[0]:6.2f}   fitted {values[1]:6.2f}   in today's unit {values[2]:6.2f}")
    for label, costs in (("now", now), ("fitted", fitted)):
        mean, worst = regret(cells, costs)
        print(f"  the way chosen by those {label:6} is {mean:5.1%} slower than the better one, at worst {worst:.0%}")


def report_parameters(measured: dict[str, Any]) -> None:
    """Prints, for each parameter, the best value tried and its gain over the one in use."""
    print("parameters, by the geometric mean of the workloads' times")
    tried: dict[str, dict[float, dict[str, float]]] = {}
    now: dict[str, float] = {}
    for record in measured["parameters"]:
        now[record["name"]] = record["now"]
        by_workload = tried.setdefault(record["name"], {}).setdefault(record["value"], {})
        by_workload[record["workload"]] = min(record["seconds"])
    for name, values in tried.items():
        base = values[now[name]]
        gains = {
            value: 1 - statistics.geometric_mean([times[workload] / base[workload] for workload in base])
            for value, times in values.items()
        }
        best = max(gains, key=lambda value: gains[value])
        verdict = f"would become {best:g}: {gains[best]:.1%} faster" if gains[best] >= WORTHWHILE else "stays"
        spread = ", ".join(f"{value:g}: {-gain:+.1%}" for value, gain in sorted(gains.items()))
        print(f"  {name:25} {now[name]:7g} {verdict}   ({spread})")


def draw(measured: dict[str, Any], out: pathlib.Path) -> None:
    """Writes the picture: time a tuple of both ways, and of the plan, over the density."""
    numbers = sorted({cell["clients"] for cell in measured["cells"]})
    figure, axes = show.new(1, len(numbers), size=(12, 3.6), sharey=True)
    styles = {
        "table": {"color": show.PEER, "label": "table fold: one slot for every key", "linewidth": 1.4},
        "sort": {"color": "#c98a1b", "label": "sort fold: collect and sort", "linewidth": 1.4},
        "planned": {"color": show.OURS, "label": "as planned", "linestyle": "none", "marker": "D", "markersize": 4},
    }
    for axis, clients in zip(axes, numbers, strict=True):
        cells = [cell for cell in measured["cells"] if cell["clients"] == clients]
        densities = [cell["density"] for cell in cells]
        for method, style in styles.items():
            axis.plot(densities, [seconds(cell, method) / cell["tuples"] * 1e9 for cell in cells], **style)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_title(f"{clients} clients", fontsize=9)
        show.style(axis, "both")
        axis.tick_params(labelsize=7)
    axes[0].set_ylabel("ns a tuple, one thread", fontsize=8)
    top = max(seconds(cell, "sort") / cell["tuples"] * 1e9 for cell in measured["cells"])
    axes[0].set_ylim(top=10 ** math.ceil(math.log10(top)))
    figure.supxlabel("tuples of all clients for each key of their range", fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    figure.suptitle(x=0.01, ha="left", t=f"{measured['cpu']}, {measured['simd']}, {measured['date']}", fontsize=9)
    figure.savefig(out, dpi=160)


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=pathlib.Path, help="JSON of merge_tune")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="PNG to write")
    options = parser.parse_args()
    measured = json.loads(options.measured.read_text(encoding="utf-8"))
    report_costs(measured)
    report_parameters(measured)
    draw(measured, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
