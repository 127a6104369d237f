"""What programs in a bundle may need, on any machine that one is made on."""

from __future__ import annotations

import re

import pytest
from conftest import REPOSITORY


def allowed(script: str) -> re.Pattern[str]:
    """The one regular expression of libraries, of the script that makes bundles or of the one that checks them."""
    text = (REPOSITORY / "scripts" / script).read_text(encoding="utf-8")
    (found,) = re.findall(r"""['"]\^?(\(linux-vdso\|.*\\\.so)['"]""", text)
    return re.compile(found)


@pytest.mark.parametrize("script", ["bundle.sh", "check_bundle.py"])
@pytest.mark.parametrize(
    ("library", "is_allowed"),
    [
        ("linux-vdso.so.1", True),
        ("ld-linux-x86-64.so.2", True),
        ("ld-linux-aarch64.so.1", True),
        ("ld-linux-riscv64-lp64d.so.1", True),
        ("libm.so.6", True),
        ("libmvec.so.1", False),
        ("libstdc++.so.6", False),
    ],
)
def test_bundles_need_libc_alone(script, library, is_allowed) -> None:
    assert bool(allowed(script).match(library)) == is_allowed
