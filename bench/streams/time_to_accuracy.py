"""Held-out loss over simulated time with stragglers: a stream, synchronous rounds, and the streams of peers.

    python bench/streams/time_to_accuracy.py [PLAY] [--python nvflare=PYTHON] [--python appfl=PYTHON]
        [--out FILE.json] [--plot FILE.png]

Each speaker of the play is a client, or without a play each file of Python's standard library. Every contestant may
choose its clients' learning rate from the same list: the one that reaches the target first with the first seed. Then
all seeds run with it. A contestant runs in the Python that has its package; one without a Python is left out, and the
result says so. ``docs/howto/flower.md`` says how to install the peers.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "common")]
import json_lines  # noqa: E402
from problem import Problem  # noqa: E402
from sparseagg._internal.commands.demo import corpus  # noqa: E402

CLIENTS, AT_A_TIME, BUFFER, HORIZON, LOSS_EVERY = 64, 16, 4, 20.0, 0.5
LEARNING_RATES, SEEDS, TARGET = (8.0, 16.0, 32.0, 64.0), (1, 2, 3), 2.2
STALE = {"buffer": BUFFER, "exponent": 0.5}
# By name: the package whose Python runs it, and its settings.
CONTESTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sparseagg stream": ("sparseagg", {"kind": "stream", "max_staleness": 64, **STALE}),
    "rounds, all 16 replies": ("sparseagg", {"kind": "rounds", "counted": 16}),
    "rounds, first 12 of 16": ("sparseagg", {"kind": "rounds", "counted": 12}),
    "rounds, first 8 of 16": ("sparseagg", {"kind": "rounds", "counted": 8}),
    "NVFlare BuffModelManager": ("nvflare", {"kind": "nvflare", "global_lr": 1.0, **STALE}),
    "APPFL FedBuff, gradient_based": ("appfl", {"kind": "appfl", "gradient_based": True, **STALE}),
    "APPFL FedBuff, models": ("appfl", {"kind": "appfl", "gradient_based": False, **STALE}),
}


def time_to(target: float, curve: list[list[float]]) -> float | None:
    """Returns when the loss is first at most the target, between two points on a line; None: never."""
    for (before, _, above), (after, _, loss) in zip(curve, curve[1:]):
        if loss <= target:
            return before + (after - before) * (above - target) / (above - loss)
    return None


class Runs:
    """Runs of the contestants, each in a process of its own."""

    def __init__(self, pythons: dict[str, str], problem: pathlib.Path, jobs: int) -> None:
        self._pythons, self._problem = pythons, problem
        self._pool = concurrent.futures.ThreadPoolExecutor(jobs)

    def start(self, name: str, learning_rate: float, seed: int) -> concurrent.futures.Future[dict[str, Any]]:
        """Begins a run."""
        package, settings = CONTESTANTS[name]
        settings = {"at_a_time": AT_A_TIME, "horizon": HORIZON, "loss_every": LOSS_EVERY, **settings}
        settings |= {"learning_rate": learning_rate, "seed": seed}
        return self._pool.submit(self._run, name, self._pythons[package], settings)

    def _run(self, name: str, python: str, settings: dict[str, Any]) -> dict[str, Any]:
        command = [python, str(HERE / "worker.py"), str(self._problem), json.dumps(settings)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr.strip().splitlines()[-1:]}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        result["time_to_target"] = time_to(TARGET, result["curve"])
        shown = {field: settings[field] for field in ("learning_rate", "seed")}
        print(name, shown, result["time_to_target"], result["curve"][-1], result["wall_s"], flush=True)
        return {"contestant": name, **shown, **result}


def compare(runs: Runs, names: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the learning rate and the times of each contestant, and the curves at that rate."""
    grid = {(name, rate): runs.start(name, rate, SEEDS[0]) for name in names for rate in LEARNING_RATES}
    summary, curves = {}, []
    for name in names:
        tried = {rate: grid[name, rate].result() for rate in LEARNING_RATES}
        times = {rate: run["time_to_target"] for rate, run in tried.items()}
        best = min(tried, key=lambda rate: (times[rate] is None, times[rate], tried[rate]["curve"][-1][2]))
        more = [runs.start(name, best, seed) for seed in SEEDS[1:]]
        own = [tried[best], *(run.result() for run in more)]
        reached = [run["time_to_target"] for run in own]
        summary[name] = {
            "learning_rate": best,
            "time_to_target": reached,
            "median_time_to_target": None if None in reached else statistics.median(reached),
            "final_loss": [run["curve"][-1][2] for run in own],
            "tried": {str(rate): times[rate] for rate in LEARNING_RATES},
        }
        curves += own
    return summary, curves


def verify_repeats(runs: Runs, curves: list[dict[str, Any]]) -> bool:
    """Returns whether the stream's run gives the same bits again."""
    first = next(run for run in curves if run["contestant"] == "sparseagg stream")
    again = runs.start("sparseagg stream", first["learning_rate"], first["seed"]).result()
    return bool(again["model_sha256"] == first["model_sha256"])


def draw(file: dict[str, Any], out: pathlib.Path) -> None:
    """Draws the first seed's curves. Needs matplotlib."""
    import picture

    styles = {"sparseagg": (picture.OURS, 2.2), "rounds": (picture.PEER, 1.3)}
    figure, axes = picture.new(size=(8.5, 4.6))
    dashes = ["-", "--", ":", "-."]
    drawn: dict[str, int] = {}
    for run in file["curves"]:
        if run["seed"] != SEEDS[0]:
            continue
        kind = run["contestant"].replace(",", " ").split()[0]
        colour, width = styles.get(kind, (picture.OTHER if kind == "APPFL" else "black", 1.3))
        style = dashes[drawn.setdefault(kind, 0) % len(dashes)]
        drawn[kind] += 1
        label = f"{run['contestant']} (rate {run['learning_rate']:g})"
        points = [(now, loss) for now, _, loss in run["curve"]]
        axes.plot(*zip(*points), style, color=colour, linewidth=width, label=label)
    axes.axhline(TARGET, color="black", linewidth=0.6)
    axes.set(xlabel="simulated time, in median trainings of a client", ylabel="held-out loss, nats a character")
    picture.style(axes)
    axes.legend(fontsize=8, frameon=False)
    picture.save(figure, out)


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("play", nargs="?")
    parser.add_argument("--python", action="append", default=[], metavar="PACKAGE=PYTHON")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    options = parser.parse_args()
    pythons = {"sparseagg": sys.executable, **dict(text.split("=", 1) for text in options.python)}
    loaded = corpus.load(options.play)
    problem = Problem.of_texts([" ".join(text.tokens) for text in [*loaded.clients, *loaded.held_out]], CLIENTS)
    names = [name for name, (package, _) in CONTESTANTS.items() if package in pythons]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "problem.npz"
        problem.save(path)
        runs = Runs(pythons, path, options.jobs)
        summary, curves = compare(runs, names)
        repeats = verify_repeats(runs, curves)
    play = pathlib.Path(options.play).name if options.play else "Python's standard library"
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "text": play,
        "setup": {
            "clients": CLIENTS,
            "clients_at_a_time": AT_A_TIME,
            "buffer": BUFFER,
            "rows": len(problem.initial_model()),
            "row_width": problem.width,
            "slowest_to_fastest": 50,
            "horizon": HORIZON,
            "target_loss": TARGET,
            "learning_rates": list(LEARNING_RATES),
            "seeds": list(SEEDS),
        },
        "left_out": sorted(name for name in CONTESTANTS if name not in names),
        "stream_repeats_to_the_bit": repeats,
        "contestants": summary,
        "curves": curves,
    }
    if options.out:
        json_lines.write(options.out, result)
    if options.plot:
        draw(result, options.plot)
    print(json.dumps(summary, indent=1))
    return 0 if repeats else 1


if __name__ == "__main__":
    sys.exit(main())
