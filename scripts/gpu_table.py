#!/usr/bin/env python3
"""Writes the table of docs/gpu.md that says what each kernel takes.

    scripts/gpu_table.py --build build/cuda

Registers, spills and shared memory are what ptxas reports; each source with kernels is compiled once more for that, as
in its build for one architecture. Occupancy is computed. Exits 1 if a kernel of ours spills registers or keeps arrays
in local memory. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# A multiprocessor of sm_90.
REGISTERS = 65536
REGISTER_UNIT = 256  # a warp's registers are allocated in units of
SHARED_BYTES = 227 << 10
SHARED_PER_BLOCK = 1 << 10  # that the system takes
MAX_THREADS = 2048
MAX_BLOCKS = 32
BLOCK_THREADS = 256
WARP_THREADS = 32
ONE_WARP = ("TileBody", "PlanTiles")  # kernels whose blocks are warps

PATTERN = re.compile(
    r"Compiling entry function '(\S+)' for '\w+'\n.*\n"
    r"\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
    r".*?Used (\d+) registers(?:.*?(\d+) bytes smem)?"
)
LIBRARY_SOURCES = ("sort_keys", "select")  # with kernels of CUB only


class Kernel(NamedTuple):
    """What one kernel takes."""

    name: str
    registers: int
    stack: int
    spilled: int  # bytes
    shared: int

    def threads(self) -> int:
        """The threads of a block, which the names of the kernels for listed segments end with."""
        if self.name.startswith(ONE_WARP):
            return WARP_THREADS
        match = re.search(r"Listed\w+<(?:.*, )?(\d+)>$", self.name)
        return BLOCK_THREADS if match is None else int(match[1])

    def occupancy(self) -> float:
        """The share of a multiprocessor's threads that are resident at a time."""
        threads = self.threads()
        warp = -(-self.registers * WARP_THREADS // REGISTER_UNIT) * REGISTER_UNIT
        blocks = min(
            REGISTERS // (warp * threads // WARP_THREADS),
            SHARED_BYTES // (self.shared + SHARED_PER_BLOCK),
            MAX_THREADS // threads,
            MAX_BLOCKS,
        )
        return blocks * threads / MAX_THREADS


def demangle(names: list[str]) -> list[str]:
    """C++ names in readable form."""
    output = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return output.splitlines()


def short_name(name: str) -> str | None:
    """`TileBody<SumFloat>` or `FoldListedSegments<SumFloat, 32>` for a kernel of ours, None for one of a library."""
    match = re.search(r"\bRun(?:Elements|Blocks)<(.*)>\(", name)
    if match is None:
        return None
    name = re.sub(r"sparseagg::cuda::|, (true|false|\(bool\)\d)|\(unsigned int\)", "", match[1])
    return re.sub(r"(\d)u\b", r"\1", name).strip()


def compile_kernels(build: Path) -> str:
    """What ptxas says of each kernel, compiled as in `build`."""
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    report = []
    for each in commands:
        source = Path(each["file"])
        if source.suffix != ".cu" or "cuda/kernels" not in source.as_posix() or source.stem.startswith(LIBRARY_SOURCES):
            continue
        command = shlex.split(each["command"])
        command[command.index("-o") + 1] = "/dev/null"
        command = [word for word in command if not word.endswith("ccache")]
        command += ["-Xptxas", "-v"]
        done = subprocess.run(command, cwd=each["directory"], capture_output=True, text=True, check=True)
        report.append(done.stderr)
    return "\n".join(report)


def read_kernels(report: str) -> list[Kernel]:
    """Our kernels in a report of ptxas, by name."""
    found = PATTERN.findall(report)
    kernels = {}
    for name, (_, stack, stored, loaded, registers, shared) in zip(
        demangle([each[0] for each in found]), found, strict=True
    ):
        short = short_name(name)
        if short is not None:
            kernels[short] = Kernel(short, int(registers), int(stack), int(stored) + int(loaded), int(shared or 0))
    return [kernels[name] for name in sorted(kernels)]


def kernel_table(kernels: list[Kernel]) -> list[str]:
    """The lines of the table of kernels that spill or are not fully occupied: least and most of the instantiations."""
    lines = [
        "| kernel | instances | registers | spilled bytes | shared bytes | occupancy |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(k.name.partition("<")[0] for k in kernels):
        same = [k for k in kernels if k.name.partition("<")[0] == name]
        if all(k.occupancy() == 1 and k.spilled == 0 for k in same):
            continue
        figures = [
            spread([k.registers for k in same]),
            spread([k.spilled for k in same]),
            spread([k.shared for k in same]),
            spread([round(100 * k.occupancy()) for k in same]) + "%",
        ]
        lines.append(f"| `{name}` | {len(same)} | " + " | ".join(figures) + " |")
    return lines


def spread(numbers: list[int]) -> str:
    """The least and the most, as "8–24", or the one number."""
    return str(min(numbers)) if min(numbers) == max(numbers) else f"{min(numbers)}–{max(numbers)}"


def replace(text: str, name: str, lines: list[str]) -> str:
    """`text` with `lines` between the two comments that name the table."""
    pattern = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"there is no place for the table {name}")
    return pattern.sub(lambda match: match[1] + "\n" + "\n".join(lines) + "\n\n" + match[2], text)


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="build of the preset cuda")
    parser.add_argument("--page", type=Path, default=Path(__file__).resolve().parent.parent / "docs/gpu.md")
    arguments = parser.parse_args()
    text = arguments.page.read_text(encoding="utf-8")
    status = 0
    kernels = read_kernels(compile_kernels(arguments.build))
    text = replace(text, "kernels", kernel_table(kernels))
    for kernel in kernels:
        if kernel.spilled > 0 or kernel.stack > 0:
            print(f"{kernel.name}: {kernel.spilled} bytes spilled, {kernel.stack} bytes of stack")
            status = 1
    arguments.page.write_text(text, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
