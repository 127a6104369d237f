#!/usr/bin/env python3
"""Compares the machine code of the fold kernels with the table of the last accepted build, and fails where it grew.

  scripts/sass_table.py build/cuda/cuda/libsparseagg_cuda.a          # compare with cuda/kernels/sass.csv
  scripts/sass_table.py build/cuda/cuda/libsparseagg_cuda.a --write  # accept: write that table anew

For each kernel: registers of a thread, bytes of static shared memory of a block, bytes of local memory of a thread
(spills and arrays), instructions, and those of the longest innermost loop. Code of another compiler than the table's is
not compared. Needs cuobjdump and nvdisasm (scripts/requirements-cuda.txt).
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

TABLE = Path(__file__).resolve().parent.parent / "cuda" / "kernels" / "sass.csv"
COLUMNS = ("registers", "shared", "local", "instructions", "loop")
# What a column may grow by before it is a failure: as a share, and at least by so much. Spills may not grow.
SHARE, LEAST = 0.05, {"registers": 4, "shared": 64, "local": 0, "instructions": 32, "loop": 8}
FOLDS = re.compile(r"(Fold|Tile)\w*<")

Table = dict[str, dict[str, int]]


def tool(*command: str) -> str:
    """Runs one of CUDA's tools, that of this environment's wheels before another one."""
    wheels = [str(path) for path in Path(sysconfig.get_path("purelib"), "nvidia").glob("*/bin")]
    path = os.pathsep.join([*wheels, os.environ["PATH"], os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"])
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PATH": path}).stdout


def short(symbol: str) -> str:
    """The kernel that a launcher's symbol runs, such as TileBody<SumFloat>."""
    name = subprocess.run(["c++filt", symbol], check=True, capture_output=True, text=True).stdout.strip()
    found = re.fullmatch(r"void sparseagg::cuda::Run(?:Blocks|Elements)<(.*)>\(.*", name)
    return re.sub(r"sparseagg::(?:cuda::)?|\s|\((?:int|unsigned int|bool)\)", "", found[1]) if found else ""


def longest_loop(code: str) -> int:
    """Instructions of the longest loop without another one inside: from a branch's target back to the branch."""
    branches = re.findall(r"/\*([0-9a-f]{4,})\*/\s[^;]*\bBRA\S*\s[^;]*?0x([0-9a-f]+)", code)
    loops = [(int(to, 16), int(at, 16)) for at, to in branches if int(to, 16) < int(at, 16)]
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return max(((end - begin) // 16 + 1 for begin, end in inner), default=0)


def read_code(library: str) -> Table:
    """What the tools say of each fold kernel."""
    usage = re.findall(
        r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", tool("cuobjdump", "-res-usage", library)
    )
    functions = re.split(r"\bFunction : (\S+)", tool("cuobjdump", "-sass", library))
    code = dict(zip(functions[1::2], functions[2::2]))
    table: Table = {}
    for symbol, registers, stack, shared, local in usage:
        name = short(symbol)
        if FOLDS.match(name):
            instructions = len(re.findall(r"/\*[0-9a-f]{4,}\*/\s+[^/\s]", code[symbol]))
            counts = (int(registers), int(shared), int(stack) + int(local), instructions, longest_loop(code[symbol]))
            table[name] = dict(zip(COLUMNS, counts))
    return dict(sorted(table.items()))


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    compiler = tool("nvcc", "--version").split()[-1]
    new = read_code(options.library)
    if options.write:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow((compiler, *COLUMNS))
            writer.writerows((name, *counts.values()) for name, counts in new.items())
        print(f"{TABLE}: {len(new)} kernels")
        return 0
    with TABLE.open(encoding="utf-8") as file:
        (accepted, *_), *rows = csv.reader(file)
    if accepted != compiler:
        print(f"{TABLE.name} is of {accepted}, this is {compiler}: not compared")
        return 0
    old: Table = {name: dict(zip(COLUMNS, map(int, counts))) for name, *counts in rows}
    wrong = [f"{name}: {'not in the table' if name in new else 'gone'}" for name in sorted(old.keys() ^ new.keys())]
    for name in old.keys() & new.keys():
        for column, limit in LEAST.items():
            before, now = old[name][column], new[name][column]
            if now > before + max(limit, SHARE * before * (limit > 0)):
                wrong.append(f"{name}: {column} {before} → {now}")
    if wrong:
        renew = f"scripts/sass_table.py {options.library} --write"
        print("\n".join(sorted(wrong)), f"\nThe kernels' code has changed. If that is meant: {renew}", file=sys.stderr)
        return 1
    print(f"{len(new)} fold kernels, none has grown")
    return 0


if __name__ == "__main__":
    sys.exit(main())
