"""How the server's program is linked: what makes a bug in it harder to exploit (cmake/hardening.cmake)."""

from __future__ import annotations

import re
import subprocess

import pytest
from real_server import server_binary


def readelf(flag: str) -> str:
    return subprocess.run(["readelf", "-W", flag, server_binary()], capture_output=True, text=True, check=True).stdout


def test_the_program_is_loaded_at_a_random_address() -> None:
    assert "DYN (Position-Independent Executable" in readelf("-h")


def test_tables_are_read_only_once_linked_and_the_stack_is_not_executable() -> None:
    segments = readelf("-l")
    assert "GNU_RELRO" in segments
    (flags,) = re.findall(r"GNU_STACK.*\s([RWE ]{3}) 0x", segments)
    assert flags.strip() == "RW"
    assert re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW", readelf("-d"))


@pytest.mark.parametrize("name", ["__stack_chk_fail", r"__mem(cpy|move|set)_chk"])
def test_the_program_checks_its_stack_and_copies(name: str) -> None:
    assert re.search(rf"UND {name}@", readelf("--dyn-syms"))
