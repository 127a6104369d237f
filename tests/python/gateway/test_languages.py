"""docs/tutorials/languages.md: what each tab says is done, where its compiler is, and prints what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap

import pytest
from real_server import REPOSITORY

PAGE = (REPOSITORY / "docs" / "tutorials" / "languages.md").read_text(encoding="utf-8")
PRINTED = re.search(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
TABS = dict(re.findall(r'^=== "(.*?)"\n(.*?)(?=^===|^## )', PAGE, re.MULTILINE | re.DOTALL))
NEEDS = {
    "C++": ["g++", "protoc", "grpc_cpp_plugin"],
    "Go": ["go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc"],
    "Java": ["javac", "protoc", "grpc_java_plugin"],
    "JavaScript": ["node"],
    "Ruby": ["ruby", "grpc_tools_ruby_protoc"],
    "Rust": ["cargo"],
    "curl": ["curl"],
}


@pytest.mark.parametrize("language", TABS)
def test_a_first_round(language, server, tmp_path):
    if language not in ("C++", "JavaScript", "curl") and not os.environ.get("SPARSEAGG_TEST_LANGUAGES"):
        pytest.skip("run by hand before a release: make test-languages")
    missing = [program for program in NEEDS[language] if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {missing[0]} here; the page names the packages")
    for folder in ("proto", "js", "examples/languages"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    commands = textwrap.dedent(re.search(r"^ +```sh\n(.*?)^ +```$", TABS[language], re.MULTILINE | re.DOTALL)[1])
    for told, own in (("127.0.0.1:8001", server.address), ("127.0.0.1:8003", server.http_address)):
        commands = commands.replace(told, own)
    done = subprocess.run(["bash", "-ec", commands], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, PRINTED), done.stderr


@pytest.mark.parametrize("language", TABS)
def test_a_program_has_at_most_60_lines(language):
    program = re.search(r'--8<-- "(.*?)"', TABS[language])[1]
    assert (REPOSITORY / program).read_text(encoding="utf-8").count("\n") <= 60
