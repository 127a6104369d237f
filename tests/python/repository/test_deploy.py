"""deploy/ against the real server: flags, ports, paths, packages, memory and time limits."""

from __future__ import annotations

import math
import platform
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request

import pytest
import sparseagg as sa
import yaml
from real_server import REPOSITORY, server_binary

sys.path.append(str(REPOSITORY / "tests" / "support"))
import howto_programs

DEPLOY = REPOSITORY / "deploy"
CHART = DEPLOY / "helm" / "sparseagg"
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
SECURE = COMPOSE.with_name("secure.yaml")
UNIT = DEPLOY / "systemd" / "sparseagg.service"
# Every "--flag" in these is one of the server's.
FILES_OF_FLAGS = [
    COMPOSE,
    SECURE,
    DEPLOY / "statefulset" / "servers.yaml",
    DEPLOY / "kuberay" / "raycluster.yaml",
    UNIT,
    CHART / "values.yaml",
    CHART / "templates" / "deployment.yaml",
]
DEFAULT_SHUTDOWN_S = 10


def text(path) -> str:
    return path.read_text(encoding="utf-8")


def flags_of_server() -> set[str]:
    output = subprocess.run([server_binary(), "--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"(--[a-z-]+)", output))


def compose_server() -> dict:
    return yaml.safe_load(text(COMPOSE))["services"]["server"]


def compose_flags() -> dict[str, str]:
    return dict(re.fullmatch(r"--([a-z-]+)(?:=(.*))?", word).groups("") for word in compose_server()["command"])


def rendered(values: dict | None = None) -> dict[str, dict]:
    """The chart's manifests by kind; skips where Helm is not there."""
    helm = pytest.importorskip("helm_python", reason="`make lint-deploy` installs it")
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values or {}, name="release", namespace="default")
    manifests = [yaml.safe_load(each) for name, each in texts.items() if name.endswith(".yaml")]
    return {each["kind"]: each for each in manifests if each is not None}


def libraries(binary: str) -> list[str]:
    """The files of the libraries that it names itself, not those that they name in turn."""
    dynamic = subprocess.run(["readelf", "-d", binary], check=True, capture_output=True, text=True).stdout
    found = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
    paths = {path.rsplit("/", 1)[1]: path for path in re.findall(r"(/\S+\.so\S*)", found)}
    return [paths[name] for name in re.findall(r"NEEDED.*\[(.+)\]", dynamic)]


def test_containerfile_installs_the_libraries_that_the_server_names() -> None:
    if platform.freedesktop_os_release().get("VERSION_CODENAME") != "bookworm":
        pytest.skip("the packages have other names elsewhere")
    needed = set()
    for path in libraries(server_binary()):
        # Debian has some at /lib and some at /usr/lib, which are the same folder.
        names = [path, path.removeprefix("/usr") if path.startswith("/usr") else "/usr" + path]
        owner = subprocess.run(["dpkg", "-S", *names], capture_output=True, text=True).stdout
        needed.add(owner.partition(":")[0])
    install = re.findall(r"apt-get install -y --no-install-recommends(.*?)&&", text(CONTAINERFILE), re.DOTALL)
    assert set(install[0].replace("\\", " ").split()) - {"busybox"} == needed


@pytest.mark.parametrize("path", FILES_OF_FLAGS, ids=lambda path: path.name)
def test_flags_are_those_of_the_server(path) -> None:
    flags = set(re.findall(r"(--[a-z][a-z-]*)", text(path)))
    assert flags
    assert flags <= flags_of_server()


def test_chart_takes_the_flags_of_the_server_but_those_that_it_sets() -> None:
    configmap = text(CHART / "templates" / "configmap.yaml")
    keys = {"--" + key for key in re.findall(r"^    ([a-z-]+) = ", configmap, re.MULTILINE)}
    schema = yaml.safe_load(text(CHART / "values.schema.json"))["properties"]["config"]
    taken = {"--" + name for name in schema["propertyNames"]["enum"]}
    elsewhere = {"--config", "--help", "--version", "--owners-file", "--dev-tls"}  # a server in a pod has no owner
    assert taken == flags_of_server() - elsewhere - (keys - {"--log-format", "--threads", "--backup-dir"})


@pytest.mark.parametrize(
    ("values", "threads"),
    [
        ({}, "2"),
        ({"cpu": 8}, "8"),
        ({"cpu": "16"}, "16"),
        ({"cpu": 0.5}, None),
        ({"cpu": "1500m"}, None),
        ({"cpu": 8, "config": {"threads": 3}}, "3"),
    ],
)
def test_chart_has_a_thread_for_each_core_that_the_pod_asks_for(values, threads) -> None:
    config = rendered(values)["ConfigMap"]["data"]["server.toml"]
    assert re.findall(r"^threads = (.*)$", config, re.MULTILINE) == ([] if threads is None else [threads])


def test_paths_are_answered(start_server) -> None:
    server = start_server("--metrics-address", "127.0.0.1:0")
    files = [COMPOSE, *(CHART / "templates").glob("*.yaml")]
    paths = {path for each in files for path in re.findall(r"(?:path: |:8002)(/[a-z]+)\b", text(each))}
    assert paths == {"/healthz", "/readyz", "/metrics"}
    for path in paths:
        with urllib.request.urlopen(f"http://{server.metrics_address}{path}", timeout=30) as answer:
            assert answer.status == 200


def test_compose_publishes_on_loopback_alone() -> None:
    ports = [port for each in yaml.safe_load(text(COMPOSE))["services"].values() for port in each["ports"]]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_mounts_files_that_there_are() -> None:
    services = yaml.safe_load(text(COMPOSE))["services"].values()
    sources = [mount.split(":")[0] for each in services for mount in each.get("volumes", [])]
    files = [source for source in sources if source.startswith(".")]
    assert len(files) == 5
    assert all((COMPOSE.parent / source).is_file() for source in files)


def test_plain_compose_is_another_project_than_the_secure_one() -> None:
    """So that `docker compose up` of the one cannot replace the server of the other, nor take its volume."""
    names = {path.name: re.findall(r"^name: (.*)$", text(path), re.MULTILINE) for path in (COMPOSE, SECURE)}
    assert names == {"compose.yaml": ["sparseagg-trial"], "secure.yaml": ["sparseagg"]}


def test_secrets_of_compose_are_named_and_not_made() -> None:
    mounts = howto_programs.composed([SECURE])["services"]["server"]["volumes"]
    (mount,) = [each for each in mounts if isinstance(each, dict)]
    assert re.fullmatch(r"\$\{SPARSEAGG_SECRETS:\?.+\}", mount["source"])
    assert mount["bind"] == {"create_host_path": False}


@pytest.mark.parametrize("name", ["secrets/server.key", "secrets/tokens", "deploy/compose/secrets/tokens", "a.token"])
def test_secrets_in_the_checkout_are_not_committed(name: str) -> None:
    subprocess.run(["git", "-C", str(REPOSITORY), "check-ignore", "-q", name], check=True)


def test_compose_limits_leave_the_server_its_tenth_and_its_time() -> None:
    flags = compose_flags()
    limit_gib = int(flags["memory-limit"].removesuffix("GiB"))
    assert compose_server()["mem_limit"] == f"{math.ceil(limit_gib * 1024 * 1.1)}m"
    drain_s = int(flags.get("drain-delay", "0s").removesuffix("s")) + int(flags["shutdown-deadline"].removesuffix("s"))
    assert int(compose_server()["stop_grace_period"].removesuffix("s")) > drain_s


def test_unit_leaves_the_server_its_time() -> None:
    (timeout_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", text(UNIT), re.MULTILINE)
    assert int(timeout_s) > DEFAULT_SHUTDOWN_S


@pytest.mark.parametrize("limit_mib", [256, 1000, 4096, 4097])
def test_chart_limits_leave_the_server_its_tenth_and_its_time(limit_mib) -> None:
    values = {"memoryLimitMiB": limit_mib, "drain": {"delaySeconds": 7, "deadlineSeconds": 100}}
    pod = rendered(values)["Deployment"]["spec"]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    memory = f"{(limit_mib * 11 + 9) // 10}Mi"
    assert (resources["requests"]["memory"], resources["limits"]["memory"]) == (memory, memory)
    assert pod["terminationGracePeriodSeconds"] > 107


def test_chart_has_one_replica_and_never_two() -> None:
    spec = rendered()["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_chart_keeps_the_data_on_the_claim() -> None:
    found = rendered({"data": {"claim": "rounds", "restoreSeconds": 60}})
    (data_dir,) = re.findall(r'^data-dir = "(.*)"$', found["ConfigMap"]["data"]["server.toml"], re.MULTILINE)
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "data"]
    assert data_dir.startswith(mount["mountPath"] + "/")  # below it: a volume may have lost+found of another owner
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "rounds"}} in pod["volumes"]
    assert pod["securityContext"]["fsGroup"] == 10001
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 60
    assert f'backup-dir = "{mount["mountPath"]}/' in found["ConfigMap"]["data"]["server.toml"]
    assert "data-dir" not in rendered({})["ConfigMap"]["data"]["server.toml"]
    assert "backup-dir" not in rendered({})["ConfigMap"]["data"]["server.toml"]
    elsewhere = rendered({"data": {"claim": "rounds"}, "config": {"backup-dir": "/backups"}})
    (backups,) = re.findall(r'^backup-dir = "(.*)"$', elsewhere["ConfigMap"]["data"]["server.toml"], re.MULTILINE)
    assert backups == "/backups"


def test_chart_makes_a_claim_that_outlives_the_release() -> None:
    found = rendered({"data": {"size": "50Gi", "storageClass": "fast"}})
    claim = found["PersistentVolumeClaim"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["resources"]["requests"]["storage"] == "50Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    volumes = found["Deployment"]["spec"]["template"]["spec"]["volumes"]
    name = claim["metadata"]["name"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": name}} in volumes
    assert "data-dir" in found["ConfigMap"]["data"]["server.toml"]
    own = rendered({"data": {"size": "50Gi", "claim": "rounds"}})
    assert "PersistentVolumeClaim" not in own


def test_chart_mounts_each_file_that_its_config_names() -> None:
    values = {
        "credentials": {"tokensSecret": "a", "tlsSecret": "b", "jwtKeySecret": "c", "clientCertificates": True},
        "noiseKeySecret": "d",
        "certificateKeySecret": "e",
    }
    found = rendered(values)
    named = set(re.findall(r'"(/run/secrets/[^/]+)/', found["ConfigMap"]["data"]["server.toml"]))
    pod = found["Deployment"]["spec"]["template"]["spec"]
    mounted = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert len(named) == 5
    assert named <= set(mounted)
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert {secrets[mounted[path]] for path in named} == set("abcde")
    # Kubernetes' own default lets everybody in the container read them, of which the server warns.
    assert {volume["secret"]["defaultMode"] for volume in pod["volumes"] if "secret" in volume} == {0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


@pytest.mark.parametrize(
    ("credentials", "grpc", "http"), [({}, "kubernetes.io/h2c", "http"), ({"tlsSecret": "tls"}, "https", "https")]
)
def test_chart_says_what_its_ports_speak(credentials, grpc, http) -> None:
    """A gateway that was told of plain HTTP/2 would speak it to a port with TLS."""
    ports = rendered({"credentials": credentials})["Service"]["spec"]["ports"]
    assert {port["name"]: port["appProtocol"] for port in ports} == {"grpc": grpc, "http": http}


def test_chart_keeps_the_addresses_of_clients() -> None:
    """Behind an address of the node's, all clients would be one to the limits for each address."""
    assert "externalTrafficPolicy" not in rendered()["Service"]["spec"]
    for kind in ("NodePort", "LoadBalancer"):
        assert rendered({"service": {"type": kind}})["Service"]["spec"]["externalTrafficPolicy"] == "Local"


def test_chart_sends_an_ingress_to_the_http_port() -> None:
    found = rendered({"ingress": {"enabled": True, "host": "agg.example.org"}})
    (rule,) = found["Ingress"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": found["Service"]["metadata"]["name"], "port": {"name": "http"}}
    assert "Ingress" not in rendered({"ingress": {"enabled": True, "host": "a"}, "http": {"enabled": False}})


@pytest.mark.parametrize("credential", [{"tokensSecret": "a"}, {"jwtKeySecret": "a"}, {}])
def test_chart_warns_of_a_server_that_believes_everybody(credential) -> None:
    helm = pytest.importorskip("helm_python", reason="`make lint-deploy` installs it")
    with helm.Chart.load(CHART) as chart:
        texts = chart.render({"credentials": credential}, name="release", namespace="default")
    (notes,) = [each for name, each in texts.items() if name.endswith("NOTES.txt")]
    assert ("has no credentials" in notes) is (not credential)


def test_chart_runs_as_nobody_who_may_write() -> None:
    pod = rendered()["Deployment"]["spec"]["template"]["spec"]
    (user,) = re.findall(r"^USER (\d+):\d+$", text(CONTAINERFILE), re.MULTILINE)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == int(user) > 0
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_chart_config_is_one_that_the_server_takes(start_server, tmp_path) -> None:
    values = {"memoryLimitMiB": 512, "config": {"max-open-rounds": 1_000_000, "max-message-bytes": "1MiB"}}
    config = tmp_path / "server.toml"
    config.write_text(rendered(values)["ConfigMap"]["data"]["server.toml"], encoding="utf-8")
    server = start_server("--config", str(config), "--metrics-address", "127.0.0.1:0")
    with sa.Client(server.address) as client:
        limits = client.server_info().limits
    assert limits.memory_limit_bytes == 512 << 20
    assert limits.max_open_rounds == 1_000_000
    assert limits.max_message_bytes == 1 << 20


def test_sample_config_of_the_unit_is_one_that_the_server_takes(start_server, tmp_path) -> None:
    sample = text(DEPLOY / "systemd" / "server.toml")
    tls = tmp_path / "tls"
    start_server("--dev-tls", str(tls))
    (tmp_path / "tokens").write_text("")
    for path, here in [
        ("/etc/sparseagg/tokens", tmp_path / "tokens"),
        ("/etc/sparseagg/tls.crt", tls / "server.pem"),
        ("/run/credentials/sparseagg.service/tls.key", tls / "server.key"),
        ("/var/lib/sparseagg/data", tmp_path / "data"),
        ("/var/lib/sparseagg/backups", tmp_path / "backups"),
    ]:
        assert f'"{path}"' in sample
        sample = sample.replace(f'"{path}"', f'"{here}"')
    # As it is, and with all that it only shows.
    for number, each in enumerate([sample, re.sub(r"^# ?(?=[a-z-]+ = )", "", sample, flags=re.MULTILINE)]):
        config = tmp_path / f"{number}.toml"
        config.write_text(each, encoding="utf-8")
        start_server("--config", str(config), "--metrics-address", "127.0.0.1:0")


def test_unit_confines_the_server(tmp_path) -> None:
    """To what `systemd-analyze security` gives 2.0 of 10 or less; what the unit lacks costs the rest."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / UNIT.name  # without the program, which need not be installed here
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text(UNIT)))
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_unit_tries_again_for_as_long_as_a_cause_lasts() -> None:
    assert "\nStartLimitIntervalSec=0\n" in text(UNIT).partition("[Service]")[0]
    assert "\nRestart=on-failure\n" in text(UNIT)


def test_unit_has_the_folder_of_the_socket_that_its_config_shows() -> None:
    (folder,) = re.findall(r"^RuntimeDirectory=(.*)$", text(UNIT), re.MULTILINE)
    assert f'"unix:/run/{folder}/' in text(DEPLOY / "systemd" / "server.toml")


def test_unit_starts_what_the_containerfile_installs() -> None:
    (command,) = re.findall(r"^ExecStart=(.*)$", text(UNIT), re.MULTILINE)
    (entrypoint,) = re.findall(r"^ENTRYPOINT (.*)$", text(CONTAINERFILE), re.MULTILINE)
    assert yaml.safe_load(entrypoint) == shlex.split(command)[:1] == ["/usr/bin/sparseagg-server"]
