#!/usr/bin/env python3
"""Runs the fuzz targets, two at a time, and prints what each has done.

    scripts/fuzz.py --build build/asan-ubsan --seconds 30 [--target chunk …]

Inputs that reach new code are kept in out/fuzz/TARGET, where the next run begins; an input that ends a target is
written to out/fuzz/crashes. Exits 1 if there is one. Standard library only.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("batch", "chunk", "config", "credentials", "frames", "http", "keys", "round", "spec", "store")
# Of an input: more than the 16 KiB from which the server takes messages apart, and few enough to stay quick.
MAX_INPUT_BYTES = 40_000


class Outcome(NamedTuple):
    """What a target has done: `edges` are the branches of the instrumented code that its inputs have reached."""

    target: str
    code: int
    executions: int
    edges: int
    inputs: int
    log: Path


def last_number(pattern: str, text: str) -> int:
    """Returns the last number that the pattern finds; 0 if it finds none."""
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def run(target: str, build: Path, out: Path, seconds: int, seed: int) -> Outcome:
    """Runs one target for so many seconds."""
    corpus, log = out / target, out / f"{target}.log"
    corpus.mkdir(parents=True, exist_ok=True)
    command = [
        str(build / "tests/fuzz" / f"sparseagg_{target}_fuzz"),
        *(f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={MAX_INPUT_BYTES}", "-timeout=20"),
        *("-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={out}/crashes/{target}-"),
        str(corpus),
        str(out / "seeds" / target),
    ]
    (out / "seeds" / target).mkdir(parents=True, exist_ok=True)
    # Temporary folders of the targets in memory, where there is such a folder.
    environment = dict(os.environ)
    if Path("/dev/shm").is_dir():
        environment["TMPDIR"] = "/dev/shm"
    with log.open("w") as file:
        code = subprocess.run(command, stdout=file, stderr=file, env=environment, check=False).returncode
    text = log.read_text(errors="replace")
    return Outcome(
        target,
        code,
        last_number(r"stat::number_of_executed_units:\s+(\d+)", text),
        last_number(r"\bcov: (\d+)", text),
        len(list(corpus.iterdir())),
        log,
    )


def main() -> int:
    """Runs the targets that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/asan-ubsan", help="build with SPARSEAGG_FUZZ")
    parser.add_argument("--out", type=Path, default=ROOT / "out/fuzz", help="inputs, logs and crashes")
    parser.add_argument("--seconds", type=int, default=30, help="for each target")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"), help="of the targets")
    parser.add_argument("--target", choices=TARGETS, action="append", help="all if left out")
    args = parser.parse_args()
    out = args.out.resolve()
    (out / "crashes").mkdir(parents=True, exist_ok=True)
    subprocess.run([args.build / "tests/fuzz/sparseagg_fuzz_seeds", out / "seeds"], check=True)
    print(f"seed {args.seed}, {args.seconds} s each")
    print("target        executions    edges   inputs")
    failed = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        runs = [pool.submit(run, target, args.build, out, args.seconds, args.seed) for target in args.target or TARGETS]
        for done in concurrent.futures.as_completed(runs):
            outcome = done.result()
            mark = "" if outcome.code == 0 else f"   exit {outcome.code}: {outcome.log}"
            print(
                f"{outcome.target:<12} {outcome.executions:>11} {outcome.edges:>8} {outcome.inputs:>8}{mark}",
                flush=True,
            )
            if outcome.code != 0:
                failed.append(outcome)
    for outcome in failed:
        print(f"\n{outcome.target}:", file=sys.stderr)
        print("\n".join(outcome.log.read_text(errors="replace").splitlines()[-40:]), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
