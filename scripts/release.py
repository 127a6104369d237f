#!/usr/bin/env python3
"""Makes a release: docs/release.md says when and how.

    scripts/release.py version [X.Y.Z]     prints the version, or writes another one to every place that has it
    scripts/release.py collect             copies what `make wheels cuda-wheel bundle` made of this version into
                                           build/release-VERSION, with SHA256SUMS and a bill of materials (SPDX)

The version of CMakeLists.txt counts. All places must have it: a test calls `version`.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import re
import shutil
import subprocess
import sys
import uuid
import zipfile
from email.parser import Parser
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


def versions(root: Path = REPOSITORY) -> dict[str, list[str]]:
    """Returns the versions that each file has."""
    found = {}
    for name, pattern in PLACES.items():
        matches = re.finditer(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        found[name] = [group for match in matches for group in match.groups() if group]
    return found


def current(root: Path = REPOSITORY) -> str:
    """Returns the version; ``SystemExit`` names the files that have another one, or none."""
    found = versions(root)
    version = found["CMakeLists.txt"][0]
    others = [f"{name} has {', '.join(has) or 'none'}" for name, has in found.items() if set(has) != {version}]
    if others:
        raise SystemExit(f"release.py: CMakeLists.txt has {version}, but {'; '.join(others)}")
    return version


def write(version: str, root: Path = REPOSITORY) -> None:
    """Puts the version into every place, and today's date behind it in CHANGELOG.md."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f"release.py: {version!r} is not MAJOR.MINOR.PATCH")
    before = current(root)
    for name, pattern in PLACES.items():
        text = (root / name).read_text(encoding="utf-8")
        text = re.sub(pattern, lambda match: match.group().replace(before, version), text, flags=re.MULTILINE)
        (root / name).write_text(text, encoding="utf-8")
    path = root / "CHANGELOG.md"
    text = path.read_text(encoding="utf-8")
    heading = f"## {version} ({datetime.date.today().isoformat()})"
    changed, count = re.subn(r"^## (?:[0-9.]+ \(unreleased\)|Unreleased)$", heading, text, flags=re.MULTILINE)
    if count != 1:
        raise SystemExit(f"release.py: CHANGELOG.md has {count} headings that are unreleased, not one")
    path.write_text(changed, encoding="utf-8")


def requirements_of(wheel: Path) -> list[str]:
    """Returns what a wheel requires, without its extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    return [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]


def bill_of(files: list[Path], version: str) -> dict[str, object]:
    """Returns a bill of materials in SPDX 2.3: the files with their hashes, and what the wheels require."""
    required = sorted({line for file in files if file.suffix == ".whl" for line in requirements_of(file)})
    packages = [
        {
            "SPDXID": f"SPDXRef-file-{number}",
            "name": file.name,
            "versionInfo": version,
            "licenseConcluded": "Apache-2.0",
            "downloadLocation": "NOASSERTION",
            "checksums": [{"algorithm": "SHA256", "checksumValue": digest(file)}],
        }
        for number, file in enumerate(files)
    ]
    packages += [
        {"SPDXID": f"SPDXRef-requirement-{number}", "name": line, "downloadLocation": "NOASSERTION"}
        for number, line in enumerate(required)
    ]
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    commit = git.stdout.strip()
    return {
        "spdxVersion": "SPDX-2.3",
        "SPDXID": "SPDXRef-DOCUMENT",
        "dataLicense": "CC0-1.0",
        "name": f"sparseagg-{version}",
        "documentNamespace": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'sparseagg-{version}-{commit}')}",
        "creationInfo": {
            "created": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: scripts/release.py"],
            "comment": f"commit {commit}",
        },
        "packages": packages,
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": each["SPDXID"]}
            for each in packages[: len(files)]
        ],
    }


def digest(file: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def collect() -> None:
    """Copies wheels and bundle, and writes the hashes and the bill of materials."""
    version = current()
    build = REPOSITORY / "build"
    out = build / f"release-{version}"
    folders = {"wheel": "whl", "wheels": "whl", "cuda-wheels": "whl", "cpu-bundle": "tar.xz"}
    files = [file for folder, suffix in folders.items() for file in build.glob(f"{folder}/*-{version}-*.{suffix}")]
    if not files:
        raise SystemExit(f"release.py: no wheel and no bundle of {version} in {build}")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    copies = sorted(Path(shutil.copy2(file, out)) for file in files)
    bill = out / f"sparseagg-{version}.spdx.json"
    bill.write_text(json.dumps(bill_of(copies, version), indent=1) + "\n", encoding="utf-8")
    lines = [f"{digest(file)}  {file.name}\n" for file in (*copies, bill)]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="ascii")


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("version").add_argument("version", nargs="?")
    commands.add_parser("collect")
    arguments = parser.parse_args()
    if arguments.command == "collect":
        collect()
    elif arguments.version:
        write(arguments.version)
    else:
        print(current())
    return 0


if __name__ == "__main__":
    sys.exit(main())
