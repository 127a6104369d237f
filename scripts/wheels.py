#!/usr/bin/env python3
"""Makes the platform wheels: the client, the engine in process, the server and the load generator, in one file each.

  scripts/wheels.py --client CLIENT.whl --build BUILD --out FOLDER [--arch aarch64] [--python PYTHON ...]
  scripts/wheels.py --build BUILD --out FOLDER                    # the engine alone, as a file for each Python
  scripts/wheels.py --cuda libsparseagg_cuda.so --out FOLDER

CLIENT.whl is the wheel of the client alone (`make wheels`). BUILD is a build folder, named as its preset, whose
programs need no library but libc's. One build there compiles the libraries once, then the programs and the binding: for
each Python up to 3.11, and once by the stable ABI for 3.12 and all later. Without --python: each of Python 3.9 to 3.12
that is found, as pythonX.Y on PATH or below ~/.pyenv/versions, and has its headers; those of x86-64 serve for aarch64,
too. Prints the wheels, with their sizes, and the seconds that this took.

With --cuda: the wheel sparseagg-cuda13 instead, the library with the CUDA engine that client and server load at run
time. Fails where a wheel is less portable than its name says, or too large.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
MINORS = range(9, 13)
# What a wheel has of the Python that it is for: "cp39-cp39" or "cp312-abi3", the engine's suffix, and headers.
Python = tuple[str, str, str]
START = time.monotonic()
# What they are linked against (cmake/static.cmake): `auditwheel show` must find no newer symbol.
LIBC = (2, 28)
MAX_MB = 30
MAX_CUDA_MB = 60
PROGRAMS = {
    "sparseagg-server": "service/sparseagg-server",
    "sparseagg-loadgen": "tools/loadgen/sparseagg-loadgen",
}
# What was linked in comes with its licence, from these Debian packages; CUDA's from the toolkit.
CUDA_LICENCES = ("libabsl-dev", "libhwy-dev", "libsodium-dev", "libstdc++6", "libtbb-dev", "libxxhash-dev")
LICENCES = (REPOSITORY / "scripts" / "linked_packages.txt").read_text(encoding="utf-8").split()


def fail(text: str) -> None:
    """Ends the command."""
    raise SystemExit(f"wheels: {text}")


def spent() -> str:
    """The time since the start: of the wall, and of processors."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return f"{time.monotonic() - START:.0f} s, {children.ru_utime + children.ru_stime:.0f} s of processors"


def said(*command: str | Path, cwd: Path | None = None) -> str:
    """Runs a command and returns what it prints; its errors go to standard error, and end this one."""
    done = subprocess.run([str(part) for part in command], check=False, stdout=subprocess.PIPE, text=True, cwd=cwd)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))} ended with status {done.returncode}:\n{done.stdout}")
    return done.stdout.strip()


def described(python: Path) -> Python | None:
    """Asks a Python what it is; None if it does not run, or has no headers."""
    script = (
        "import os, sys, sysconfig; headers = sysconfig.get_paths()['include']; os.stat(headers + '/Python.h')\n"
        "print(sys.version_info[1], sysconfig.get_config_var('EXT_SUFFIX'), headers, sep='\\n')"
    )
    done = subprocess.run([python, "-c", script], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        return None
    minor, suffix, headers = done.stdout.splitlines()
    if int(minor) >= 12:
        return "cp312-abi3", ".abi3.so", headers
    return f"cp3{minor}-cp3{minor}", suffix, headers


def find_pythons() -> list[Python]:
    """One for each version of Python that is here with its headers."""
    found = []
    for minor in MINORS:
        name = f"python3.{minor}"
        candidates = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}"), reverse=True)
        on_path = [Path(path) for path in [shutil.which(name)] if path]
        found += [python for python in map(described, on_path + candidates) if python is not None][:1]
    return found


def build_all(pythons: list[Python], build: Path, output: Path) -> None:
    """Builds the programs, and into ``output`` the extension for each Python."""
    headers = ";".join(f"{suffix}={folder}" for _, suffix, folder in pythons)
    said(
        *("cmake", "--preset", build.name, "-B", build, "-DSPARSEAGG_PYTHON=ON"),
        *(f"-DSPARSEAGG_PYTHON_OUTPUT={output}", f"-DSPARSEAGG_PYTHON_HEADERS={headers}"),
        f"-DPython_EXECUTABLE={sys.executable}",
        cwd=REPOSITORY,
    )
    targets = ["sparseagg_python", *(Path(path).name for path in PROGRAMS.values())]
    # How much of it is done, and the seconds so far.
    environment = {**os.environ, "NINJA_STATUS": "wheels: %f of %t, %e s: "}
    done = subprocess.run(["cmake", "--build", build, "--target", *targets], check=False, env=environment)
    if done.returncode != 0:
        fail(f"the build ended with status {done.returncode}")


def platform_wheel(client: Path, engine: Path, programs: list[Path], tag: str, out: Path) -> Path:
    """Adds the engine and the programs to the client's wheel; returns the new one."""
    with tempfile.TemporaryDirectory() as scratch:
        said(sys.executable, "-m", "wheel", "unpack", "-d", scratch, client)
        (folder,) = Path(scratch).iterdir()
        package = folder / "sparseagg"
        (package / "_no_engine.txt").unlink(missing_ok=True)
        shutil.copy2(engine, package)
        (package / "bin").mkdir()
        for program in programs:
            shutil.copy2(program, package / "bin")
        (info,) = folder.glob("*.dist-info")
        (info / "licenses").mkdir(exist_ok=True)
        for debian in LICENCES:
            shutil.copy(Path("/usr/share/doc", debian, "copyright"), info / "licenses" / debian)
        about = (info / "WHEEL").read_text(encoding="utf-8")
        about = re.sub(r"(?m)^Root-Is-Purelib: .*$", "Root-Is-Purelib: false", about)
        about = re.sub(r"(?m)^Tag: .*$", f"Tag: {tag}", about)
        (info / "WHEEL").write_text(about, encoding="utf-8")
        said(sys.executable, "-m", "wheel", "pack", "-d", out, folder)
    wheel: Path = out / client.name.replace("py3-none-any", tag)
    return wheel


def cuda_wheel(library: Path, tag: str, out: Path) -> Path:
    """Makes the wheel of the CUDA engine from a copy of its folder, which stays as it is; returns the wheel."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "cuda")
        shutil.copytree(REPOSITORY / "python" / "cuda", source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        (source / "licences").mkdir()
        shutil.copy(REPOSITORY / "LICENSE", source / "licences" / "LICENSE")
        for debian in CUDA_LICENCES:
            shutil.copy(Path("/usr/share/doc", debian, "copyright"), source / "licences" / debian)
        with (source / "pyproject.toml").open("a", encoding="utf-8") as project:
            project.write('\n[tool.setuptools]\nlicense-files = ["licences/*"]\n')
        variables = (f"SPARSEAGG_CUDA_LIBRARY={library}", f"SPARSEAGG_CUDA_PLATFORM={tag}")
        said("env", *variables, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, source)
    (wheel,) = out.glob(f"sparseagg_cuda13-*-py3-none-{tag}.whl")
    return wheel


def check(wheel: Path, max_mb: int = MAX_MB) -> None:
    """Fails unless the wheel is as portable as its name says, and small enough."""
    report = " ".join(said(sys.executable, "-m", "auditwheel", "show", wheel).split())
    found = re.search(r'following platform tag: "manylinux_(\d+)_(\d+)_', report)
    if found is None or (int(found[1]), int(found[2])) > LIBC:
        fail(f"{wheel.name} is not as portable as its name says: {report}")
    if "-abi3-" in wheel.name:
        said(sys.executable, "-m", "abi3audit", "--strict", wheel)
    if wheel.stat().st_size > max_mb * 1e6:
        fail(f"{wheel.name} has {wheel.stat().st_size / 1e6:.1f} MB, more than {max_mb}")
    print(f"{wheel}  {wheel.stat().st_size / 1e6:.1f} MB")


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", type=Path)
    parser.add_argument("--build", type=Path)
    parser.add_argument("--cuda", type=Path)
    parser.add_argument("--arch", default=os.uname().machine)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--python", type=Path, action="append")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    platform = f"manylinux_{LIBC[0]}_{LIBC[1]}_{arguments.arch}"
    strip = "strip" if arguments.arch == os.uname().machine else f"{arguments.arch}-linux-gnu-strip"
    if arguments.cuda is not None:
        check(cuda_wheel(arguments.cuda.resolve(), platform, out), MAX_CUDA_MB)
        return 0
    if arguments.build is None:
        parser.error("--build or --cuda is needed")
    build = arguments.build.resolve()
    named = map(described, arguments.python or [])
    pythons = [python for python in named if python is not None] if arguments.python else find_pythons()
    pythons = [(tag, suffix.replace(os.uname().machine, arguments.arch), headers) for tag, suffix, headers in pythons]
    if len(pythons) < len(arguments.python or [""]):
        fail("no Python from 3.9 to 3.12 with its headers; --python names one")
    if arguments.client is None:
        build_all(pythons, build, out)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        # Not in the temporary folder itself: a path that is new each time would have everything linked again.
        engines = build / "wheel-engines"
        build_all(pythons, build, engines)
        print(f"wheels: built after {spent()}", flush=True)
        programs = [Path(folder, name) for name in PROGRAMS]
        for program in programs:
            said(strip, "-o", program, build / PROGRAMS[program.name])

        def packed(python: Python) -> Path:
            tag, suffix, _ = python
            engine = Path(folder, f"_engine{suffix}")
            said(strip, "-o", engine, engines / engine.name)
            return platform_wheel(arguments.client, engine, programs, f"{tag}-{platform}", out)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            wheels = list(pool.map(packed, pythons))
    for wheel in wheels:
        check(wheel)
    print(f"wheels: {len(wheels)} after {spent()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
