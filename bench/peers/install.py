"""Installs each line of a file of requirements by itself into the environment that runs this: `install.py FILE`.

Writes `absent.json` into the environment: {requirement: reason}. The exit status is 1 if a line could not be installed.
Run again, it only does what is missing.

PyPI's torch for x86-64 Linux is linked against CUDA, whose libraries are gigabytes that the CPU never calls. It is
installed without them: stand-ins of a few kilobytes, libraries of the same names whose functions do nothing, make it
importable. They need a C compiler and binutils.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ENVIRONMENT = pathlib.Path(sys.prefix)
STAND_INS = ENVIRONMENT / "torch-stand-ins"
# What torch needs to be imported, without its CUDA libraries.
TORCH_NEEDS = "filelock typing-extensions sympy networkx jinja2 fsspec"
CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)\w*\.so[.\d]*")
CUDA_SYMBOL = re.compile(r"(__cuda|cu|nv|nccl)\w+")
# Long enough for a slow line, and an end for a dead one.
TIMEOUT_S = 900


def pip(*arguments: str) -> None:
    """Runs pip; raises with its last words."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"pip ended with {done.returncode}")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def install_torch() -> None:
    """Installs torch's wheel without the gigabytes that it depends on and does not use here."""
    pip("--no-deps", "torch")
    pip(*TORCH_NEEDS.split())
    package = importlib.util.find_spec("torch")
    if package is None or package.origin is None:
        raise RuntimeError("torch was installed, but is not to be found")
    write_stand_ins(pathlib.Path(package.origin).parent)


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


def write_stand_ins(torch_folder: pathlib.Path) -> None:
    """Writes stand-ins of the CUDA libraries that this torch needs into STAND_INS."""
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
    STAND_INS.mkdir(exist_ok=True)
    unversioned = {name for name, version in symbols if not version and CUDA_SYMBOL.fullmatch(name)}
    for position, name in enumerate(sorted(missing)):
        nodes = {version: {s for s, v in symbols if v == version} for version in versions[name]}
        _compile(STAND_INS / name, nodes, unversioned if position == 0 else set())


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


def main() -> int:
    """Installs every line of the file."""
    absent: dict[str, str] = {}
    for line in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        names = line.partition("#")[0].split()
        if not names:
            continue
        try:
            if names == ["torch"]:
                install_torch()
            else:
                pip(*names)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            absent[names[0]] = str(error)
            print(f"install: {' '.join(names)} is absent: {error}", file=sys.stderr)
    (ENVIRONMENT / "absent.json").write_text(json.dumps(absent, indent=1) + "\n", encoding="utf-8")
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
