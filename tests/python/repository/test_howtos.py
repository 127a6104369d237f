"""The how-tos do what they say: every command of theirs is run, and what they list is what there is."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import sparseagg as sa
import yaml
from real_server import REPOSITORY, ServerProcess, server_binary

sys.path.append(str(REPOSITORY / "scripts"))
import error_reference
import run_page
from sparseagg.cluster.exchange import export_partial

HOWTOS = REPOSITORY / "docs" / "howto"
MIB = 2**20


def text_of(page: str) -> str:
    return (HOWTOS / f"{page}.md").read_text(encoding="utf-8")


def run(page: str, state: Path, *replace: str) -> None:
    """Runs a page, with stand-ins for docker, kubectl and helm."""
    programs = state / "bin"
    programs.mkdir()
    for name in ("docker", "kubectl", "helm"):
        stand_in = shlex.join([sys.executable, str(REPOSITORY / "tests/support/howto_programs.py"), name])
        (programs / name).write_text(f'#!/bin/sh\nexec {stand_in} "$@"\n')
        (programs / name).chmod(0o755)
    done = subprocess.run(
        [
            *(sys.executable, str(REPOSITORY / "scripts/run_page.py"), str(HOWTOS / f"{page}.md")),
            *("--bin", os.pathsep.join([str(programs), str(Path(sys.executable).parent)])),
            *(f"--replace={each}" for each in replace),
        ],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "HOWTO_STATE": str(state), "SPARSEAGG_SERVER": server_binary()},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", ["choose", "size"])
def test_page_without_a_server(page: str, tmp_path: Path) -> None:
    run(page, tmp_path)


@pytest.mark.parametrize("page", ["backup", "troubleshoot", "upgrade"])
def test_page_with_a_server(page: str, tmp_path: Path) -> None:
    socket = f"unix:{tmp_path}/s"
    own = f"--grpc-address {socket} --http-address none --metrics-address none"
    run(page, tmp_path, f"--grpc-address 127.0.0.1:8001={own}", f"127.0.0.1:8001={socket}")


def test_monitor(tmp_path: Path, start_server: Callable[..., ServerProcess]) -> None:
    metrics = start_server("--metrics-address", "127.0.0.1:0").metrics_address
    run(
        "monitor",
        tmp_path,
        "sparseagg server --metrics-address 127.0.0.1:8002=echo listening",
        f"127.0.0.1:8002={metrics}",
    )


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    pid = tmp_path / "pid"
    if pid.exists():
        os.kill(int(pid.read_text()), signal.SIGTERM)


def test_deploy_with_compose(deployed: Path) -> None:
    """The page's files, flags and mounts make a server with TLS and tokens, which answers the page's commands."""
    run(
        "deploy-compose",
        deployed,
        f"localhost:8001=$(cat {deployed}/address)",
        f"$HOME/sparseagg={REPOSITORY}",
    )
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
    (tmp_path / "volume").mkdir()
    made_backup(start_server, tmp_path).rename(tmp_path / "volume/backups")
    (tmp_path / "volume/data").mkdir()
    run("deploy-kubernetes", tmp_path)
    assert has_the_submission(tmp_path / "volume/data", start_server)
    config = (tmp_path / "server.toml").read_text()
    for flag in ("tls-certificate", "tokens-file", "data-dir", "max-open-rounds"):
        assert f"\n{flag} = " in f"\n{config}"


def test_backup_under_systemd(tmp_path: Path, start_server: Callable[..., ServerProcess]) -> None:
    """The page's lines, where /var/lib/sparseagg is a link to a folder of another user, as with DynamicUser."""
    owner = 61234 if os.geteuid() == 0 else os.geteuid()
    private = tmp_path / "private/sparseagg"
    made_backup(start_server, tmp_path)
    (private / "data").mkdir(parents=True)
    (tmp_path / "backups").rename(private / "backups")
    (tmp_path / "sparseagg").symlink_to("private/sparseagg")
    os.chown(private, owner, -1)
    for name in ("back up", "restore"):
        lines = run_page_block("backup", f"not here: systemd, to {name}").replace(
            "/var/lib/sparseagg", str(tmp_path / "sparseagg")
        )
        here = [line for line in lines.splitlines() if line.split()[0] not in ("sparseagg", "systemctl")]
        subprocess.run(["sh", "-ec", "\n".join(here)], check=True, cwd=tmp_path)
    restored = [private / "data", *(private / "data").rglob("*")]
    assert {path.stat().st_uid for path in restored} == {owner}
    assert (private / "data").stat().st_mode & 0o777 == 0o700
    assert has_the_submission(private / "data", start_server)


def test_every_howto_is_run_or_has_no_command() -> None:
    run_here = {"backup", "choose", "deploy-compose", "deploy-kubernetes", "migrate", "monitor", "size", "troubleshoot"}
    run_here |= {"upgrade"}
    with_commands = {path.stem for path in HOWTOS.glob("*.md") if "```sh" in path.read_text(encoding="utf-8")}
    assert with_commands == run_here  # migrate by test_tutorials.py
    left_out = {
        content.split()[0]
        for page in run_here
        for language, title, content in run_page.blocks_of(text_of(page))
        if title.startswith("not here")
    }
    assert left_out == {"chown", "kubectl", "podman", "sparseagg", "systemctl"}


# ---- monitor ----


def test_monitor_has_every_alert() -> None:
    rules = yaml.safe_load((REPOSITORY / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert re.findall(r"^\| `(Sparseagg\w+)` \|", text_of("monitor"), re.MULTILINE) == alerts


def test_tune_names_flags_of_the_server() -> None:
    offered = subprocess.run([server_binary(), "--help"], check=True, capture_output=True, text=True).stdout
    named = set(re.findall(r"`(--[a-z-]+)", text_of("tune")))
    assert len(named) > 10
    assert named - set(re.findall(r"--[a-z-]+", offered)) == set()


# ---- size ----


@pytest.fixture(scope="module")
def size() -> Callable[..., dict[str, int]]:
    """The function of the page."""
    names: dict[str, object] = {"__name__": "size"}
    exec(compile(run_page_block("size", "size.py"), "size.py", "exec"), names)
    return names["size"]  # type: ignore[return-value]


def run_page_block(page: str, name: str) -> str:
    (content,) = [content for _, title, content in run_page.blocks_of(text_of(page)) if title == name]
    return content


def metric(server: ServerProcess, name: str) -> int:
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=60) as answer:
        return int(float(re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)[1]))


@pytest.mark.parametrize("numerics", ["canonical", "fixed_point"])
@pytest.mark.parametrize(
    ("clients", "rows", "num_rows", "width", "dtype"),
    [
        (1, 100_000, 1_000_000, 64, "float32"),
        (20, 10_000, 1_000_000, 64, "float32"),
        (50, 10_000, 100_000, 64, "float32"),  # fixed_point merges while they come
        (30, 20_000, 20_000, 64, "float16"),
        (100, 5_000, 0, 1, "float64"),
    ],
)
def test_size_is_what_a_server_holds(
    size: Callable[..., dict[str, int]],
    start_server: Callable[..., ServerProcess],
    numerics: str,
    clients: int,
    rows: int,
    num_rows: int,
    width: int,
    dtype: str,
) -> None:
    """At the --memory-limit that the page says, a round of that size fits, and holds what the page says."""
    value_bytes = np.dtype(dtype).itemsize
    planned = size(clients, rows, width, num_rows, value_bytes, numerics, uploads=1)
    limit = planned["--memory-limit"]
    server = start_server("--metrics-address", "127.0.0.1:0", "--memory-limit", f"{limit}MiB")
    options = {} if numerics == "canonical" else {"numerics": numerics, "value_bound": 10.0, "max_submissions": 1000}
    spec = sa.RoundSpec([sa.TensorSpec("t", dtype, num_rows=num_rows, row_width=width)], **options)  # type: ignore[arg-type]
    most = resident = 0
    with sa.Client(server.address) as client:
        opened = client.create_round(spec)
        for number in range(clients):
            rng = np.random.default_rng(number)
            keys = np.sort(rng.choice(num_rows or 10**8, rows, replace=False))
            opened.submit(f"client-{number}", {"t": (keys, np.ones((rows, width), dtype))})
            most = max(most, metric(server, "sparseagg_kept_bytes"))
            resident = max(resident, metric(server, "process_resident_memory_bytes"))
        opened.finish()
        done = metric(server, "sparseagg_kept_bytes")
    in_mib = most / MIB
    least = 0.97 if numerics == "canonical" else 0.6
    assert least * planned["an open round holds"] - 1 <= in_mib <= 1.02 * planned["an open round holds"] + 1
    assert done / MIB <= planned["a round that is done holds"] + 1
    assert resident / MIB <= planned["memory of the container or unit"]


@pytest.mark.parametrize("limit", [256, 300, 1000, 2500, 20_000])
@pytest.mark.parametrize("data_dir", [False, True])
def test_size_divides_memory_as_the_server_does(
    limit: int,
    data_dir: bool,
    size: Callable[..., dict[str, int]],
    start_server: Callable[..., ServerProcess],
    tmp_path: Path,
) -> None:
    """Of rounds that fill the server's share of them exactly, the page says the server's own limit."""
    flags = ("--data-dir", str(tmp_path / "data")) if data_dir else ()
    server = start_server("--metrics-address", "127.0.0.1:0", "--memory-limit", f"{limit}MiB", *flags)
    share = metric(server, "sparseagg_memory_limit_bytes") - metric(server, "sparseagg_kept_bytes")  # the store's
    rows = share // 8 - 1  # canonical, one client, a row of 4 and 4 bytes: the submission and the result
    planned = size(1, rows // 2, 1, 2**32, uploads=0, data_dir=data_dir)
    assert planned["an open round holds"] == pytest.approx(share / MIB, abs=1)
    assert planned["--memory-limit"] == pytest.approx(limit, abs=2)


# ---- errors ----

PAGE = (REPOSITORY / "docs/reference/errors.md").read_text(encoding="utf-8")


def shown_errors() -> list[str]:
    return re.findall(r"^- `+ ?(.*?) ?`+$", error_reference.with_texts(PAGE), re.MULTILINE)


def test_errors_have_a_cause_and_a_cure_each() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert len(sections) > 20
    for section in sections:
        assert "**Cause**:" in section
        assert "**Cure**:" in section
        assert section.count("<!-- errors: ") == 1
    assert len(shown_errors()) > 450


def test_errors_of_a_server_are_on_the_page(server: ServerProcess, client: sa.Client) -> None:
    """What a server says when it is used wrongly has a line of the page that fits as a whole, or but for its end."""
    opened = client.create_round(sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=10)], min_submissions=1))
    opened.submit("a", {"t": ([1], [1.0])})
    bad = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=10, row_width=100_000)])
    calls: list[Callable[[], object]] = [
        lambda: client.get_round("nothing"),
        lambda: client.create_round(bad),
        lambda: client.create_round(bad, "no id"),
        lambda: opened.submit("b", {"t": ([10], [1.0])}),
        lambda: opened.submit("b", {"t": ([1], [np.nan])}),
        lambda: opened.submit("a", {"t": ([2], [1.0])}, submission_id="other"),
        lambda: opened.submit("b", {"u": ([1], [1.0])}),
        lambda: opened.withdraw("nobody"),
        lambda: export_partial(opened),
    ]
    patterns = [
        re.compile(".*" + ".*".join(map(re.escape, each.split("…"))) + ".*", re.DOTALL)
        for each in shown_errors()
        if len(each.replace("…", "")) > 10
    ]
    said = []
    for call in calls:
        try:
            call()
        except (sa.SparseaggError, ValueError) as error:
            said.append(str(error))
    assert len(said) >= 7, said
    for each in said:
        assert any(pattern.fullmatch(each) for pattern in patterns), each
    opened.delete()


def test_troubleshoot_quotes_errors_that_there_are() -> None:
    """Those of the server; "…" stands for the same as on the page of errors, or for more."""
    quoted = [
        each
        for line in re.findall(r"^\| (`.*?) \| ", text_of("troubleshoot"), re.MULTILINE)
        for each in re.findall(r"`([^`]+)`", line)
    ]
    assert len(quoted) >= 10
    known = shown_errors()
    for each in quoted:
        assert any(each in text for text in known), each


def test_troubleshoot_quotes_the_client() -> None:
    """What the client says where it does not reach a server; without the spaces at which its source is folded."""
    section = text_of("troubleshoot").partition("## The server is not reached")[2].partition("\n## ")[0]
    said = re.findall(r"^\| ([^|]+?) \| [^|]+ \| [^|]+ \|$", section, re.MULTILINE)[1:]
    assert len(said) == 7
    sources = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "python/src").rglob("*.py"))
    folded = re.sub(r'"\s*f?"', "", sources)
    assert [each for each in said if each not in folded] == []
