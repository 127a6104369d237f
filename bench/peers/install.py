"""Installs each line of a file of requirements by itself into the environment that runs this: `install.py FILE`.

Writes `absent.json` into the environment: {requirement: reason}. The exit status is 1 if a line could not be installed.
Run again, it only does what is missing.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import torch_on_cpu

ENVIRONMENT = pathlib.Path(sys.prefix)
STAND_INS = ENVIRONMENT / "torch-stand-ins"
# What torch needs to be imported, without its CUDA libraries.
TORCH_NEEDS = "filelock typing-extensions sympy networkx jinja2 fsspec"
# Long enough for a slow line, and an end for a dead one.
TIMEOUT_S = 900


def pip(*arguments: str) -> None:
    """Runs pip; raises with its last words."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"pip ended with {done.returncode}")


def install_torch() -> None:
    """Installs torch's wheel without the gigabytes that it depends on and does not use here."""
    pip("--no-deps", "torch")
    pip(*TORCH_NEEDS.split())
    package = importlib.util.find_spec("torch")
    if package is None or package.origin is None:
        raise RuntimeError("torch was installed, but is not to be found")
    torch_on_cpu.write_stand_ins(pathlib.Path(package.origin).parent, STAND_INS)


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
