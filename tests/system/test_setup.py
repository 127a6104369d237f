"""Installations with and without the engine: setup.py where tools are missing, and what the client then says."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from real_server import REPOSITORY

# Stands in for CMake: notes its arguments, and makes an extension where it is told to.
CMAKE = """#!{bash}
echo "$@" >> {calls}
for argument in "$@"; do
  case $argument in -DSPARSEAGG_PYTHON_OUTPUT=*) echo "${{argument#*=}}" > {calls}.output ;; esac
done
if [[ $1 == --build ]]; then : > "$(<{calls}.output)/_engine{suffix}"; fi
exit {status}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The package's folder in a copy of the repository that has no more than setup.py looks for; tools in bin/."""
    shutil.copytree(
        REPOSITORY / "python",
        tmp_path / "python",
        ignore=shutil.ignore_patterns("build", "*.so", "_no_engine.txt", "*.egg-info", "__pycache__"),
    )
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "engine.h").touch()
    (tmp_path / "bin").mkdir()
    return tmp_path


def tool(checkout: Path, name: str, text: str = "") -> None:
    path = checkout / "bin" / name
    path.write_text(text or f"#!{shutil.which('bash')}\n", encoding="utf-8")
    path.chmod(0o755)


def cmake(checkout: Path, status: int = 0) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    text = CMAKE.format(bash=shutil.which("bash"), calls=checkout / "calls", status=status, suffix=suffix)
    tool(checkout, "cmake", text)


def build(checkout: Path, mode: str = "auto") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("CXX", "PATH")}
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-base", "../build", "--build-lib", "../lib"],
        cwd=checkout / "python",
        env={**environment, "PATH": str(checkout / "bin"), "SPARSEAGG_EXTENSION": mode},
        capture_output=True,
        text=True,
    )


def reason(checkout: Path) -> str | None:
    path = checkout / "lib" / "sparseagg" / "_no_engine.txt"
    return path.read_text(encoding="utf-8") if path.exists() else None


def extensions(checkout: Path) -> list[str]:
    return [path.name.split(".")[0] for path in (checkout / "lib" / "sparseagg").glob("*.so")]


def test_setup_builds_the_engine_in_release_without_the_service(checkout: Path) -> None:
    cmake(checkout)
    tool(checkout, "c++")
    done = build(checkout)
    assert done.returncode == 0, done.stderr
    assert extensions(checkout) == ["_engine"]
    assert reason(checkout) is None
    calls = (checkout / "calls").read_text(encoding="utf-8")
    for flag in ("CMAKE_BUILD_TYPE=Release", "SPARSEAGG_PYTHON=ON", "SPARSEAGG_SERVICE=OFF", "SPARSEAGG_TESTS=OFF"):
        assert f"-D{flag}" in calls
    assert "built the engine" in done.stderr
    assert (checkout / "lib" / "sparseagg" / "_engine.pyi").exists()


@pytest.mark.parametrize("missing", ["cmake", "c++", "host", "headers"])
def test_setup_without_what_it_takes_installs_the_client_and_says_so(checkout: Path, missing: str) -> None:
    if missing != "cmake":
        cmake(checkout, status=1 if missing == "headers" else 0)
    if missing != "c++":
        tool(checkout, "c++")
    if missing == "host":
        shutil.rmtree(checkout / "host")
    done = build(checkout)
    assert done.returncode == 0, done.stderr
    assert "WITHOUT the engine" in done.stderr
    assert extensions(checkout) == []
    text = {"cmake": "CMake was not found", "c++": "no C++ compiler", "host": "repository", "headers": "pip install -v"}
    assert text[missing] in (reason(checkout) or "")
    assert (checkout / "lib" / "sparseagg" / "_internal" / "client" / "blocking_client.py").exists()

    stops = build(checkout, "on")
    assert stops.returncode != 0
    assert "cannot be built" in stops.stderr


def client_alone(checkout: Path, code: str) -> str:
    """What a program prints with the client installed alone."""
    assert build(checkout).returncode == 0
    environment = {**os.environ, "PYTHONPATH": str(checkout / "lib")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=checkout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_client_alone_says_what_to_install(checkout: Path) -> None:
    code = """
import sparseagg as sa
from sparseagg._internal.base import extension
spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3)])
for call in (lambda: sa.aggregate([], spec), lambda: sa.Aggregator(spec), lambda: extension.describe()):
    try:
        call()
    except sa.errors.EngineMissingError as error:
        print(error)
sa.Client("localhost:1").close()
"""
    lines = client_alone(checkout, code).splitlines()
    assert len(lines) == 3
    for line in lines:
        assert "CMake was not found" in line
        assert "libabsl-dev" in line
        assert "pip install" in line


@pytest.mark.parametrize(("platform", "system"), [("darwin", "macOS"), ("win32", "Windows")])
def test_client_of_another_system_says_in_a_line_what_to_do(checkout: Path, platform: str, system: str) -> None:
    code = f"""
import os, sys, sparseagg as sa
os.environ.pop("SPARSEAGG_SERVER", None)
spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3)])
sys.platform = {platform!r}
for call in (lambda: sa.aggregate([], spec), lambda: sa.Client(":memory:"), lambda: sa.Client(":local:")):
    try:
        call()
    except (sa.errors.EngineMissingError, sa.errors.ProgramMissingError) as error:
        print(error)
"""
    cure = 'start a server in a container (docs/howto/deploy-compose.md), and use sparseagg.Client("localhost:8001")'
    assert client_alone(checkout, code).splitlines() == [
        f"sparseagg has no {part} on {system}, only on Linux: {cure}"
        for part in ("engine of its own", "engine of its own", "sparseagg-server")
    ]


# What an installation on another system gets passes the tests of the client that need no engine.
def test_clients_tests_pass_without_the_engine(checkout: Path) -> None:
    assert build(checkout, "off").returncode == 0
    files = [f"tests/python/client/test_{name}.py" for name in ("aio", "credentials", "round", "tasks")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *files],
        env={**os.environ, "PYTHONPATH": str(checkout / "lib"), "SPARSEAGG_TESTS_WITHOUT_ENGINE": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    passed = re.search(r"(\d+) passed, (\d+) skipped", done.stdout)
    assert passed is not None, done.stdout[-1000:]
    assert int(passed[1]) > 4 * int(passed[2])


def test_client_alone_merge_command_fails_with_the_reason(checkout: Path) -> None:
    code = """
import contextlib, io, numpy as np, sparseagg._internal.commands.cli
np.savez("a.npz", **{"x.keys": np.array([1]), "x.values": np.ones(1)})
for arguments in (["engine"], ["merge", "a.npz", "-o", "b.npz"]):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = sparseagg._internal.commands.cli.main(arguments)
    print(status, "no engine" in errors.getvalue())
"""
    assert client_alone(checkout, code) == "1 True\n1 True\n"


def test_package_asks_for_types_as_its_oldest_python_can() -> None:
    # Nothing else says so: mypy knows no Python before 3.10, of which `isinstance(x, A | B)` is.
    assert 'requires-python = ">=3.9"' in (REPOSITORY / "python" / "pyproject.toml").read_text(encoding="utf-8")
    unions = []
    for path in (REPOSITORY / "python").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                unions += [f"{path}:{part.lineno}" for part in ast.walk(node.args[1]) if isinstance(part, ast.BinOp)]
    assert unions == []


def test_package_has_the_proto_and_the_javascript_client(checkout: Path) -> None:
    for folder in ("proto", "js"):
        shutil.copytree(REPOSITORY / folder, checkout / folder)
    assert build(checkout, "off").returncode == 0
    sources = {"v1": (REPOSITORY / "proto/sparseagg/v1").iterdir(), "js": [REPOSITORY / "js/sparseagg.js"]}
    for folder, files in sources.items():
        for file in files:
            assert (checkout / "lib/sparseagg" / folder / file.name).read_bytes() == file.read_bytes(), file


def test_source_distribution_has_the_sources_of_the_engine(checkout: Path, tmp_path: Path) -> None:
    (checkout / "CMakeLists.txt").touch()
    (checkout / "service").mkdir()
    (checkout / "service" / "server.h").touch()
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "--formats=gztar", "-d", str(tmp_path / "dist")],
        cwd=checkout / "python",
        env={**os.environ, "SPARSEAGG_EXTENSION": "off"},
        check=True,
    )
    (archive,) = (tmp_path / "dist").iterdir()
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    (folder,) = (tmp_path / "unpacked").iterdir()
    for name in ("CMakeLists.txt", "host/engine.h", "python/engine/CMakeLists.txt", "service/server.h"):
        assert (folder / "repository" / name).is_file(), name
    # Such a folder stands alone, and builds from its copy.
    cmake(checkout)
    tool(checkout, "c++")
    shutil.rmtree(checkout / "python")
    shutil.move(str(folder), str(checkout / "python"))
    shutil.rmtree(checkout / "host")
    assert build(checkout, "on").returncode == 0
    assert f"-S {checkout}/python/repository " in (checkout / "calls").read_text(encoding="utf-8")
