#!/usr/bin/env python3
"""Writes the bill of materials of wheels and bundles: the Debian packages that are linked in, as CycloneDX 1.6 JSON.

    scripts/sbom.py FILE

The programs are static, so that no scanner finds these packages in them. Versions are those installed here; libraries
that scripts/static_libs.sh builds come from the sources of the same packages.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from release import REPOSITORY, current


def main(path: Path) -> None:
    """Writes the file; ``CalledProcessError`` if a package is not installed, which dpkg-query names."""
    bom = Bom()
    bom.metadata.component = Component(name="sparseagg", version=current(), type=ComponentType.APPLICATION)
    distribution = platform.freedesktop_os_release()["VERSION_CODENAME"]
    names = (REPOSITORY / "scripts" / "linked_packages.txt").read_text(encoding="utf-8").split()
    show = ["dpkg-query", "--show", "--showformat", "${Package} ${Version}\n", *names]
    for line in subprocess.run(show, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
        name, version = line.split()
        purl = PackageURL("deb", "debian", name, version, {"distro": distribution})
        library = Component(name=name, version=version, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl))
        bom.components.add(library)
        bom.register_dependency(bom.metadata.component, [library])
    JsonV1Dot6(bom).output_to_file(str(path), allow_overwrite=True, indent=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
