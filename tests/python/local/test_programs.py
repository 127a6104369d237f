"""Where the programs are found, and the commands that run them."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest
import sparseagg as sa
from real_server import server_binary
from sparseagg._internal.local import programs
from sparseagg.errors import ProgramMissingError

COMMANDS = {"sparseagg-server": "server_main", "sparseagg-loadgen": "loadgen_main"}
VARIABLES = {"sparseagg-server": "SPARSEAGG_SERVER", "sparseagg-loadgen": "SPARSEAGG_LOADGEN"}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """No program in the environment, in the package or on the PATH."""
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    for folder in ("bundled", "path"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(programs, "_BUNDLED", tmp_path / "bundled")
    monkeypatch.setattr(programs, "_PACKAGE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))


def make_program(path: pathlib.Path, text: str = "#!/bin/sh\necho $0 $*\n") -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("name", VARIABLES)
def test_program_of_the_environment_is_before_the_bundled_one_and_the_path_is_last(name, tmp_path, monkeypatch):
    on_path = make_program(tmp_path / "path" / name)
    assert programs.find(name) == on_path
    bundled = make_program(tmp_path / "bundled" / name)
    assert programs.find(name) == bundled
    monkeypatch.setenv(VARIABLES[name], make_program(tmp_path / "named"))
    assert programs.find(name) == str(tmp_path / "named")


@pytest.mark.parametrize("name", VARIABLES)
def test_program_of_a_package_in_its_repository_is_the_one_that_make_builds(name, tmp_path, monkeypatch):
    make_program(tmp_path / "path" / name)
    package = tmp_path / "python" / "src" / "sparseagg"
    package.mkdir(parents=True)
    monkeypatch.setattr(programs, "_PACKAGE", package)
    assert programs.find(name) == str(tmp_path / "path" / name), "any folder of these names"
    (tmp_path / "CMakeLists.txt").touch()
    with pytest.raises(ProgramMissingError, match=f"`make build` in {tmp_path} builds it, or set .*{VARIABLES[name]}"):
        programs.find(name, on_path=False)
    assert programs.find(name) == str(tmp_path / "path" / name)
    built = tmp_path / programs._BUILT[name]
    built.parent.mkdir(parents=True)
    make_program(built)
    assert programs.find(name) == str(built)
    monkeypatch.setenv(VARIABLES[name], make_program(tmp_path / "named"))
    assert programs.find(name) == str(tmp_path / "named")


@pytest.mark.parametrize("name", VARIABLES)
def test_missing_program_error_says_what_to_set(name):
    with pytest.raises(ProgramMissingError, match=f"no {name}: install.*{VARIABLES[name]}") as caught:
        programs.find(name)
    assert isinstance(caught.value, (sa.SparseaggError, FileNotFoundError))


@pytest.mark.parametrize("what", ["missing", "folder", "not executable"])
def test_program_of_the_environment_that_cannot_be_run_is_an_error(what, tmp_path, monkeypatch):
    make_program(tmp_path / "bundled" / "sparseagg-server")
    path = tmp_path / "named"
    if what == "folder":
        path.mkdir()
    elif what == "not executable":
        path.write_text("#!/bin/sh\n")
    monkeypatch.setenv("SPARSEAGG_SERVER", str(path))
    with pytest.raises(ProgramMissingError, match=f"SPARSEAGG_SERVER names '{path}'"):
        programs.find("sparseagg-server")


@pytest.mark.parametrize("name", VARIABLES)
def test_console_script_on_the_path_is_not_the_program(name, tmp_path, monkeypatch):
    script = (
        f"#!{sys.executable}\nfrom sparseagg._internal.local.programs import {COMMANDS[name]}\n{COMMANDS[name]}()\n"
    )
    make_program(tmp_path / "path" / name, script)
    with pytest.raises(ProgramMissingError):
        programs.find(name)
    (tmp_path / "later").mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "path"), str(tmp_path / "later")]))
    later = make_program(tmp_path / "later" / name)
    assert programs.find(name) == later


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", VARIABLES)
def test_console_script_runs_the_program_with_its_flags(name, tmp_path):
    path = make_program(tmp_path / "named")
    call = f"from sparseagg._internal.local import programs; programs.{COMMANDS[name]}()"
    done = run_python("-c", call, "--help", "-x", "a b", **{VARIABLES[name]: path})
    assert (done.stdout, done.stderr, done.returncode) == (f"{path} --help -x a b\n", "", 0)


def test_console_script_restores_the_signals_that_python_ignores(tmp_path):
    path = make_program(tmp_path / "named", "#!/bin/sh\ngrep SigIgn /proc/$$/status\n")
    call = "from sparseagg._internal.local import programs; programs.server_main()"
    done = run_python("-c", call, SPARSEAGG_SERVER=path, PATH=os.defpath)
    ignored = int(done.stdout.split()[1], 16)  # others may be ignored: the tests' own parent decides
    assert [number for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (number - 1) & 1] == []


@pytest.mark.parametrize("name", VARIABLES)
def test_console_script_without_its_program_fails(name, tmp_path):
    make_program(tmp_path / "path" / name)  # as the script itself is
    call = (
        "import pathlib; from sparseagg._internal.local import programs; "
        f"programs._PACKAGE = programs._BUNDLED = pathlib.Path({str(tmp_path)!r}); programs.{COMMANDS[name]}()"
    )
    done = run_python("-c", call)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{name}: this installation of sparseagg has no {name}: ")


def test_cli_server_runs_the_server_with_its_flags():
    expected = subprocess.run([server_binary(), "--help"], capture_output=True, text=True).stdout
    done = run_python("-m", "sparseagg", "server", "--help", SPARSEAGG_SERVER=server_binary())
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)
    done = run_python("-m", "sparseagg", "server", "--no-such-flag", SPARSEAGG_SERVER=server_binary())
    assert done.returncode != 0
    assert "no-such-flag" in done.stderr


def test_cli_server_without_the_program_fails():
    done = run_python("-m", "sparseagg", "server", SPARSEAGG_SERVER="/no/such/program")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith("sparseagg: the environment's SPARSEAGG_SERVER names '/no/such/program'")
