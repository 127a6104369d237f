"""Each alert of deploy/prometheus, provoked on real servers and seen by a real Prometheus, sixty times as fast.

Every minute of the rules is a second here, and an hour a minute: windows, `for` and all. Thresholds are the rules' own.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import machine
import numpy as np
import pytest
import sparseagg as sa
import yaml
from conftest import contained, get
from real_server import ServerProcess, server_binary

RULES = machine.REPOSITORY / "deploy/prometheus/alerts.yml"
ONCE = sa.RetryPolicy(attempts=1)
SPEC = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=1_000_000)])
MEDIAN = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=1_000_000, op="median")])
METRICS = ("--metrics-address", "127.0.0.1:0")
SLOWLY = {"scrape_interval": "3s", "scrape_timeout": "3s"}  # a server that has no time to answer
ADDRESS = "127.0.0.1:9090"


def update(rows: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {"t": (np.arange(rows), np.ones(rows, np.float32))}


class Field:
    """Servers, what is done to them again and again, and the Prometheus that looks on."""

    def __init__(self, folder: Path, start: Callable[..., ServerProcess]) -> None:
        self.folder, self.start_server = folder, start
        self.over = threading.Event()
        self.targets: list[str] = []
        self.seen: set[str] = set()
        self._ends = contextlib.ExitStack()
        rules = re.sub(r"\b(\d+)m\b", r"\1s", RULES.read_text())
        (folder / "alerts.yml").write_text(re.sub(r"\b(\d+)h\b", lambda hours: f"{60 * int(hours[1])}s", rules))
        config = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [
                {"job_name": "sparseagg", "file_sd_configs": [{"files": ["targets.json"]}]},
                {**SLOWLY, "job_name": "sparseagg-starved", "file_sd_configs": [{"files": ["starved.json"]}]},
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        for name in ("targets.json", "starved.json"):
            self.scrape([], name)
        flags = [f"--web.listen-address={ADDRESS}", f"--config.file={folder}/prometheus.yml"]
        self.run([machine.PROMETHEUS, *flags, f"--storage.tsdb.path={folder}/tsdb"], stderr=(folder / "log").open("w"))

    def scrape(self, targets: list[str], file: str = "targets.json") -> None:
        (self.folder / "new").write_text(json.dumps([{"targets": targets}]))
        (self.folder / "new").rename(self.folder / file)

    def run(self, command: list[str | Path], **options: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, **options)  # type: ignore[call-overload]
        self._ends.callback(process.wait)
        self._ends.callback(process.kill)
        return process  # type: ignore[no-any-return]

    def start(self, *flags: str) -> ServerProcess:
        server = self.start_server(*METRICS, *flags)
        self.add(server.metrics_address)
        return server

    def add(self, target: str) -> None:
        self.targets.append(target)
        self.scrape(self.targets)

    def client(self, server: ServerProcess, **options: object) -> sa.Client:
        return self._ends.enter_context(sa.Client(server.address, retry=ONCE, timeout=60, **options))  # type: ignore[arg-type]

    def again(self, call: Callable[[], object], pause_s: float = 0.2) -> None:
        """Calls until the end; what the server refuses is meant."""

        def repeat() -> None:
            while not self.over.wait(pause_s):
                with contextlib.suppress(sa.SparseaggError, grpc.RpcError, OSError):
                    call()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        self._ends.callback(thread.join)

    def wait_for(self, *alerts: str) -> None:
        """Until each of them has fired at some time."""
        deadline = time.monotonic() + 120
        while not self.seen >= set(alerts):
            with contextlib.suppress(OSError):
                found = get(f"http://{ADDRESS}/api/v1/alerts")["data"]["alerts"]
                for name in {each["labels"]["alertname"] for each in found if each["state"] == "firing"} - self.seen:
                    self.seen.add(name)
                    print(f"{name} fires")
            assert time.monotonic() < deadline, f"in vain: {set(alerts) - self.seen}"
            time.sleep(0.1)

    def close(self) -> None:
        self.over.set()
        self._ends.close()


@pytest.fixture
def field(tmp_path: Path, start_server: Callable[..., ServerProcess]) -> Iterator[Field]:
    made = Field(tmp_path, start_server)
    yield made
    made.close()


def full_memory(field: Field) -> None:
    """MemoryNearlyFull, Shedding: canonical submissions until there is no room."""
    client = field.client(field.start("--memory-limit", "256MiB"))
    opened = client.create_round(SPEC)
    numbers = iter(range(10**9))
    field.again(lambda: opened.submit(f"c{next(numbers)}", update(300_000)), 0.01)


def invalid(field: Field) -> None:
    """ManyInvalid: a key that the tensor does not have."""
    opened = field.client(field.start()).create_round(SPEC)
    field.again(lambda: opened.submit("a", {"t": ([1_000_000], [1.0])}))


def credentials(field: Field) -> None:
    """TenantAtLimit, Denied, CertificateEnds, ReloadFailed."""
    tokens, key, certificate = (field.folder / name for name in ("tokens", "key.pem", "certificate.pem"))
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 10 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    create = [Path(sys.executable).with_name("sparseagg"), "keys", "create", tokens, "--role", "coordinator"]
    token = subprocess.run(create, check=True, capture_output=True, text=True).stdout.strip()
    flags = ("--tokens-file", str(tokens), "--tls-certificate", str(certificate), "--tls-key", str(key))
    server = field.start(*flags, "--max-open-rounds-per-tenant", "1")
    client = field.client(server, tls=str(certificate), token=token)
    stranger = field.client(server, tls=str(certificate), token="of nobody")
    field.again(lambda: client.create_round(SPEC))
    field.again(stranger.server_info)
    tokens.write_text("what is no token\n")


def connections(field: Field) -> None:
    """ConnectionsRefused: as many callers as there may be connections, and one more each time."""
    server = field.start("--max-connections", "4")
    host, port = server.address.rsplit(":", 1)
    for _ in range(4):
        channel = grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
        field._ends.enter_context(channel)
        call = channel.unary_unary("/sparseagg.v1.Aggregation/GetServerInfo")
        field.again(functools.partial(call, b"", timeout=5), 0.05)
    field.again(lambda: socket.create_connection((host, int(port)), 5).close(), 0.05)


def in_flight(field: Field) -> None:
    """InFlightMemoryFull: the attack of tests/system/floods with calls whose message never comes."""
    attacks = machine.REPOSITORY / "tests/system/floods/attacks.py"
    server = field.start("--memory-limit", "256MiB")
    field.run([sys.executable, attacks, "no_message", server.address])


def full_disk(field: Field) -> None:
    """DiskNearlyFull: a file system of which something else has taken the rest."""
    disk = field.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=True)
    field._ends.callback(subprocess.run, ["umount", "--lazy", disk], check=True)
    client = field.client(field.start("--data-dir", str(disk / "data")))
    client.create_round(SPEC).submit("a", update(1_000_000))
    with contextlib.suppress(OSError):
        (disk / "another").write_bytes(bytes(64 << 20))


def unread_log(field: Field) -> None:
    """LogDropped: standard error is a pipe that nobody reads."""
    flags = ["--grpc-address", "127.0.0.1:0", "--http-address", "", *METRICS, "--log-level", "debug"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = field.run([server_binary(), *flags], **streams)
    line = process.stdout.readline().decode()  # type: ignore[union-attr]
    grpc, metrics = (re.search(rf"{name}=(\S+)", line)[1] for name in ("grpc", "metrics"))  # type: ignore[index]
    field.add(metrics)
    client = field._ends.enter_context(sa.Client(grpc, retry=ONCE))
    field.again(lambda: client.create_round(SPEC).delete(), 0)


def starved(field: Field) -> None:
    """SlowFinish: a container that is left a fiftieth of a core when all of its rounds are closed."""
    with pytest.MonkeyPatch.context() as patch:
        contained(patch, field.folder, "--name", "starved")
        server = field.start_server(*METRICS)
    field.scrape([server.metrics_address], "starved.json")
    client = field.client(server)
    opened = [client.create_round(MEDIAN) for _ in range(16)]
    for each in opened:
        for number in range(8):
            each.submit(f"c{number}", update(1_000_000))
    machine.podman("update", "--cpus", "0.02", "starved")
    for each in opened:
        each.close()


def fault(field: Field) -> None:
    """ServerFaults, GpuLost: a page of metrics in the place of a server, since no way is known to make one say so."""
    counts = iter(range(10**9))

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'sparseagg_gpu_usable{device="1"} 0\n')
            self.wfile.write(b'sparseagg_submissions_total{result="failed"} %d\n' % min(next(counts) // 10, 1))

        def log_message(self, *_: object) -> None: ...

    page = http.server.HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    field._ends.callback(page.shutdown)
    field.add(f"127.0.0.1:{page.server_port}")


def test_each_alert_fires(field: Field) -> None:
    wanted = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    field.wait_for("SparseaggAbsent")
    field.start()
    field.start().kill()
    field.wait_for("SparseaggDown")
    field.targets.pop()
    field.scrape(field.targets)
    field.wait_for("SparseaggFewer")
    for provoke in (starved, full_memory, invalid, credentials, connections, in_flight, full_disk, unread_log, fault):
        provoke(field)
    field.wait_for(*wanted)
