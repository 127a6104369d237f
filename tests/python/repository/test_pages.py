"""What the pages of docs/ and the READMEs tell a reader to do is done here: commands, examples and how-tos."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from real_server import REPOSITORY, ServerProcess, server_binary
from sparseagg._internal.commands.cli import main
from sparseagg._internal.commands.rounds import read_spec

sys.path.append(str(REPOSITORY / "scripts"))
import run_page

DOCS = REPOSITORY / "docs"
HOWTOS = DOCS / "howto"
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def executed(text: str, *replaced: tuple[str, str]) -> dict[str, Any]:
    """Runs all Python of a text; returns its names."""
    names: dict[str, Any] = {}
    for block in blocks(text, "python"):
        for old, new in replaced:
            block = block.replace(old, new)
        exec(compile(block, "page", "exec"), names)
    return names


# ---- tutorials and how-tos, by scripts/run_page.py


def run(page: Path, state: Path, *replace: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a page, with stand-ins for docker, kubectl and helm."""
    programs = state / "bin"
    programs.mkdir()
    for name in ("docker", "kubectl", "helm"):
        stand_in = shlex.join([sys.executable, str(REPOSITORY / "tests/support/howto_programs.py"), name])
        (programs / name).write_text(f'#!/bin/sh\nexec {stand_in} "$@"\n')
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent)])
    command = [sys.executable, str(REPOSITORY / "scripts/run_page.py"), str(page), "--bin", path]
    own = {"HOWTO_STATE": str(state), "SPARSEAGG_SERVER": server_binary(), **environment}
    flags = (f"--replace={each}" for each in replace)
    return subprocess.run([*command, *flags], capture_output=True, text=True, env={**os.environ, **own}, check=False)


def succeeds(page: str, state: Path, *replace: str, **environment: str) -> None:
    done = run(DOCS / f"{page}.md", state, *replace, **environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("page", "flags"),
    [
        ("index", None),
        ("tutorials/first-round", ""),
        ("tutorials/growing", " --data-dir rounds"),
        ("tutorials/attackers", None),
        ("tutorials/heavy-hitters", None),
        ("howto/backup", ""),
        ("howto/troubleshoot", ""),
    ],
)
def test_page_does_what_it_says(tmp_path: Path, page: str, flags: str | None) -> None:
    """As a reader does it, but at a socket of its own in the place of the address; ``flags``: of its server, if any."""
    socket = f"unix:{tmp_path}/s"
    own = f"--grpc-address {socket} --http-address none --metrics-address none{flags}"
    replaced = [f"--grpc-address 127.0.0.1:8001{flags}={own}", f"127.0.0.1:8001={socket}"]
    succeeds(page, tmp_path, *([] if flags is None else replaced), SPARSEAGG_ADDRESS=socket)


@pytest.mark.parametrize(
    ("page", "text"),
    [("```sh\necho a\n```\n```text\nb\n```\n", "+a"), ("```sh\nfalse\n```\n", "status 1 of: false")],
)
def test_page_that_says_something_else_is_found(tmp_path: Path, page: str, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(page, encoding="utf-8")
    done = run(path, tmp_path)
    assert (done.returncode, text in done.stderr) == (1, True)


def test_size(tmp_path: Path) -> None:
    succeeds("howto/size", tmp_path, f"scripts/size_server.py={REPOSITORY}/scripts/size_server.py")


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    pid = tmp_path / "pid"
    if pid.exists():
        os.kill(int(pid.read_text()), signal.SIGTERM)


def test_deploy_with_compose(deployed: Path) -> None:
    """The page's files, flags and mounts make a server with TLS and tokens, which answers the page's commands."""
    address = f"localhost:8001=$(cat {deployed}/address)"
    succeeds("howto/deploy-compose", deployed, address, f"$HOME/sparseagg={REPOSITORY}")
    with pytest.raises(sa.SparseaggError), sa.Client((deployed / "address").read_text()) as client:
        client.server_info()


def made_backup(start_server: Callable[..., ServerProcess], tmp_path: Path) -> Path:
    """Returns the folder of backups with one named monday, of a round of one submission."""
    folders = ("--data-dir", str(tmp_path / "live"), "--backup-dir", str(tmp_path / "backups"))
    with sa.Client(start_server(*folders).address) as client:
        opened = client.create_round(sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=10)]), "r")
        opened.submit("phone-1", {"t": ([1], [1.0])})
        client.backup("monday")
    return tmp_path / "backups"


def has_the_submission(data: Path, start_server: Callable[..., ServerProcess]) -> bool:
    with sa.Client(start_server("--data-dir", str(data)).address) as client:
        return [each.client_id for each in client.get_round("r").submissions()] == ["phone-1"]


def test_deploy_in_kubernetes(tmp_path: Path, start_server: Callable[..., ServerProcess]) -> None:
    """All that the chart mounts under the page's values was created by the page's commands; its backup is restored."""
    pytest.importorskip("helm_python", reason="`make lint-deploy` installs it")
    (tmp_path / "volume/data").mkdir(parents=True)
    made_backup(start_server, tmp_path).rename(tmp_path / "volume/backups")
    succeeds("howto/deploy-kubernetes", tmp_path)
    assert has_the_submission(tmp_path / "volume/data", start_server)
    config = (tmp_path / "server.toml").read_text()
    for flag in ("tls-certificate", "tokens-file", "data-dir", "max-open-rounds"):
        assert f"\n{flag} = " in f"\n{config}"


def block_of(page: str, name: str) -> str:
    (content,) = [content for _, title, content in run_page.blocks_of(text_of(f"howto/{page}")) if title == name]
    return content


def test_backup_under_systemd(tmp_path: Path, start_server: Callable[..., ServerProcess]) -> None:
    """The page's lines, where /var/lib/sparseagg is a link to a folder of another user, as with DynamicUser."""
    owner = 61234 if os.geteuid() == 0 else os.geteuid()
    private = tmp_path / "private/sparseagg"
    (private / "data").mkdir(parents=True)
    made_backup(start_server, tmp_path).rename(private / "backups")
    (tmp_path / "sparseagg").symlink_to("private/sparseagg")
    os.chown(private, owner, -1)
    for name in ("back up", "restore"):
        lines = block_of("backup", f"not here: systemd, to {name}").replace("/var/lib", str(tmp_path)).splitlines()
        here = [line for line in lines if line.split()[0] not in ("sparseagg", "systemctl")]
        subprocess.run(["sh", "-ec", "\n".join(here)], check=True, cwd=tmp_path)
    restored = [private / "data", *(private / "data").rglob("*")]
    assert {path.stat().st_uid for path in restored} == {owner}
    assert (private / "data").stat().st_mode & 0o777 == 0o700
    assert has_the_submission(private / "data", start_server)


def test_every_howto_is_run_or_has_no_command() -> None:
    run_here = {"backup", "deploy-compose", "deploy-kubernetes", "size", "troubleshoot"}
    with_commands = {path.stem for path in HOWTOS.glob("*.md") if "```sh" in path.read_text(encoding="utf-8")}
    assert with_commands == run_here | {"flower"}  # whose app tests/integrations/flower runs
    pages = [run_page.blocks_of(text_of(f"howto/{page}")) for page in run_here]
    left_out = {content.split()[0] for page in pages for _, title, content in page if title.startswith("not here")}
    assert left_out == {"chown", "kubectl", "podman", "sparseagg", "systemctl"}


# ---- the READMEs


@pytest.mark.parametrize("address", [":local:", ":memory:", "host:port"])
def test_readme_example_prints_what_it_says(address: str, server: ServerProcess, capsys) -> None:
    (expected,) = blocks(README, "text")
    assert 'sa.Client(":local:")' in README
    here = repr(server.address if address == "host:port" else address)
    executed(README, ('":local:"', here))["client"].close()
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("folder", [".", "python"])
def test_readme_aggregate_without_a_server_takes_the_spec_of_its_example(folder: str, server: ServerProcess) -> None:
    text = (REPOSITORY / folder / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    (result = sa\.aggregate\(\[.*)$", text, re.MULTILINE)
    call = line.replace(", …]", "]")
    given = "import numpy as np\nkeys = np.array([1])\nrows = np.ones((1, 2), np.float32)\n"
    names = executed(f"```python\n{given}```\n{text}\n```python\n{call}\n```\n", ("localhost:8001", server.address))
    assert names["result"]["embedding"].keys.tolist() == names["keys"].tolist()


# ---- examples of other pages


SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("embedding", "float32", shape=(50_000, 16)),
        sa.TensorSpec("bias", "float64", shape=(3,), layout="dense", op="mean"),
    ],
    op="coordinate_mean",
    weighting="by_weight",
    return_counts=True,
    min_submissions=2,
    max_submissions=1000,
    deadline=600,
)


def section(title: str) -> str:
    return text_of("reference/rounds").split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.fixture
def spec_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("spec.json")
    (example,) = blocks(section("A round's spec in JSON"), "json")
    path.write_text(example, encoding="utf-8")
    return path


def test_reference_example_of_a_spec_is_what_python_says_and_merges_files(spec_file: Path) -> None:
    assert read_spec(spec_file)._to_proto() == SPEC._to_proto()
    for name, value in (("a.npz", 1.0), ("b.npz", 4.0)):
        rows = np.full((1, 16), value, np.float32)
        np.savez(name, **{"embedding.keys": [7], "embedding.values": rows, "bias": np.full(3, value)})
    command = ["merge", "b.npz", "a.npz", "--spec", str(spec_file), "--weights", "1,2", "-o", "merged.npz"]
    assert main(command) == 0
    with np.load("merged.npz") as merged:
        assert merged["embedding.values"].tolist() == [[2.0] * 16]
        assert merged["embedding.counts"].tolist() == [2]
        assert merged["bias"].tolist() == [2.0] * 3


def test_reference_example_of_a_round_by_command_reads_its_result(server: ServerProcess, spec_file: Path) -> None:
    text = section("A round by command")
    executed(text)
    (commands,) = blocks(text, "sh")
    for command in commands.splitlines():
        program, *arguments = shlex.split(command, comments=True)
        assert program == "sparseagg"
        assert main([*arguments, "--address", server.address]) == 0, command
    with np.load("merged.npz") as merged:
        assert merged["embedding.keys"].tolist() == [7, 9]
        assert merged["embedding.values"].tolist() == [[1.0] * 16, [3.25] * 16]
        assert "bias.values" not in merged


def test_commands_of_the_page_of_certificates_make_and_verify_one(start_server, tmp_path, monkeypatch, capsys) -> None:
    def example(name: str) -> list[str]:
        pattern = rf"<!-- example {name} -->\n```\w+\n(.*?)```"
        (block,) = re.findall(pattern, text_of("certificates"), re.DOTALL)
        return block.splitlines()

    monkeypatch.chdir(tmp_path)
    for command in example("key"):
        subprocess.run(shlex.split(command), check=True, capture_output=True)
    server = start_server(*shlex.split(" ".join(example("server")))[1:])
    monkeypatch.setenv("SPARSEAGG_ADDRESS", server.address)
    names: dict[str, Any] = {}
    exec("\n".join(example("round")).replace("127.0.0.1:8001", server.address), names)
    assert names["promise"].leaf_index is None
    for command in (*example("files"), *example("verify")):
        assert main(shlex.split(command)[1:]) == 0, command
    assert capsys.readouterr().out.count("ok: ") == 4
    with np.load("again.npz") as again:
        assert again["embedding.keys"].tolist() == [3, 17]
    # The page names all members of the predicate.
    with sa.Client(server.address) as client:
        rnd = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3)], certificate=True))
        rnd.finish()
        predicate = rnd.certificate().statement["predicate"]
    described = text_of("certificates").split("`urn:sparseagg:round:v1` has")[1].split("\n\n")[0]
    assert set(predicate) == set(re.findall(r"`(\w+)`", described)) - {"client_weights", "null"}


@pytest.fixture(scope="module")
def integrations() -> dict:
    return executed(text_of("integrations"))


def test_integrations_dense_is_what_fed_avg_computes(integrations: dict) -> None:
    rng = np.random.default_rng(5)
    shapes = {"conv": (4, 3, 2), "scale": (), "none": (0, 3), "narrow": (3, 0)}
    models = [[rng.standard_normal(shape).astype(np.float32) for shape in shapes.values()] for _ in range(3)]
    examples = [10, 20, 70]
    merged = integrations["fed_avg"](list(shapes), list(zip([7, "b", "c"], models, examples)))
    for position, array in enumerate(merged):
        expected = sum(n * np.asarray(model[position], np.float64) for model, n in zip(models, examples)) / 100
        assert array.shape == expected.shape
        np.testing.assert_allclose(array, expected, rtol=1e-6)


def test_integrations_clients_upload_by_handle(integrations: dict, client: sa.Client) -> None:
    opened = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)], weighting="by_weight"))
    upload = integrations["upload"]
    for value, answer in ((1.0, "counted"), (1.0, "counted"), (5.0, "repeated")):
        assert upload(opened.handle, 1, ([1], [value]), 2) == answer
    for end in (opened.finish, opened.delete):
        end()
        assert upload(opened.handle, 2, ([1], [1.0]), 2) == "late"


@pytest.mark.parametrize("op", ["mean", "coordinate_mean"])
def test_integrations_sparse_rows_go_out_and_back(integrations: dict, client: sa.Client, op: str) -> None:
    before = np.arange(12, dtype=np.float32).reshape(6, 2)
    one, other = before.copy(), before.copy()
    one[[1, 4]] += 4
    other[4] -= 8
    opened = client.create_round(sa.RoundSpec.like({"emb": before}, sparse=["emb"], op=op, weighting="by_weight"))
    for name, after, weight in (("a", one, 3), ("b", other, 1)):
        opened.submit(name, {"emb": integrations["changed_rows"](before, after)}, weight)
    expected = before.copy()
    expected[1] += 3 if op == "mean" else 4
    expected[4] += 1
    opened.finish()["emb"].add_to(before)
    assert before.tolist() == expected.tolist()


def test_examples_of_tensors_and_streams_run(capsys) -> None:
    found = executed(text_of("tensors"))
    shapes = {name: array.shape for name, array in found["weights"].items()}
    assert shapes == {"embedding": (50_000, 8), "bias": (10, 1), "scale": ()}
    assert found["weights"]["embedding"][7:9].tolist() == [[np.float32(-0.1)] * 8, [0.0] * 8]
    assert found["weights"]["scale"] == np.float32(0.95)
    assert (found["result"].dense().shape, len(found["result"])) == ((100, 20), 20)
    capsys.readouterr()
    executed(text_of("streams"))
    assert capsys.readouterr().out.splitlines() == ["1 3 full [7 9]", "2 1 call [7 9]"]
    executed(text_of("models"))
