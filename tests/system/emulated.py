#!/usr/bin/env python3
"""Runs the wheel for aarch64 by qemu, and compares its results with those of this machine, bit for bit.

    python tests/system/emulated.py FOLDER [--sysroot build/aarch64] [--server PATH] [--cases 200]

FOLDER has the wheels of `make wheels ARCH=aarch64`; the one for the sysroot's Python is taken. The golden cases go from
this Python to the emulated server. The README's example and random rounds and streams run in the emulated Python, by
the engine in process and by a client of the emulated server, and again on this machine, which has an engine and a
server (PATH) of its own. Each case is also compared with the reference. Prints the hashes of both machines, and exits 1
where they differ; else writes what was run into docs/compatibility-table.json.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import itertools
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TESTS = [str(REPOSITORY / "tests" / name) for name in ("data", "python", "support")]
sys.path[:0] = [*TESTS, str(REPOSITORY / "scripts")]
ON_THIS_MACHINE = str(REPOSITORY / "build/dev/service/sparseagg-server")


def print_hashes(cases: int) -> None:
    """Prints a line for each case: its seed, and a hash of what the engine and SPARSEAGG_SERVER both answer."""
    import numpy as np
    import sparseagg as sa
    from check_wheel import readme
    from random_cases import random_round, random_stream
    from real_server import ServerProcess
    from test_differential import OneByOne, by_round, by_stream

    exec(readme("python"))  # prints the first lines
    with tempfile.TemporaryDirectory() as scratch:
        server = ServerProcess(pathlib.Path(scratch, "log"))
        with sa.Client(":memory:") as engine, sa.Client(server.address) as client:
            for seed in range(cases):
                rng = np.random.default_rng([20261130, seed])
                case = random_stream(rng) if rng.random() < 0.4 else random_round(rng)
                run = by_round if case.options is None else by_stream
                found, of_server = (str(run(each, case, OneByOne(rng))) for each in (engine, client))
                assert found == of_server, (seed, found, of_server)
                print(seed, hashlib.blake2b(found.encode(), digest_size=8).hexdigest(), flush=True)
        assert server.stop() == 0


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--sysroot", type=pathlib.Path, default=REPOSITORY / "build/aarch64")
    parser.add_argument("--server", default=ON_THIS_MACHINE)
    parser.add_argument("--cases", type=int, default=200)
    arguments = parser.parse_args()
    from test_matrix import write_table

    python = (arguments.sysroot / "usr/bin/python3").resolve()
    version = python.name[len("python") :]
    tag = "cp" + version.replace(".", "")
    (wheel,) = arguments.folder.resolve().glob(f"sparseagg-*-{tag}-{tag}-*_aarch64.whl")
    qemu = ["qemu-aarch64-static", "-L", str(arguments.sysroot.resolve())]
    with tempfile.TemporaryDirectory() as scratch:
        site, server = pathlib.Path(scratch, "site"), pathlib.Path(scratch, "server")
        of_wheel = ["--only-binary", ":all:", "--python-version", version, "--target", site, wheel]
        platforms = [f"--platform=manylinux_2_{libc}_aarch64" for libc in range(17, 29)]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", *platforms, *of_wheel, "ml_dtypes", "pytest"], check=True
        )
        server.write_text(f'#!/bin/sh\nexec {" ".join(qemu)} {site}/sparseagg/bin/sparseagg-server "$@"\n')
        server.chmod(0o755)
        emulated = {**os.environ, "SPARSEAGG_SERVER": str(server)}
        golden = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/python/wire/test_golden.py"]
        subprocess.run(golden, check=True, cwd=REPOSITORY, env=emulated)
        command = [__file__, str(arguments.folder), "--cases", str(arguments.cases)]
        paths = os.pathsep.join([str(site), *TESTS])
        lines = []
        for prefix, environment in (
            ([sys.executable], {**os.environ, "SPARSEAGG_SERVER": arguments.server}),
            ([*qemu, str(python)], {**emulated, "PYTHONPATH": paths, "PYTHONNOUSERSITE": "1"}),
        ):
            environment["SPARSEAGG_TEST_HASHES"] = "1"
            done = subprocess.run([*prefix, *command], check=True, stdout=subprocess.PIPE, text=True, env=environment)
            lines.append(done.stdout.splitlines())
    hashes = [hashlib.blake2b("\n".join(each).encode(), digest_size=8).hexdigest() for each in lines]
    for here, there in [(platform.machine(), "aarch64"), *itertools.zip_longest(*lines), hashes]:
        print(f"{here!s:32} {there}")
    if hashes[0] != hashes[1]:
        print("emulated: the results differ")
        return 1
    emulator = subprocess.run([qemu[0], "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {"wheel": wheel.name, "machine": emulator.splitlines()[0], "python": version, "cases": arguments.cases}
    found |= {"hash": hashes[1], "hash_of_x86_64": hashes[0], "date": datetime.date.today().isoformat()}
    write_table(aarch64=found)
    return 0


if __name__ == "__main__":
    if "SPARSEAGG_TEST_HASHES" in os.environ:
        print_hashes(int(sys.argv[-1]))
        sys.exit()
    sys.exit(main())
