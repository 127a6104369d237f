"""deploy/ against the real server: it runs with the flags and files of every deployment, is reached there at each port
that the documentation names, and gets the memory and the time that it needs.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import shlex
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import sparseagg as sa
import yaml
from real_server import REPOSITORY, server_binary

sys.path += [str(REPOSITORY / "scripts"), str(REPOSITORY / "tests" / "support")]
import howto_programs

check_deploy = pytest.importorskip("check_deploy", reason="`make lint-deploy` installs what it needs")
helm_python = pytest.importorskip("helm_python", reason="`make lint-deploy` installs it")

DEPLOY = REPOSITORY / "deploy"
CHART = DEPLOY / "helm" / "sparseagg"
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
SECURE = COMPOSE.with_name("secure.yaml")
UNIT = DEPLOY / "systemd" / "sparseagg.service"
HOWTOS = REPOSITORY / "docs" / "howto"


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def flags_of_server() -> set[str]:
    output = subprocess.run([server_binary(), "--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"(--[a-z-]+)", output))


def compose_server() -> dict:
    return yaml.safe_load(text(COMPOSE))["services"]["server"]


def rendered(values: dict | None = None) -> dict[str, dict]:
    """The chart's manifests by kind."""
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(values or {}, name="release", namespace="default")
    manifests = [yaml.safe_load(each) for name, each in texts.items() if name.endswith(".yaml")]
    return {each["kind"]: each for each in manifests if each is not None}


def pod_of(found: dict[str, dict]) -> dict:
    return found["Deployment"]["spec"]["template"]["spec"]


def config_of(found: dict[str, dict]) -> dict[str, str]:
    return config_to_flags(found["ConfigMap"]["data"]["server.toml"])


def documented() -> dict[str, int]:
    """The ports of docs/reference/flags.md: of grpc, metrics and http."""
    ports = re.findall(
        r"^\| `--(\w+)-address` \| `127\.0\.0\.1:(\d+)` \|",
        text(REPOSITORY / "docs" / "reference" / "flags.md"),
        re.MULTILINE,
    )
    return {name: int(port) for name, port in ports}


@dataclasses.dataclass(frozen=True)
class Deployment:
    """Flags by name without dashes, and the server's ports that others may call. Those call over an interface that is
    not the server's loopback, unless ``is_local``.
    """

    flags: dict[str, str]
    published: set[int]
    is_local: bool = False


def words_to_flags(words: list[str]) -> dict[str, str]:
    """The flags of a command line, as --name=value, --name value, or --name."""
    return dict(re.findall(r"--([a-z-]+)(?:[= ]([^- ]\S*))?", " ".join(words)))


def config_to_flags(config: str) -> dict[str, str]:
    """The flags of a file for --config."""
    pairs = re.findall(r"^([a-z-]+) = (.*)$", config, re.MULTILINE)
    return {name: "" if value == "true" else str(json.loads(value)) for name, value in pairs}


def container_ports(mappings: list[str]) -> set[int]:
    """The container's ends of HOST:PORT:PORT, which is all of which a server in the container knows."""
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", mapping) for mapping in mappings), "the same port on both sides"
    return {int(mapping.rpartition(":")[2]) for mapping in mappings}


def compose() -> Deployment:
    service = compose_server()
    return Deployment(words_to_flags(service["command"]), container_ports(service["ports"]))


def compose_secure() -> Deployment:
    service = howto_programs.composed([COMPOSE, SECURE])["services"]["server"]
    ports = [mapping.rpartition(":") for mapping in service["ports"]]
    assert {host for host, _, _ in ports} == {"8001", "127.0.0.1:8002", "8003"}, "the metrics have no credentials"
    return Deployment(words_to_flags(service["command"]), {int(port) for _, _, port in ports})


def statefulset() -> Deployment:
    manifests = list(yaml.safe_load_all(text(DEPLOY / "statefulset" / "servers.yaml")))
    found = {each["kind"]: each["spec"] for each in manifests}
    (container,) = found["StatefulSet"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["name"]: port["port"] for port in found["Service"]["ports"]} == ports
    policy = [port["port"] for rule in found["NetworkPolicy"]["ingress"] for port in rule["ports"]]
    assert sorted(policy) == sorted(ports)
    flags = words_to_flags(container["args"])
    (limit,) = re.findall(r"^(\d+)GiB$", flags["memory-limit"])
    resources = container["resources"]
    memory = f"{math.ceil(int(limit) * 1024 * 1.1)}Mi"
    assert (resources["requests"]["memory"], resources["limits"]["memory"]) == (memory, memory)
    assert flags["threads"] == resources["requests"]["cpu"]
    pod = found["StatefulSet"]["template"]["spec"]
    assert {volume["secret"]["defaultMode"] for volume in pod["volumes"]} == {0o440}  # the server warns of others
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    (mount,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "data"]
    assert flags["data-dir"].startswith(f"{mount}/")  # below it: a volume may have lost+found of another owner
    stop_s = sum(int(flags[name].removesuffix("s")) for name in ("drain-delay", "shutdown-deadline"))
    assert pod["terminationGracePeriodSeconds"] > stop_s
    return Deployment(flags, set(ports.values()))


def podman() -> Deployment:
    (command,) = re.findall(r"^(podman run (?:.*\\\n)*.*)$", text(HOWTOS / "deploy-compose.md"), re.MULTILINE)
    _, _, after = command.partition(" sparseagg-server ")
    ports = container_ports(re.findall(r"-p (\S+)", command))
    exposed = re.findall(r"^EXPOSE (.*)$", text(CONTAINERFILE), re.MULTILINE)
    assert {int(port) for port in exposed[0].split()} == ports
    return Deployment(words_to_flags(shlex.split(after)), ports)


def chart(**values: object) -> Deployment:
    found = rendered(values)
    (container,) = pod_of(found)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    # Callers come through the Service, Prometheus and probes to the pod; the policy must let both in.
    service = {port["name"]: port["targetPort"] for port in found["Service"]["spec"]["ports"]}
    assert set(service.values()) == set(ports) - {"metrics"}
    if "NetworkPolicy" in found:
        policy = [port["port"] for rule in found["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]]
        assert sorted(policy) == sorted(ports)
    return Deployment(config_of(found), set(ports.values()))


def howto_values() -> dict:
    (values,) = re.findall(
        r'^```yaml title="values.yaml"\n(.*?)^```$', text(HOWTOS / "deploy-kubernetes.md"), re.MULTILINE | re.DOTALL
    )
    return yaml.safe_load(values)


def unit() -> Deployment:
    return Deployment(config_to_flags(text(DEPLOY / "systemd" / "server.toml")), set(documented().values()), True)


def bare() -> Deployment:
    return Deployment({}, set(documented().values()), True)


DEPLOYMENTS: dict[str, Callable[[], Deployment]] = {
    "compose": compose,
    "podman": podman,
    "compose with TLS": compose_secure,
    "statefulset": statefulset,
    **{f"chart with {name}": functools.partial(chart, **values) for name, values in check_deploy.ACCEPTED.items()},
    "chart with the values of its page": lambda: chart(**howto_values()),
    "systemd unit": unit,
    "no flags": bare,
}


def run_as(deployment: Deployment, start_server: Callable, folder: Path):
    """Starts the server with the deployment's flags, but at free ports and with files that are here."""
    flags = {"grpc-address": "127.0.0.1:8001", "metrics-address": "127.0.0.1:8002", "http-address": "127.0.0.1:8003"}
    flags.update(deployment.flags)
    if flags.get("backend") == "cuda":  # which needs a GPU
        flags["backend"] = "cpu"
        del flags["gpu-devices"]
    files = files_of_a_deployment(start_server, folder) if "/run/secrets" in str(flags) else {}
    for name, value in flags.items():
        if value.startswith("/run/secrets/"):
            flags[name] = str(files[name])
        elif value.startswith("/var/"):
            flags[name] = str(folder / name)
    for name, port in documented().items():
        if flags[f"{name}-address"] == "none":
            continue
        host, _, number = flags[f"{name}-address"].rpartition(":")
        assert int(number) == port, f"{name} is at another port than the one that is documented"
        assert deployment.is_local or host == "0.0.0.0", f"nobody outside reaches {name}"
        flags[f"{name}-address"] = f"{host}:0"
    address = flags.pop("grpc-address")
    return start_server(
        *(word for name, value in flags.items() for word in (f"--{name}", value) if word), address=address
    )


def files_of_a_deployment(start_server: Callable, folder: Path) -> dict[str, Path]:
    """The files that a deployment mounts, by flag."""
    start_server("--dev-tls", str(folder / "tls"))
    files = {name: folder / name for name in ("tokens-file", "noise-key-file", "certificate-key", "jwt-key")}
    files["tokens-file"].write_text("")
    files["noise-key-file"].write_bytes(os.urandom(32))
    files["noise-key-file"].chmod(0o600)
    new = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(files["certificate-key"])]
    subprocess.run(new, check=True)
    public = ["openssl", "pkey", "-in", str(files["certificate-key"]), "-pubout", "-out", str(files["jwt-key"])]
    subprocess.run(public, check=True)
    for name, file in (("certificate", "server.pem"), ("key", "server.key"), ("client-ca", "ca.pem")):
        files[f"tls-{name}"] = folder / "tls" / file
    return files


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_deployment_every_documented_port_is_published_and_answers(name, start_server, tmp_path):
    assert set(documented()) == {"grpc", "metrics", "http"}
    deployment = DEPLOYMENTS[name]()
    has_http = deployment.flags.get("http-address") != "none"
    published = {number for name, number in documented().items() if name != "http" or has_http}
    assert deployment.published == published
    server = run_as(deployment, start_server, tmp_path)
    tls, client_tls = None, False
    if "tls-certificate" in deployment.flags:
        ca, *own = (str(tmp_path / "tls" / name) for name in ("ca.pem", "client.pem", "client.key"))
        tls, client_tls = ssl.create_default_context(cafile=ca), sa.TLS(ca)
        if "tls-client-ca" in deployment.flags:
            tls.load_cert_chain(*own)
            client_tls = sa.TLS(ca, *own)
    needs_token = {"tokens-file", "jwt-key"} & set(deployment.flags) and "tls-client-ca" not in deployment.flags

    def get(address: str, path: str, scheme: str = "http") -> str:
        local = address.replace("0.0.0.0", "127.0.0.1")
        with urllib.request.urlopen(f"{scheme}://{local}{path}", timeout=60, context=tls) as answer:
            return answer.read().decode()

    scheme = "http" if tls is None else "https"
    if has_http:
        assert "<title>" in get(server.http_address, "/", scheme), "the status page"
        assert "Client" in get(server.http_address, "/sparseagg.js", scheme)
    assert "sparseagg_" in get(server.metrics_address, "/metrics")
    for path in ("/readyz", "/healthz"):
        assert get(server.metrics_address, path)
    with sa.Client(server.address.replace("0.0.0.0", "127.0.0.1"), tls=client_tls) as client:
        if not needs_token:
            assert client.server_info().version == sa.__version__
            if has_http and tls is None:
                assert json.loads(get(server.http_address, "/v1/rounds")).get("rounds", []) == []
        else:
            with pytest.raises(sa.errors.UnauthenticatedError):
                client.server_info()


def test_compose_gateway_answers_no_page_that_has_made_its_name_one_of_this_machine(start_server, tmp_path):
    """The port is published on the loopback, where browsers are, and the server in the container cannot tell."""
    address = run_as(compose(), start_server, tmp_path).http_address.replace("0.0.0.0", "127.0.0.1")
    for host in ("127.0.0.1:8003", "localhost:8003", "server:8003"):
        request = urllib.request.Request(f"http://{address}/v1/rounds", headers={"Host": host})
        urllib.request.urlopen(request, timeout=60).close()
    request = urllib.request.Request(f"http://{address}/v1/rounds", headers={"Host": "evil.example:8003"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=60)


def test_flags_of_kuberay_and_of_the_chart_are_those_of_the_server() -> None:
    flags = flags_of_server()
    kuberay = set(re.findall(r"(--[a-z][a-z-]*)", text(DEPLOY / "kuberay" / "raycluster.yaml")))
    assert kuberay
    assert kuberay <= flags
    configmap = text(CHART / "templates" / "configmap.yaml")
    keys = {"--" + key for key in re.findall(r"^    ([a-z-]+) = ", configmap, re.MULTILINE)}
    schema = yaml.safe_load(text(CHART / "values.schema.json"))["properties"]["config"]
    taken = {"--" + name for name in schema["propertyNames"]["enum"]}
    elsewhere = {"--config", "--help", "--version", "--owners-file", "--dev-tls"}  # a server in a pod has no owner
    assert taken == flags - elsewhere - (keys - {"--log-format", "--threads", "--backup-dir"})


def test_compose_publishes_on_loopback_alone_and_mounts_files_that_there_are() -> None:
    services = yaml.safe_load(text(COMPOSE))["services"].values()
    ports = [port for each in services for port in each["ports"]]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    sources = [mount.split(":")[0] for each in services for mount in each.get("volumes", [])]
    files = [source for source in sources if source.startswith(".")]
    assert len(files) == 5
    assert all((COMPOSE.parent / source).is_file() for source in files)
    assert f"server:{documented()['metrics']}" in text(COMPOSE.with_name("prometheus.yml"))
    assert f"127.0.0.1:{documented()['metrics']}/readyz" in str(compose_server()["healthcheck"])
    # `docker compose up` of the one cannot replace the server of the other, nor take its volume.
    names = [re.findall(r"^name: (.*)$", text(path), re.MULTILINE) for path in (COMPOSE, SECURE)]
    assert names == [["sparseagg-trial"], ["sparseagg"]]


def test_limits_of_compose_and_unit_leave_the_server_its_tenth_and_its_time() -> None:
    flags = words_to_flags(compose_server()["command"])
    limit_gib = int(flags["memory-limit"].removesuffix("GiB"))
    assert compose_server()["mem_limit"] == f"{math.ceil(limit_gib * 1024 * 1.1)}m"
    drain_s = int(flags.get("drain-delay", "0s").removesuffix("s")) + int(flags["shutdown-deadline"].removesuffix("s"))
    assert int(compose_server()["stop_grace_period"].removesuffix("s")) > drain_s
    (timeout_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", text(UNIT), re.MULTILINE)
    assert int(timeout_s) > 10  # the server's default


@pytest.mark.parametrize("data", [{"claim": "rounds"}, {"size": "50Gi"}])
def test_chart_keeps_the_data_on_the_claim(data: dict) -> None:
    found = rendered({"data": {**data, "restoreSeconds": 60}})
    pod, config, spec = pod_of(found), config_of(found), found["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})  # never two servers of one claim
    (container,) = pod["containers"]
    (mount,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "data"]
    for flag in ("data-dir", "backup-dir"):
        assert config[flag].startswith(f"{mount}/")  # below it: a volume may have lost+found of another owner
    if "size" in data:
        made = found["PersistentVolumeClaim"]["metadata"]
        assert made["annotations"] == {"helm.sh/resource-policy": "keep"}
    name = data.get("claim") or made["name"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": name}} in pod["volumes"]
    assert pod["securityContext"]["fsGroup"] == 10001
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 60


def test_chart_mounts_each_file_that_its_config_names() -> None:
    values = {
        "credentials": {"tokensSecret": "a", "tlsSecret": "b", "jwtKeySecret": "c", "clientCertificates": True},
        "noiseKeySecret": "d",
        "certificateKeySecret": "e",
    }
    found = rendered(values)
    named = set(re.findall(r"(/run/secrets/[^/]+)/", str(config_of(found))))
    pod = pod_of(found)
    mounted = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    secrets = {volume["name"]: volume["secret"] for volume in pod["volumes"] if "secret" in volume}
    assert {secrets[mounted[path]]["secretName"] for path in named} == set("abcde")
    # Kubernetes' own default lets everybody in the container read them, of which the server warns.
    assert {each["defaultMode"] for each in secrets.values()} == {0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_chart_runs_as_nobody_who_may_write() -> None:
    pod = pod_of(rendered())
    (user,) = re.findall(r"^USER (\d+):\d+$", text(CONTAINERFILE), re.MULTILINE)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == int(user) > 0
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
