"""One version in all places, and what a release gives away."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import sparseagg as sa
from real_server import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
import release


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that have the version, in a folder of their own."""
    for name in (*release.PLACES, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def test_every_place_has_the_version_of_the_package() -> None:
    assert release.current() == sa.__version__


def test_place_with_another_version_is_named(copy: Path) -> None:
    chart = copy / "deploy/helm/sparseagg/Chart.yaml"
    chart.write_text(chart.read_text().replace("appVersion: ", "appVersion: 9."), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"Chart\.yaml has .*9\."):
        release.current(copy)


def test_new_version_is_in_every_place_and_dated(copy: Path) -> None:
    release.write("7.8.9", copy)
    assert {each for has in release.versions(copy).values() for each in has} == {"7.8.9"}
    assert release.current(copy) == "7.8.9"
    assert "## 7.8.9 (20" in (copy / "CHANGELOG.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match="0 headings"):
        release.write("7.8.10", copy)
    with pytest.raises(SystemExit, match="MAJOR"):
        release.write("7.8", copy)


def test_files_of_a_release_have_hashes_and_a_bill_of_materials(tmp_path: Path) -> None:
    version = release.current()
    wheel = tmp_path / f"sparseagg-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            f"sparseagg-{version}.dist-info/METADATA", "Requires-Dist: numpy>=1\nRequires-Dist: x; extra == 'y'\n\n"
        )
    out = tmp_path / "out"
    release.collect(out, [wheel])
    sums = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {path.name for path in out.iterdir()} - {"SHA256SUMS"}
    assert all(hashlib.sha256((out / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    bill = json.loads((out / f"sparseagg-{version}.spdx.json").read_text())
    assert [package["name"] for package in bill["packages"]] == [wheel.name, "numpy>=1"]
    with pytest.raises(SystemExit, match="not of version"):
        release.collect(out, [tmp_path / "sparseagg-0.0.1.whl"])
