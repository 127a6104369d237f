#!/usr/bin/env python3
"""Installs a platform wheel in a bare environment and uses it, as a machine without compiler and network would.

  scripts/check_wheel.py FOLDER [--cuda WHEEL]

FOLDER has the wheels of `make wheels`; the one for this Python is taken, and what it needs (NumPy, gRPC, protobuf) is
downloaded into FOLDER/house first. Then everything runs without network: pip may use that folder alone, and where the
system allows it, the commands get a network namespace that has the loopback only. PATH has nothing but the new
environment.

Checks that the installation brings a server that merges a round over a real socket, the engine in process, and the
commands; prints the seconds from the start of the installation to the first merged round. None is too many, since the
machine may be busy.

With --cuda: then the wheel of `make cuda-wheel` is installed beside it, as sparseagg[cuda13]. Where there is no usable
GPU, all of that works as before, and both `device="cuda"` and `sparseagg doctor` say what is missing.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# A network namespace that has the loopback only.
WITHOUT_NETWORK = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
FIRST_ROUND = """
import numpy as np
import sparseagg as sa

spec = sa.RoundSpec([sa.TensorSpec("t", dtype="float32", num_rows=10, row_width=2)], op="sum")
updates = {"a": (np.array([7, 9]), np.float32([[1, 2], [3, 4]])), "b": (np.array([9]), np.float32([[5, 8]]))}
wanted = [[1, 2], [8, 12]]

def check(address):
    with sa.Client(address) as client:
        opened = client.create_round(spec)
        for name, update in updates.items():
            opened.submit(name, {"t": update})
        result = opened.finish()["t"]
    assert result.keys.tolist() == [7, 9] and result.values.tolist() == wanted, (address, result)

with sa.Server() as server:
    check(server.address)
"""
# Behind it comes the example of the README, which prints what the README says.
THE_REST = """
check(":memory:")
check(":local:")
assert sa.aggregate(updates, spec)["t"].values.tolist() == wanted
"""
# Ends with what merged, or with the reason why the GPU did not.
ON_THE_GPU = """
try:
    print("GPU:", sa.aggregate(updates, spec, device="cuda").info.engine)
except sa.errors.UnavailableError as error:
    print("no GPU:", error)
"""
COMMANDS = (
    ("sparseagg", "doctor"),
    ("sparseagg", "server", "--version"),
    ("sparseagg-server", "--version"),
    ("sparseagg-loadgen", "--version"),
)


def readme(language: str) -> str:
    """The README's block in a language."""
    text = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    return text.partition(f"\n```{language}\n")[2].partition("```\n")[0]


def run(command: list[str], folder: Path, prefix: list[str]) -> str:
    """Runs a command with nothing in its environment but the folder; returns what it prints, or ends this one."""
    environment = ["env", "-i", "-C", str(folder), f"PATH={folder}/bare/bin", f"HOME={folder}"]
    done = subprocess.run([*prefix, *environment, *command], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"check_wheel: {' '.join(command)} failed:\n{done.stdout}")
    return done.stdout


def check_cuda(wheel: Path, folder: Path, prefix: list[str]) -> None:
    """Installs the CUDA engine beside the other wheel, and checks both."""
    python = str(folder / "bare/bin/python")
    pip = ["-m", "pip", "install", "-q", "--no-index", "--find-links", str(folder / "house"), "sparseagg[cuda13]"]
    run([python, *pip], folder, prefix)
    if run([python, str(folder / "rest.py")], folder, prefix) != readme("text"):
        raise SystemExit(f"check_wheel: with {wheel.name}, the README's example printed something else")
    said = run([python, str(folder / "gpu.py")], folder, prefix)
    doctor = run(["/bin/sh", "-c", "sparseagg doctor; echo status $?"], folder, prefix)
    print(f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB: {said}{doctor}", end="", flush=True)
    if said.startswith("GPU: cuda ("):
        return
    if "device='cuda' needs the wheel that `make cuda-wheel` builds" not in said or not doctor.endswith("status 1\n"):
        raise SystemExit("check_wheel: that names neither a GPU nor what it needs")


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cuda", type=Path)
    arguments = parser.parse_args()
    version = "cp{0}{1}-cp{0}{1}".format(*sys.version_info) if sys.version_info < (3, 12) else "cp312-abi3"
    (wheel,) = arguments.folder.resolve().glob(f"sparseagg-*-{version}-*.whl")
    house = wheel.parent / "house"
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "-d", str(house), str(wheel)], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copytree(house, folder / "house")
        for each in filter(None, (wheel, arguments.cuda)):
            shutil.copy(each, folder / "house")
        (folder / "round.py").write_text(FIRST_ROUND, encoding="utf-8")
        (folder / "rest.py").write_text(FIRST_ROUND + THE_REST + readme("python"), encoding="utf-8")
        (folder / "gpu.py").write_text(FIRST_ROUND + ON_THE_GPU, encoding="utf-8")
        prefix = WITHOUT_NETWORK
        if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode != 0:
            print("this system does not let the network be taken away; pip may not use it all the same", flush=True)
            prefix = []
        new = str(folder / "bare/bin/python")
        begun = time.monotonic()
        run([sys.executable, "-m", "venv", str(folder / "bare")], Path("/"), prefix)
        pip = ["-m", "pip", "install", "-q", "--no-index", "--find-links", str(folder / "house"), "sparseagg"]
        run([new, *pip], folder, prefix)
        run([new, str(folder / "round.py")], folder, prefix)
        seconds = time.monotonic() - begun
        print(f"{wheel.name}: installed, and the first round merged, in {seconds:.1f} s", flush=True)
        if run([new, str(folder / "rest.py")], folder, prefix) != readme("text"):
            raise SystemExit("check_wheel: the README's example printed something else")
        for name, *rest in COMMANDS:
            run([str(folder / "bare/bin" / name), *rest], folder, prefix)
        if arguments.cuda is not None:
            check_cuda(arguments.cuda, folder, prefix)
    return 0


if __name__ == "__main__":
    sys.exit(main())
