#!/usr/bin/env python3
"""Checks that no compiler makes: who includes whom, and a few habits of C++ and CUDA.

So that the arrows of docs/design.md stay true, a file may include what ARROWS and LIBRARIES list. (import-linter and
ruff check the Python package.) A line that needs an exception says so and why, in a comment: `allow(RULE): reason`.

Prints one line a finding, `path:line: rule: text (reason)`, and exits 1 if there are any. Standard library only.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath

# The folders of a module: what files of each may include of the same module besides their own folder, by names without
# the module ("." is its top). A file belongs to the longest name that fits; one with a suffix is that one file.
HOST = "base spec wire updates"
CPU = f"{HOST} . cpu/tuning.h cpu/rows"
ARROWS = {
    "host/base": "",
    "host/spec": "base",
    "host/wire": "base spec",
    "host/updates": "base spec wire",
    "host/clip": f"{HOST} cpu/tuning.h cpu/rows cpu/simd cpu/prepare cpu/finish",
    "host/inspect": f"{HOST} cpu/rows",
    "host/privacy": f"{HOST} cpu/rows",
    "host": f"{HOST} clip privacy cpu/finish",
    "host/cpu/tuning.h": "",
    "host/cpu/rows": f"{HOST} .",
    "host/cpu/simd": CPU,
    "host/cpu/prepare": f"{CPU} cpu/simd",
    "host/cpu/merge": f"{CPU} cpu/simd cpu/prepare",
    "host/cpu/finish": f"{CPU} cpu/simd cpu/prepare cpu/merge",
    "host/cpu": f"{CPU} cpu/simd cpu/prepare cpu/merge cpu/finish",
    "cuda/tuning.h": "",
    "cuda/kernels": "",
    "cuda/device": "kernels",
    "cuda/transfer": "tuning.h kernels device",
    "cuda/merge": "tuning.h kernels device transfer",
    "cuda/plugin": ".",
    "service/base": "",
    "service/admission": "base",
    "service/net": "auth base",
    "service/auth": "base",
    "service/store": "base",
    "service/rounds": "auth admission store base",
    "service/streams": "rounds auth admission store base",
    "service/models": "streams rounds auth admission store base",
    "service/tasks": "rounds admission store base",
    "service/codec": "models tasks streams rounds auth admission store base",
    "service/certificates": "rounds auth admission store base",
    "service/handlers": "codec models streams rounds tasks auth admission store base",
    "service/server_context.h": "handlers store tasks rounds net auth admission base",
    "service/gateway": "server_context.h handlers codec models streams rounds tasks net auth admission base",
    "service/grpc": "server_context.h handlers codec streams tasks rounds net auth admission store base",
}
# What files may include besides, by the longest name again.
STD = "[a-z0-9_]+"
CUDA = r"(cuda|cub|thrust|nv|cooperative_groups|driver_types|vector_types)[\w./+-]*"
LIBRARIES = {
    "host": rf"{STD}|((oneapi/)?tbb|absl|hwy|sodium)/.*|xx(hash|h_x86dispatch)\.h|(pthread|sys/mman|xmmintrin)\.h",
    "cuda": rf"{STD}|(absl|host)/.*|dlfcn\.h|{CUDA}",
    "cuda/kernels": rf"{STD}|{CUDA}|host/base/(binned|half|host_device)\.h|host/spec/dtype\.h",
    "service": f"(?!{CUDA}$).*",
    "service/main.cc": ".*",
}
OUTER = ("tests", "bench", "tools")  # may include all others, and no other may include them

# Rule, reason, and what code must not have.
HABITS = (
    ("conditional", "the build picks cuda_engine.cc or its stub", r"^[ \t]*#[ \t]*(?:if|ifdef|elif)\b.*CUDA.*"),
    ("default-stream", "name the stream", r"\bcuda(?:Memcpy|Memcpy2D|Memset)\s*\("),
    ("raw-allocation", "cuda/device/cuda_device.cc allocates", r"\bcuda(?:Malloc|Free|HostAlloc)\w*\s*\("),
    ("randomness", "runs without a seed cannot be repeated", r"std::random_device|(?<![\w:.>])s?rand\s*\("),
)
EXEMPT = {"conditional": (".cu", ".cuh"), "raw-allocation": ("cuda/device/cuda_device.cc",)}
# Work on a stream, up to the end of the statement, and what names one.
STREAM_USE = re.compile(
    r"<<<.*?>>>|\b(?:cudaMemcpyAsync|cudaMemsetAsync|cudaEventRecord|cub::Device\w+::\w+)\s*\([^;]*;", re.S
)
STREAM = re.compile(r"stream(?!\w*(?:Default|Legacy))|\blane\b", re.IGNORECASE)

Finding = tuple[int, str, str]  # position, rule and text


def row_of(path: str, table: dict[str, str]) -> str | None:
    """The longest name of the table that is the path or a folder above it."""
    return next((name for name in [path, *map(str, PurePath(path).parents)] if name in table), None)


def check_include(path: str, target: str, ours: set[str]) -> bool:
    """Whether the file may include the target."""
    module, other = path.split("/")[0], target.split("/")[0]
    if target in ours and module == other:
        row = row_of(path, ARROWS)
        allowed = [f"{module}/{name}".removesuffix("/.") for name in ARROWS[row].split()] if row else []
        return row is None or (row_of(target, ARROWS) or module) in [row, *allowed]
    library = row_of(path, LIBRARIES)
    is_allowed = library is None or re.fullmatch(LIBRARIES[library], target)
    return bool(is_allowed) and (other not in OUTER or module in OUTER)


def check(path: str, text: str, ours: set[str]) -> Iterator[Finding]:
    """Yields what is wrong in a file."""
    for match in re.finditer(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE):
        if not check_include(path, match[1], ours):
            yield match.start(1), "include", f"{match[1]} (against the arrows between modules and folders)"
    # Comments and strings are blanked, so that positions stay.
    token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    code = token.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    for rule, reason, pattern in HABITS:
        if not path.endswith(EXEMPT.get(rule, ())):
            for match in re.finditer(pattern, code, re.MULTILINE):
                yield match.start(), rule, f"{match.group().strip()} ({reason})"
    for match in STREAM_USE.finditer(code):
        if not STREAM.search(match.group()):
            yield match.start(), "default-stream", f"{' '.join(match.group().split())[:60]} (name the stream)"


def main() -> int:
    """Runs the command; returns its exit status."""
    root = Path(__file__).resolve().parent.parent
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.h", "*.cc", "*.cu", "*.cuh"]
    names = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout.split()
    ours = {name for name in names if (root / name).is_file()}
    status = 0
    for path in sorted(ours):
        text = (root / path).read_text(encoding="utf-8")
        for position, rule, said in check(path, text, ours):
            number = text.count("\n", 0, position) + 1
            if f"allow({rule}): " not in text.splitlines()[number - 1]:
                print(f"{path}:{number}: {rule}: {said}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
