"""Makes PyPI's torch importable on a machine without CUDA's libraries.

PyPI's wheel for x86-64 Linux is linked against CUDA, whose libraries are gigabytes that the CPU never calls.
Here they are replaced by stand-ins of a few kilobytes: libraries of the same names, whose functions do nothing. Needs a
C compiler and binutils.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import tempfile

CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)\w*\.so[.\d]*")
CUDA_SYMBOL = re.compile(r"(__cuda|cu|nv|nccl)\w+")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _needed(library: pathlib.Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", _run("readelf", "-dW", str(library))))


def _versions(library: pathlib.Path) -> dict[str, set[str]]:
    """Symbol versions that a library asks of others, by the other's name."""
    versions: dict[str, set[str]] = {}
    file = ""
    for line in _run("readelf", "-VW", str(library)).splitlines():
        if match := re.search(r"File: (\S+)", line):
            file = match.group(1)
        elif match := re.search(r"Name: (\S+)", line):
            versions.setdefault(file, set()).add(match.group(1))
    return versions


def _undefined(library: pathlib.Path) -> set[tuple[str, str]]:
    """(symbol, version) that a library wants from others; the version may be empty."""
    lines = _run("nm", "-D", "--undefined-only", str(library)).splitlines()
    wanted = (line.split()[-1].partition("@") for line in lines)
    return {(name, version) for name, _, version in wanted}


def write_stand_ins(torch_folder: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Writes stand-ins of the CUDA libraries that this torch needs into a folder, and returns their names."""
    libraries = sorted((torch_folder / "lib").glob("*.so*"))
    own = {library.name for library in libraries}
    missing = {name for library in libraries for name in _needed(library) if CUDA_LIBRARY.fullmatch(name)} - own
    versions: dict[str, set[str]] = {name: set() for name in missing}
    symbols: set[tuple[str, str]] = set()
    for library in libraries:
        for name, wanted in _versions(library).items():
            if name in missing:
                versions[name] |= wanted
        symbols |= _undefined(library)
    folder.mkdir(parents=True, exist_ok=True)
    unversioned = {name for name, version in symbols if not version and CUDA_SYMBOL.fullmatch(name)}
    for position, name in enumerate(sorted(missing)):
        nodes = {version: {s for s, v in symbols if v == version} for version in versions[name]}
        _compile(folder / name, nodes, unversioned if position == 0 else set())
    return sorted(missing)


def _compile(path: pathlib.Path, nodes: dict[str, set[str]], unversioned: set[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source, script = pathlib.Path(scratch, "stand_in.c"), pathlib.Path(scratch, "stand_in.map")
        names = sorted(unversioned.union(*nodes.values()) if nodes else unversioned)
        source.write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in names), encoding="utf-8")
        link = [f"-Wl,-soname,{path.name}"]
        if nodes:
            blocks = [
                f"{version} {{ global: {' '.join(f'{s};' for s in sorted(inside))} }};"
                for version, inside in nodes.items()
            ]
            script.write_text("\n".join(blocks), encoding="utf-8")
            link.append(f"-Wl,--version-script={script}")
        _run("cc", "-w", "-shared", "-fPIC", "-fno-builtin", str(source), "-o", str(path), *link)
