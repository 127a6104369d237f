#!/usr/bin/env python3
"""Checks that no compiler makes: who includes whom, and a few habits.

Each module of the repository (a top folder) may include only what its row in MODULES allows, so that the arrows of
docs/design.md stay true. (import-linter checks those of the Python package.) The other rules are listed in RULES. A
line that needs an exception says so and why, in a comment on the same line: `allow(RULE): reason`. ruff has the rule
about randomness for Python.

Prints one line a finding, `path:line: rule: message`, and exits 1 if there are any. Standard library only.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RULES = {
    "include": "an include against the arrows between modules",
    "inner-include": "an include against the arrows between the folders of a module",
    "conditional": "an #if on CUDA in C++: the build picks cuda_engine.cc or its stub instead",
    "default-stream": "work on CUDA's default stream: name the stream",
    "raw-allocation": "a raw CUDA allocation outside cuda/device/cuda_device.cc",
    "randomness": "randomness without a seed: its runs cannot be repeated",
}

CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
KERNEL_SUFFIXES = {".cu", ".cuh"}

STD = r"[a-z0-9_]+"
CUDA = r"(cuda|cub|thrust|nv|cooperative_groups|driver_types|vector_types)[\w./+-]*"
# What files of a module may include: full matches of the path between the quotes or brackets. A module without a row
# may include everything but OUTER_MODULES.
MODULES = {
    "host": [
        STD,
        r"host/.*",
        r"absl/.*",
        r"hwy/.*",
        r"(oneapi/)?tbb/.*",
        r"xx(hash|h_x86dispatch)\.h",
        r"sodium/\w+\.h",
        r"pthread\.h",
        r"sys/mman\.h",
        r"xmmintrin\.h",
    ],
    "cuda": [STD, r"host/.*", r"cuda/.*", r"absl/.*", r"dlfcn\.h", CUDA],
    "kernel": [STD, r"cuda/.*", CUDA],  # .cu files and every header of ours that they reach
}

# Modules that may include all others, and that no other may include.
OUTER_MODULES = ("tests", "bench", "tools")

# The folders of a module: what files of each may include of the same module besides their own folder, by names without
# the module ("." is its top). A file belongs to the folder with the longest matching name; a name with a suffix is that
# one file. The module's top may include all.
HOST = "base spec wire updates"
INNER = {
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
    "host/cpu/simd": f"{HOST} . cpu/tuning.h cpu/rows",
    "host/cpu/prepare": f"{HOST} . cpu/tuning.h cpu/rows cpu/simd",
    "host/cpu/merge": f"{HOST} . cpu/tuning.h cpu/rows cpu/simd cpu/prepare",
    "host/cpu/finish": f"{HOST} . cpu/tuning.h cpu/rows cpu/simd cpu/prepare cpu/merge",
    "host/cpu": f"{HOST} . cpu/tuning.h cpu/rows cpu/simd cpu/prepare cpu/merge cpu/finish",
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
    "service/tasks": "rounds admission store base",
    "service/codec": "tasks streams rounds auth admission store base",
    "service/certificates": "rounds auth admission store base",
    "service/handlers": "codec streams rounds tasks auth admission store base",
    "service/server_context.h": "handlers store tasks rounds net auth admission base",
    "service/gateway": "server_context.h handlers codec streams rounds tasks net auth admission base",
    "service/grpc": "server_context.h handlers codec streams tasks rounds net auth admission store base",
}
INNER_FOLDERS = {
    folder: [f"{folder.partition('/')[0]}/{name}".removesuffix("/.") for name in names.split()]
    for folder, names in INNER.items()
}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
# What must name a stream, up to the end of the statement, and what works on the default one whatever it says.
STREAM_USE = re.compile(
    r"<<<.*?>>>|\b(?:cudaMemcpyAsync|cudaMemsetAsync|cudaEventRecord|cub::Device\w+::\w+)\s*\([^;]*;", re.S
)
STREAM = re.compile(r"stream(?!\w*(?:Default|Legacy))|\blane\b", re.IGNORECASE)
SYNCHRONOUS_COPY = re.compile(r"\bcuda(?:Memcpy|Memcpy2D|Memset)\s*\(")
CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|elif)\b.*CUDA.*", re.MULTILINE)
RAW_ALLOCATION = re.compile(r"\bcuda(?:Malloc|Free|HostAlloc)\w*\s*\(")
CPP_RANDOMNESS = re.compile(r"std::random_device|(?<![\w:.>])s?rand\s*\(")


class Finding(NamedTuple):
    """One breach of a rule, at one line."""

    path: str
    line: int
    rule: str
    message: str


def read_sources(root: Path) -> dict[str, str]:
    """Our C++ and CUDA files, by their path below root: what git knows or would add."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    ours = sorted(name for name in names if Path(name).suffix in CPP_SUFFIXES and (root / name).is_file())
    return {name: (root / name).read_text(encoding="utf-8") for name in ours}


def without_comments(text: str) -> str:
    """C++ text with comments and string contents blanked, so that positions and lines stay."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    return token.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def includes(text: str) -> Iterator[tuple[int, str]]:
    """The line numbers and targets of all #includes."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1)


def kernel_files(sources: dict[str, str]) -> set[str]:
    """The .cu files and the headers of ours that they reach."""
    reached: set[str] = set()
    pending = [path for path in sources if Path(path).suffix in KERNEL_SUFFIXES]
    while pending:
        path = pending.pop()
        if path in reached:
            continue
        reached.add(path)
        pending += [target for _, target in includes(sources[path]) if target in sources]
    return reached


def check_includes(sources: dict[str, str]) -> Iterator[Finding]:
    """The arrows between modules."""
    kernels = kernel_files(sources)
    for path, text in sources.items():
        module = Path(path).parts[0]
        row = "kernel" if path in kernels else module
        for line, target in includes(text):
            if row in MODULES:
                if not any(re.fullmatch(pattern, target) for pattern in MODULES[row]):
                    yield Finding(path, line, "include", f"{row} files may not include {target}")
            elif module == "service" and path != "service/main.cc" and re.fullmatch(f"cuda/.*|{CUDA}", target):
                yield Finding(path, line, "include", f"only service/main.cc may include {target}")
            elif module not in OUTER_MODULES and target.split("/")[0] in OUTER_MODULES:
                yield Finding(path, line, "include", f"{module} files may not include {target}")


def inner_folder(path: str) -> str | None:
    """The folder of INNER_FOLDERS that a file is in, or None."""
    candidates = [path, *(parent.as_posix() for parent in Path(path).parents)]
    return next((folder for folder in candidates if folder in INNER_FOLDERS), None)


def check_inner_includes(sources: dict[str, str]) -> Iterator[Finding]:
    """The arrows between the folders of a module: each may include itself and what INNER_FOLDERS lists."""
    for path, text in sources.items():
        folder = inner_folder(path)
        if folder is None:
            continue
        for line, target in includes(text):
            if target not in sources or Path(target).parts[0] != Path(path).parts[0]:
                continue
            other = inner_folder(target) or Path(target).parts[0]
            if other != folder and other not in INNER_FOLDERS[folder]:
                yield Finding(path, line, "inner-include", f"{folder} files may not include {target}")


def check_habits(path: str, text: str) -> Iterator[Finding]:
    """The habits of C++ and CUDA files."""
    code = without_comments(text)

    def found(rule: str, pattern: re.Pattern[str]) -> Iterator[tuple[Finding, str]]:
        for match in pattern.finditer(code):
            line = code.count("\n", 0, match.start()) + 1
            yield Finding(path, line, rule, " ".join(match.group().split())[:60]), match.group()

    yield from (finding for finding, use in found("default-stream", STREAM_USE) if not STREAM.search(use))
    yield from (finding for finding, _ in found("default-stream", SYNCHRONOUS_COPY))
    if Path(path).suffix not in KERNEL_SUFFIXES:
        yield from (finding for finding, _ in found("conditional", CONDITIONAL))
    if path != "cuda/device/cuda_device.cc":
        yield from (finding for finding, _ in found("raw-allocation", RAW_ALLOCATION))
    yield from (finding for finding, _ in found("randomness", CPP_RANDOMNESS))


def main() -> int:
    """Runs the command; returns its exit status."""
    sources = read_sources(Path(__file__).resolve().parent.parent)
    findings = [*check_includes(sources), *check_inner_includes(sources)]
    findings += [finding for path, text in sources.items() for finding in check_habits(path, text)]
    lines = {path: text.splitlines() for path, text in sources.items()}
    findings = [each for each in findings if f"allow({each.rule}): " not in lines[each.path][each.line - 1]]
    for path, line, rule, message in findings:
        print(f"{path}:{line}: {rule}: {message} ({RULES[rule]})")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
