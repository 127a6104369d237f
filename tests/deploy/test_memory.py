"""A container of 256 MB, whose server the kernel kills where it takes more, under the floods of `make test`.

How long rounds take is for tests/system: the container's start and its network cost time of their own.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import machine
import pytest
from conftest import contained
from real_server import ServerProcess

sys.path.append(str(machine.REPOSITORY / "tests" / "system" / "floods"))

import attacks
import siege
import test_floods


@pytest.mark.parametrize(
    ("name", "tls"), [*((each, False) for each in attacks.ATTACKS), *((each, True) for each in test_floods.OVER_TLS)]
)
def test_flood_in_256_mb(
    name: str,
    tls: bool,
    start_server: Callable[..., ServerProcess],
    self_signed: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contained(monkeypatch, tmp_path, "--memory", str(siege.LIMIT), "--memory-swap", str(siege.LIMIT))
    monkeypatch.setattr(test_floods, "ROUND_TIMES", math.inf)
    key, certificate = (shutil.copy(each, tmp_path) for each in self_signed)
    flags = ["--tls-certificate", certificate, "--tls-key", key] if tls else []
    server = start_server("--memory-limit", str(siege.LIMIT), *flags)
    test_floods.check_flood(name, server, certificate if tls else None)
