#!/usr/bin/env python3
"""Prints the version, or writes another one to every place that has it, and the proto: docs/release.md says when.

    scripts/release.py [X.Y.Z]

The version of CMakeLists.txt counts. All places must have it: a test calls `current`.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# A pattern with one group for each place of a file that has the version.
PLACES = {
    "CMakeLists.txt": r"^project\(sparseagg VERSION ([0-9.]+)",
    "CITATION.cff": r"^version: (.*)$",
    "python/pyproject.toml": r'^version = "([0-9.]+)"|"sparseagg-cuda13==([0-9.]+)"',
    "python/src/sparseagg/version.py": r'^__version__ = "([0-9.]+)"',
    "python/cuda/src/sparseagg_cuda13/__init__.py": r'^__version__ = "([0-9.]+)"',
    "deploy/helm/sparseagg/Chart.yaml": r"^(?:version|appVersion): ([0-9.]+)$",
    "deploy/statefulset/servers.yaml": r"image: sparseagg-server:([0-9.]+)",
    "deploy/kuberay/raycluster.yaml": r"image: sparseagg-ray:([0-9.]+)",
}
UNRELEASED = r"^## (?:[0-9.]+ \(unreleased\)|Unreleased)$"


def current() -> str:
    """Returns the version; ``SystemExit`` names the files that have another one, or none."""
    found = {}
    for name, pattern in PLACES.items():
        matches = re.finditer(pattern, (REPOSITORY / name).read_text(encoding="utf-8"), re.MULTILINE)
        found[name] = [group for match in matches for group in match.groups() if group]
    version = found["CMakeLists.txt"][0]
    others = [f"{name} has {', '.join(has) or 'none'}" for name, has in found.items() if set(has) != {version}]
    if others:
        raise SystemExit(f"release.py: CMakeLists.txt has {version}, but {'; '.join(others)}")
    return version


def write(version: str) -> None:
    """Puts the version into every place, and today's date behind it in CHANGELOG.md."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f"release.py: {version!r} is not MAJOR.MINOR.PATCH")
    before = current()
    changelog = REPOSITORY / "CHANGELOG.md"
    heading = f"## {version} ({datetime.date.today().isoformat()})"
    text, count = re.subn(UNRELEASED, heading, changelog.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if count != 1:
        raise SystemExit(f"release.py: CHANGELOG.md has {count} headings that are unreleased, not one")
    changelog.write_text(text, encoding="utf-8")
    for name, pattern in PLACES.items():
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        text = re.sub(pattern, lambda match: match.group().replace(before, version), text, flags=re.MULTILINE)
        (REPOSITORY / name).write_text(text, encoding="utf-8")
    # From now on `make lint-modules` refuses what clients of this version would not understand.
    buf = [f"{REPOSITORY}/.venv/bin/buf", "build", "--exclude-source-info", "--output", "proto/released.binpb"]
    subprocess.run(buf, cwd=REPOSITORY, check=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        write(sys.argv[1])
    else:
        print(current())
