#!/usr/bin/env python3
"""Makes stubs of the libraries of an older libc, which a linker takes for it.

    stubs.py COMPILER FOLDER 2.28

A program that is linked against this machine's libc asks for the newest version of each function, which older systems
do not have. glibc keeps the older versions of a function beside the new one, so that its library tells what an older
one had: the stubs have, for each symbol, the newest version up to the one that is given, and no code. What did not
exist at all by then (`arc4random`) is missing, and comes from old_libc.cc. Until 2.34 the functions of threads and of
dynamic loading were in libraries of their own, which newer libcs still have, empty.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LIBRARIES = {  # by the first that matches
    r"(__)?pthread_|sem_": "libpthread.so.0",
    r"dl(open|m?close|v?sym|error|addr1?|info|mopen)$": "libdl.so.2",
    r"(shm|mq|aio|lio|timer)_": "librt.so.1",
}
SYMBOL = re.compile(
    r"^ *\d+: \S+ +(\d+) (FUNC|IFUNC|OBJECT) +(?:GLOBAL|WEAK) +DEFAULT +\d+ (\w+)@@?GLIBC_([\d.]+)", re.MULTILINE
)
Version = tuple[int, ...]


def main() -> None:
    """Runs the command."""
    compiler, folder, newest = sys.argv[1], Path(sys.argv[2]), numbers(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, tuple[Version, str, int]]] = {name: {} for name in LIBRARIES.values()}
    for library in ("libc.so.6", "libm.so.6"):
        path = said(compiler, f"-print-file-name={library}")
        for size, kind, name, version in SYMBOL.findall(said("readelf", "-W", "--dyn-syms", path)):
            owner = next((owner for pattern, owner in LIBRARIES.items() if re.match(pattern, name)), library)
            before = found.setdefault(owner, {}).get(name)
            if numbers(version) <= newest and (before is None or before[0] < numbers(version)):
                found[owner][name] = (numbers(version), kind, int(size))
    for library, symbols in found.items():
        write(compiler, folder, library, symbols)
    # What -lc and -lm find. libc's archive has what is never in its shared library.
    archive = said(compiler, "-print-file-name=libc_nonshared.a")
    others = " ".join(str(folder / owner) for owner in LIBRARIES.values())
    # aarch64 has the guard of stacks in the loader, at the version of all that it had at first.
    loader = said(compiler, "-print-file-name=ld-linux-aarch64.so.1")
    if "/" in loader:
        others += f" {loader}"
    group = f"GROUP ( {folder}/libc.so.6 AS_NEEDED ( {others} ) {archive} )\n"
    (folder / "libc.so").write_text(group, encoding="ascii")
    (folder / "libm.so").write_text(f"GROUP ( {folder}/libm.so.6 )\n", encoding="ascii")


def numbers(version: str) -> Version:
    """Returns "2.28" as numbers, which compare."""
    return tuple(map(int, version.split(".")))


def said(*command: str) -> str:
    """Runs a command and returns what it prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write(compiler: str, folder: Path, library: str, symbols: dict[str, tuple[Version, str, int]]) -> None:
    """Makes one stub, with an empty function or a variable of the same size for each symbol."""
    lines, nodes = [], dict[Version, str]()
    for name, (version, kind, size) in sorted(symbols.items()):
        nodes[version] = nodes.get(version, "") + f" {name};"
        section, type_of = (".bss", "object") if kind == "OBJECT" else (".text", "function")
        lines.append(f"{section}\n.globl {name}\n.type {name},%{type_of}\n.size {name},{size}\n{name}: .zero {size}")
    source, script = folder / "stub.s", folder / "stub.map"
    source.write_text("\n".join(lines) + "\n", encoding="ascii")
    versions = (f"GLIBC_{'.'.join(map(str, version))} {{ global:{nodes[version]} }};\n" for version in sorted(nodes))
    script.write_text("".join(versions), encoding="ascii")
    options = [f"-Wl,-soname,{library}", f"-Wl,--version-script={script}", "-Wl,-z,noexecstack"]
    said(compiler, "-shared", "-nostdlib", *options, str(source), "-o", str(folder / library))


if __name__ == "__main__":
    main()
