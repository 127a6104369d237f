"""The commands of docs/certificates.md do what the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import sparseagg as sa
from real_server import REPOSITORY
from sparseagg._internal.commands.cli import main

PAGE = (REPOSITORY / "docs" / "certificates.md").read_text(encoding="utf-8")


def _example(name: str) -> str:
    (block,) = re.findall(rf"<!-- example {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    return block


def test_commands_of_the_page_make_and_verify_a_certificate(
    start_server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in _example("key").splitlines():
        subprocess.run(shlex.split(command), check=True, capture_output=True)
    program, *flags = shlex.split(_example("server"))
    assert program == "sparseagg-server"
    server = start_server(*flags)
    monkeypatch.setenv("SPARSEAGG_ADDRESS", server.address)
    scope: dict = {}
    exec(compile(_example("round").replace("127.0.0.1:8001", server.address), "certificates.md", "exec"), scope)
    assert scope["promise"].leaf_index is None

    for name in ("files", "verify"):
        for command in _example(name).splitlines():
            program, *arguments = shlex.split(command)
            assert program == "sparseagg"
            assert main(arguments) == 0, command
    assert capsys.readouterr().out.count("ok: ") == 4
    with np.load("again.npz") as again:
        assert again["embedding.keys"].tolist() == [3, 17]


def test_texts_of_the_page_are_those_of_the_verification() -> None:
    package = REPOSITORY / "python" / "src" / "sparseagg"
    sources = [package / "certificates.py", *(package / "_internal" / "certificates").glob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # texts over several lines
    table = PAGE.split("| text | what has happened |")[1].split("\n\n")[0]
    texts = re.findall(r"`([^`]*)`", "".join(line.split("|")[1] for line in table.splitlines()[2:]))
    assert len(texts) > 7
    for text in texts:
        for part in re.split(r"'alice'|'embedding'|…|\b[12]\b", text):  # what stands for another word
            assert part.strip(" ,") in code, text


def test_page_names_every_member_of_the_predicate(
    start_server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(shlex.split(_example("key").splitlines()[0]), check=True)
    with sa.Client(start_server("--certificate-key", "certificate.key").address) as client:
        rnd = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3)], certificate=True))
        rnd.finish()
        predicate = rnd.certificate().statement["predicate"]
    section = PAGE.split("`urn:sparseagg:round:v1` has")[1].split("\n\n")[0]
    assert set(predicate) == set(re.findall(r"`(\w+)`", section)) - {"client_weights", "null"}
