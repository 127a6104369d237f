#!/usr/bin/env python3
"""Installs a wheel under every Python found, beside old and new versions of what it requires, and tries it.

  scripts/test_matrix.py WHEEL [--server PATH] [--only 3.11] [--protobuf 5]

For each Python 3.9 to 3.13 (of the PATH, or of pyenv), each protobuf of PROTOBUFS, and the oldest and the newest numpy
and grpcio that have wheels: makes a virtual environment, installs, and runs tests/python/matrix/smoke.py against one
server. The combinations run one after the other, in about half an hour; pip's cache saves a second run the downloads.

Keeps the results in docs/compatibility-table.json, and writes them as a table between the markers of
docs/compatibility.md. Earlier results of a wheel of the same name stay where a run leaves them out. A combination that
pip does not install has the last line of pip's reason. The exit status is 1 if an installed combination fails.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import email
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import sparseagg as sa

REPOSITORY = Path(__file__).resolve().parent.parent
SMOKE = REPOSITORY / "tests" / "python" / "matrix" / "smoke.py"
PAGE = REPOSITORY / "docs" / "compatibility.md"
TABLE = REPOSITORY / "docs" / "compatibility-table.json"
BEGIN, END = "<!-- matrix: begin; scripts/test_matrix.py writes this -->", "<!-- matrix: end -->"

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
# What pip is asked for, and gives the newest of.
PROTOBUFS = {
    "3.20": "protobuf>=3.20.3,<4",
    "4": "protobuf>=4,<5",
    "5": "protobuf>=5,<6",
    "6": "protobuf>=6,<7",
    "7": "protobuf>=7,<8",
}
AGES = ("oldest", "newest")
NEIGHBOURS = ("numpy", "grpcio")
SMOKE_TIMEOUT_S = 120
WORKS, FAILS, NO_INSTALL = "works", "fails", "does not install"


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a combination.

    Attributes:
        python: version of Python, as "3.11".
        protobuf: a key of PROTOBUFS.
        age: of numpy and grpcio: "oldest" or "newest".
        outcome: "works", "fails" or "does not install".
        reason: the last line that tells why it does not work.
        versions: what the smoke test printed: versions by name.
        date: of the run.
    """

    python: str
    protobuf: str
    age: str
    outcome: str
    reason: str
    versions: dict[str, str]
    date: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The combination."""
        return self.python, self.protobuf, self.age


def run(*command: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program without the variables that would show it other packages."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(command, capture_output=True, text=True, env=inherited, timeout=timeout)


def numbers(version: str) -> tuple[int, ...]:
    """Returns a version as numbers, to compare."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def last_line(text: str) -> str:
    """Returns the last line that says something, without pip's prefix."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].replace("ERROR: ", "") if lines else "no output"


def find_python(version: str) -> str | None:
    """Returns an interpreter of the version that can make environments: of the PATH, or the newest of pyenv."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), key=lambda path: numbers(str(path)))
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in [on_path, *map(str, reversed(of_pyenv))]:
        if candidate is None:
            continue
        done = run(candidate, "-c", code)  # a shim of pyenv fails where it stands for nothing
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


@contextlib.contextmanager
def virtual_environment(python: str) -> Iterator[str]:
    """Makes a virtual environment, yields its interpreter, and removes it."""
    with tempfile.TemporaryDirectory(prefix="sparseagg-matrix-") as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        yield str(Path(folder, "bin", "python"))


def pip_install(python: str, *requirements: str, dry: bool = False) -> str:
    """Installs wheels; returns the reason why it cannot, or "".

    Args:
        python: interpreter of the environment.
        requirements: for pip.
        dry: only try whether there are wheels, without those that they require.
    """
    options = ["-q", "--disable-pip-version-check", "--only-binary", ":all:"]
    if dry:
        options += ["--dry-run", "--no-deps", "--ignore-installed"]
    done = run(python, "-m", "pip", "install", *options, *requirements)
    return "" if done.returncode == 0 else last_line(done.stderr)


def first_that_installs(versions: Sequence[str], installs: Callable[[str], bool]) -> str | None:
    """Returns the oldest version that installs; None if the newest does not.

    Args:
        versions: ascending. From some version on there are wheels for an interpreter, so a bisection finds it.
        installs: whether a version does.
    """
    if not versions or not installs(versions[-1]):
        return None
    low, high = 0, len(versions) - 1  # versions[high] installs
    while low < high:
        middle = (low + high) // 2
        if installs(versions[middle]):
            high = middle
        else:
            low = middle + 1
    return versions[high]


def oldest_pin(python: str, name: str, bound: str) -> str:
    """Returns the requirement of the oldest version from ``bound`` on that has a wheel for the interpreter."""
    done = run(python, "-m", "pip", "index", "versions", name, "--disable-pip-version-check")
    match = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if match is None:
        raise SystemExit(f"test_matrix: pip lists no versions of {name}: {last_line(done.stderr)}")
    versions = [each for each in sorted(match.group(1).split(", "), key=numbers) if numbers(each) >= numbers(bound)]
    found = first_that_installs(versions, lambda version: not pip_install(python, f"{name}=={version}", dry=True))
    return f"{name}>={bound}" if found is None else f"{name}=={found}"


def bounds_of(wheel: Path) -> dict[str, str]:
    """Returns the lower bounds of what the wheel requires, by name."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    matches = [re.match(r"([\w-]+)>=([\d.]+)$", text) for text in metadata.get_all("Requires-Dist", [])]
    return {match.group(1): match.group(2) for match in matches if match}


def try_combination(python: str, requirements: Sequence[str], address: str) -> tuple[str, str, dict[str, str]]:
    """Installs and tries a combination; returns its outcome, the reason if it does not work, and its versions."""
    with virtual_environment(python) as inside:
        reason = pip_install(inside, *requirements)
        if reason:
            return NO_INSTALL, reason, {}
        try:
            done = run(inside, str(SMOKE), address, timeout=SMOKE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return FAILS, f"no end within {SMOKE_TIMEOUT_S} s", {}
        if done.returncode != 0:
            return FAILS, last_line(done.stderr), {}
        return WORKS, "", json.loads(last_line(done.stdout))


def run_matrix(wheel: Path, server: str, pythons: Sequence[str], protobufs: Sequence[str]) -> Iterator[Result]:
    """Runs the combinations, and yields their results; leaves out Pythons that are not there."""
    bounds = bounds_of(wheel)
    today = datetime.date.today().isoformat()
    with sa.Server(program=server) as running:
        for version in pythons:
            python = find_python(version)
            if python is None:
                print(f"Python {version}: not found", flush=True)
                continue
            with virtual_environment(python) as inside:
                pins = {"oldest": [oldest_pin(inside, name, bounds[name]) for name in NEIGHBOURS], "newest": []}
            for age in AGES:
                for protobuf in protobufs:
                    requirements = [str(wheel), PROTOBUFS[protobuf], *pins[age]]
                    outcome, reason, versions = try_combination(python, requirements, running.address)
                    print(f"Python {version}, protobuf {protobuf}, {age}: {outcome} {reason}".rstrip(), flush=True)
                    yield Result(version, protobuf, age, outcome, reason, versions, today)


def read_results(wheel: Path) -> list[Result]:
    """Returns the results kept, if they are of a wheel of this name."""
    if not TABLE.exists():
        return []
    kept = json.loads(TABLE.read_text(encoding="utf-8"))
    return [Result(**result) for result in kept["results"]] if kept["wheel"] == wheel.name else []


def write_results(wheel: Path, results: Sequence[Result]) -> None:
    """Writes the JSON file and the table of the page."""
    machine = f"{platform.system()} {platform.machine()}"
    rows = ",\n".join(json.dumps(dataclasses.asdict(each)) for each in results)
    head = f'"wheel": {json.dumps(wheel.name)}, "machine": {json.dumps(machine)}'
    TABLE.write_text(f'{{{head}, "results": [\n{rows}\n]}}\n', encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"test_matrix: {PAGE} lacks the markers {BEGIN} and {END}")
    PAGE.write_text(f"{before}{BEGIN}\n{table(wheel.name, machine, results)}{END}{after}", encoding="utf-8")


def table(wheel: str, machine: str, results: Sequence[Result]) -> str:
    """Returns the results as Markdown: a row for each Python and age that was tried, and the reasons of what failed."""
    by_key = {result.key: result for result in results}
    dates = sorted(result.date for result in results)
    period = dates[0] if dates[:1] == dates[-1:] else f"{dates[0]} to {dates[-1]}"
    lines = [
        f"`{wheel}` on {machine}, {period}; a cell has the version of protobuf that works, – was not tried.",
        "",
        "| Python | numpy, grpcio | " + " | ".join(f"protobuf {name}" for name in PROTOBUFS) + " |",
        "|---|---|" + "---|" * len(PROTOBUFS),
    ]
    reasons: list[str] = []
    for python in PYTHONS:
        for age in AGES:
            row = [by_key.get((python, protobuf, age)) for protobuf in PROTOBUFS]
            if not any(row):
                continue
            versions = next((each.versions for each in row if each is not None and each.versions), None)
            neighbours = ", ".join(versions[name] for name in NEIGHBOURS) if versions else age
            cells = [cell(result, reasons) for result in row]
            lines.append(f"| {python} | {neighbours} | " + " | ".join(cells) + " |")
    if reasons:
        lines += ["", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]
    return "\n".join(lines) + "\n"


def cell(result: Result | None, reasons: list[str]) -> str:
    """Returns the text of a cell; adds its reason to those below the table, each once."""
    if result is None:
        return "–"
    if result.outcome == WORKS:
        return result.versions["protobuf"]
    if result.reason not in reasons:
        reasons.append(result.reason)
    return f"{result.outcome} ({reasons.index(result.reason) + 1})"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    default = os.environ.get("SPARSEAGG_SERVER") or str(REPOSITORY / "build/dev/service/sparseagg-server")
    parser.add_argument("--server", default=default, help="sparseagg-server (%(default)s)")
    parser.add_argument("--only", choices=PYTHONS, help="a single Python")
    parser.add_argument("--protobuf", choices=PROTOBUFS, help="a single protobuf")
    arguments = parser.parse_args(argv)
    results = {result.key: result for result in read_results(arguments.wheel)}
    pythons = [arguments.only] if arguments.only else PYTHONS
    protobufs = [arguments.protobuf] if arguments.protobuf else list(PROTOBUFS)
    failed = False
    for result in run_matrix(arguments.wheel, arguments.server, pythons, protobufs):
        results[result.key] = result
        write_results(arguments.wheel, sorted(results.values(), key=lambda each: (numbers(each.python), each.key)))
        failed = failed or result.outcome == FAILS
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
