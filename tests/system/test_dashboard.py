"""The dashboard and the alerts of deploy/ ask for what there is: a real Prometheus evaluates them on a real server."""

from __future__ import annotations

import json
import math
import re
import shutil
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sparseagg as sa
import yaml
from real_server import REPOSITORY, ServerProcess
from sparseagg.optimizers import FedAdam

DASHBOARD = json.loads((REPOSITORY / "deploy/grafana/sparseagg.json").read_text(encoding="utf-8"))
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
ALERTS = REPOSITORY / "deploy/prometheus/alerts.yml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
PROMETHEUS = shutil.which("prometheus") or REPOSITORY / "build/lint/prometheus/usr/bin/prometheus"
SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:sparseagg|process)_\w+", expression))


def test_every_series_is_on_the_dashboard_or_in_an_alert() -> None:
    page = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    table = names_in("".join(re.findall(r"^\| (`.*?) \| ", page, re.MULTILINE)))
    used = names_in(" ".join(each["expr"] for each in [*TARGETS, *RULES]))
    assert len(table) > 40
    assert table == {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}


def test_every_alert_leads_to_its_section_of_the_runbook() -> None:
    page = (REPOSITORY / "docs/howto/runbook.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n\n((?:- .*\n)+)", page, re.MULTILINE))
    assert list(sections) == [rule["alert"] for rule in RULES]
    for rule in RULES:
        anchor = rule["alert"].lower()
        assert rule["annotations"]["runbook_url"] == f"https://sparseagg.invalid/howto/runbook.html#{anchor}"
    for lines in sections.values():
        assert re.findall(r"^- \*\*(\w+)\*\*: ", lines, re.MULTILINE) == ["Means", "Harm", "Look", "Do", "Ends"]


class Prometheus:
    """Scrapes one server five times a second and has the rules of deploy/."""

    def __init__(self, folder: Path, target: str) -> None:
        config = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": "sparseagg", "static_configs": [{"targets": [target]}]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        flags = ["--web.listen-address=127.0.0.1:0", f"--config.file={folder}/prometheus.yml"]
        command = [PROMETHEUS, *flags, f"--storage.tsdb.path={folder}/tsdb"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r'msg="Listening on" address=(\S+)', line):
                self.address = found[1]
                break
        else:
            raise AssertionError("".join(said))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # so that the pipe never fills

    def get(self, path: str, **parameters: str) -> dict:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[dict]:
        """The series, with the values that Grafana puts in the place of its variables."""
        filled = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
        assert "$" not in filled
        return self.get("query", query=filled)["result"]


class Life:
    """A server with credentials and a data directory, and all that may happen to it."""

    def __init__(self, folder: Path, start_server: Callable[..., ServerProcess]) -> None:
        tokens, tls, data = folder / "tokens", folder / "tls", folder / "data"
        create = [Path(sys.executable).with_name("sparseagg"), "keys", "create", tokens, "--role", "coordinator"]
        token = subprocess.run(create, check=True, capture_output=True, text=True).stdout.strip()
        addresses = ("--http-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0")
        files = ("--tokens-file", str(tokens), "--dev-tls", str(tls), "--data-dir", str(data))
        self.server = start_server(*addresses, *files)
        self.trust = ssl.create_default_context(cafile=str(tls / "ca.pem"))
        self.client = sa.Client(self.server.address, token=token, tls=sa.TLS(str(tls / "ca.pem")))
        self.stream = self.client.create_stream(SPEC, buffer=2, staleness=[1.0])
        self.model = self.client.model(
            "m", stream=self.stream, optimizer=FedAdam(), tensors={"v": sa.Rows(1, num_rows=10)}
        )

    def step(self) -> None:
        """A round with a bad submission, a task, a version of the model, and a request of somebody without a token."""
        rnd = self.client.create_round(SPEC)
        with pytest.raises(sa.SparseaggError):
            rnd.submit("b", {"v": ([10], [1.0])})
        rnd.submit("a", {"v": ([1], [1.0])})
        rnd.finish()
        self.client.create_tasks([sa.NewTask(b"nothing to do")])
        version = self.model.info.version
        for name in ("a", "b"):
            self.stream.submit(name, {"v": ([1], [1.0])}, base_version=version)
        self.model.wait(after=version)
        self.model.read({"v": [1]})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"https://{self.server.http_address}/v1/rounds", timeout=60, context=self.trust)


@pytest.fixture
def watched(tmp_path: Path, start_server: Callable[..., ServerProcess]) -> Iterator[tuple[Life, Prometheus]]:
    if not Path(PROMETHEUS).exists():
        pytest.skip("`make lint-deploy` unpacks Prometheus")
    life = Life(tmp_path, start_server)
    prometheus = Prometheus(tmp_path, life.server.metrics_address)
    yield life, prometheus
    prometheus.process.kill()
    prometheus.process.wait()
    life.client.close()


def test_prometheus_evaluates_every_query_and_finds_data(watched: tuple[Life, Prometheus]) -> None:
    life, prometheus = watched
    legends = {each["expr"]: each["legendFormat"] for each in TARGETS}
    # A rule may find nothing, but each series in it is there.
    series_of_rules = {each for rule in RULES for each in re.findall(r"\bsparseagg_\w+(?:\{[^}]*\})?", rule["expr"])}
    wanted = {each for each in legends.keys() | series_of_rules if "sparseagg_gpu" not in each}
    found: dict[str, list[dict]] = {}

    def without_data() -> list[str]:
        return [each for each in wanted if all(math.isnan(float(one["value"][1])) for one in found.get(each, []))]

    def have_data() -> bool:
        life.step()
        found.update((each, prometheus.query(each)) for each in without_data())
        return not without_data()

    try:
        life.server.wait_until(have_data)
    except AssertionError as error:
        raise AssertionError(f"without data: {without_data()}") from error
    for expression, legend in legends.items():
        labels = [set(each["metric"]) for each in found.get(expression, [])]
        assert all(set(re.findall(r"\{\{(\w+)\}\}", legend)) <= each for each in labels), expression
    for each in [*TARGETS, *RULES]:
        prometheus.query(each["expr"])
    (group,) = prometheus.get("rules")["groups"]
    assert [(each["name"], each["health"]) for each in group["rules"]] == [(rule["alert"], "ok") for rule in RULES]
