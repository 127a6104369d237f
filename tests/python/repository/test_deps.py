"""scripts/deps.sh on machines that differ in what is installed, with stand-ins for the system's tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from real_server import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "deps.sh"


def deps(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [str(shutil.which("bash")), str(SCRIPT), *arguments]
    return subprocess.run(command, env={"PATH": str(path)}, capture_output=True, text=True)


def write_tool(path: Path, name: str, text: str = "") -> None:
    tool = path / name
    tool.write_text(f"#!{shutil.which('bash')}\n{text}\n", encoding="utf-8")
    tool.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder that serves as PATH: a Debian where root has a compiler and no package of ours."""
    write_tool(tmp_path, "c++")
    write_tool(tmp_path, "dpkg-query", f'echo "$(< "{tmp_path}/installed")"')
    (tmp_path / "installed").touch()
    write_tool(tmp_path, "apt-get", f'echo "apt-get $*" >> "{tmp_path}/calls"')
    write_tool(tmp_path, "sudo", f'echo sudo >> "{tmp_path}/calls"; exec "$@"')
    write_tool(tmp_path, "id", "echo 0")
    (tmp_path / "env").symlink_to(str(shutil.which("env")))
    return tmp_path


def install(machine: Path, names: list[str]) -> None:
    (machine / "installed").write_text("\n".join(f"installed {name}" for name in names), encoding="utf-8")


def calls(machine: Path) -> list[str]:
    path = machine / "calls"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def packages(*groups: str, machine: Path) -> list[str]:
    return deps("--list", *groups, path=machine).stdout.split()


def test_deps_nothing_missing_calls_nothing(machine: Path) -> None:
    install(machine, packages("build", "test", machine=machine))
    result = deps("build", "test", path=machine)
    assert (result.returncode, result.stdout, calls(machine)) == (0, "", [])


def test_deps_one_missing_installs_that_one(machine: Path) -> None:
    install(machine, [name for name in packages("build", machine=machine) if name != "ninja-build"])
    assert deps("build", path=machine).returncode == 0
    assert calls(machine) == ["apt-get -q update", "apt-get -q -y install --no-install-recommends ninja-build"]


def test_deps_no_apt_says_what_to_install(machine: Path) -> None:
    (machine / "apt-get").unlink()
    result = deps("build", path=machine)
    assert result.returncode == 1
    assert "no apt-get" in result.stderr
    assert "libgrpc++-dev" in result.stderr
