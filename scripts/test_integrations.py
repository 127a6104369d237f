#!/usr/bin/env python3
"""Runs the tests of tests/integrations, each folder in an environment of its own with the real packages from PyPI.

    test_integrations.py [FOLDER …] [-- PYTEST_ARGUMENTS]

The environment of a folder is .venv-integrations/FOLDER, with what the folder's requirements.txt names and this
repository's package. A requirement that cannot be installed is reported with its error, and the folder's tests are
skipped. Ends with 1 if a test fails. SPARSEAGG_SERVER names the server's program.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TESTS = REPOSITORY / "tests" / "integrations"
NO_TESTS = 5  # pytest's exit code where all modules are skipped or none has a test
# PyPI's torch brings gigabytes of CUDA libraries; bench/peers has the way around them.
TORCH = "import sys; sys.path.insert(0, sys.argv[1]); import install; install.install_torch()"


def requirements_of(folder: Path) -> list[str]:
    """The lines of a folder's requirements.txt, without comments."""
    lines = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.partition("#")[0].strip()]


def install(python: Path, requirement: str) -> str | None:
    """Installs one requirement; returns the error, or None."""
    if requirement == "torch":
        command = [str(python), "-c", TORCH, str(REPOSITORY / "bench" / "peers")]
    else:
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirement.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"ended with {done.returncode}"])[-1]


def prepare(folder: Path, environment: Path) -> str | None:
    """Makes the environment; returns what cannot be installed and why, or None."""
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    requirements = requirements_of(folder)
    stamp = environment / "installed.txt"
    if not stamp.exists() or stamp.read_text(encoding="utf-8").splitlines() != requirements:
        for requirement in requirements:
            error = install(python, requirement)
            if error is not None:
                return f"{requirement} cannot be installed: {error}"
        stamp.write_text("".join(f"{requirement}\n" for requirement in requirements), encoding="utf-8")
    package = ["-e", str(REPOSITORY / "python")]
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *package]
    # The engine is built in place, by `make build`.
    subprocess.run(command, check=True, env={**os.environ, "SPARSEAGG_EXTENSION": "off"})
    return None


def run(folder: Path, environment: Path, arguments: list[str]) -> int:
    """Runs the tests of a folder; returns pytest's exit code."""
    variables = dict(os.environ)
    stand_ins = environment / "torch-stand-ins"
    if stand_ins.is_dir():
        variables["LD_LIBRARY_PATH"] = str(stand_ins)
    command = [str(environment / "bin" / "python"), "-m", "pytest", str(folder), *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=variables, check=False).returncode


def main() -> int:
    """Runs the folders, and prints one line for each at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="of tests/integrations; all by default")
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, pytest_arguments = parser.parse_args(arguments[:split]).folders, arguments[split + 1 :]
    known = sorted(path.parent for path in TESTS.glob("*/requirements.txt"))
    unknown = set(names) - {path.name for path in known}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such folder; known: {', '.join(path.name for path in known)}")
    outcomes: dict[str, str] = {}
    for folder in known:
        if names and folder.name not in names:
            continue
        environment = REPOSITORY / ".venv-integrations" / folder.name
        print(f"== {folder.name}", flush=True)
        error = prepare(folder, environment)
        if error is not None:
            outcomes[folder.name] = f"not run: {error}"
            continue
        code = run(folder, environment, pytest_arguments)
        outcomes[folder.name] = {0: "passed", NO_TESTS: "no tests"}.get(code, f"FAILED ({code})")
    for name, outcome in outcomes.items():
        print(f"{name:12} {outcome}")
    return 1 if any(outcome.startswith("FAILED") for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
