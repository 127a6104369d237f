"""Stands for docker, kubectl and helm where the how-tos call them: does with a server on this machine what they say.

``docker compose up`` merges the files that .env names, as Compose does, and starts the server with the service's
command: at a free port in the place of the published one, with the host's folders in the place of the container's.
``exec`` and ``run`` do on these folders what the container does. kubectl keeps what is created, and does the same on
the folder ``volume``; helm renders the chart and checks that all it mounts was created. Any other command line is an
error.

Files below HOWTO_STATE: ``address`` and ``pid`` of the server that was started, ``created.json``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
STATE = Path(os.environ.get("HOWTO_STATE", "."))


class _Override(list):  # type: ignore[type-arg]
    """A list that takes the place of the earlier files', rather than being appended."""


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_constructor("!override", lambda loader, node: _Override(loader.construct_sequence(node)))


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merged(old[key], value) if key in old else value for key, value in new.items()}}
    if isinstance(new, list) and not isinstance(new, _Override) and isinstance(old, list):
        return old + new
    return new


def composed(files: list[Path]) -> dict[str, Any]:
    """Returns the files of Compose as one."""
    found: dict[str, Any] = {}
    for file in files:
        found = _merged(found, yaml.load(file.read_text(encoding="utf-8"), _Loader))
    return found


def _in_container(words: list[str], folders: dict[str, str]) -> None:
    """Runs a command of busybox on the host's folders in the place of the container's."""
    assert words[0] == "busybox", words
    for path, folder in folders.items():
        words = [word.replace(path, folder) for word in words]
    subprocess.run(words[1:], check=True)


def docker(words: list[str]) -> None:
    """``compose`` with ``up``, ``stop``, ``exec`` and ``run``, of the files and with the variables that .env has."""
    assert words[0] == "compose", words
    if words[1:] == ["stop", "server"]:
        pid = int((STATE / "pid").read_text())
        os.kill(pid, signal.SIGTERM)
        while Path(f"/proc/{pid}").exists():  # it is a child of init: nobody else waits for it
            time.sleep(0.01)
        return
    variables = dict(line.split("=", 1) for line in Path(".env").read_text().splitlines())
    service = composed([Path(file) for file in variables["COMPOSE_FILE"].split(":")])["services"]["server"]
    folders = {}
    for mount in service.get("volumes", []):
        if isinstance(mount, dict):
            (name,) = re.fullmatch(r"\$\{(\w+):\?[^}]+\}", mount["source"]).groups()  # type: ignore[union-attr]
            assert (mount["type"], mount["read_only"], mount["bind"]) == ("bind", True, {"create_host_path": False})
            folder, path = Path(variables[name]), mount["target"]
            assert folder.is_dir()
        else:
            source, path = mount.split(":")
            folder = STATE / source
            folder.mkdir(exist_ok=True)
        folders[path] = str(folder)
    for start in (["exec", "-T", "server"], ["run", "--rm", "-T", "--no-deps", "--entrypoint", "busybox", "server"]):
        if words[1 : 1 + len(start)] == start:
            program = ["busybox"] if start[0] == "run" else []
            _in_container(program + words[1 + len(start) :], folders)
            return
    assert words[1] == "up", words
    assert set(words[2:]) <= {"--build", "--detach", "server"}, words
    command = []
    for word in service["command"]:
        for path, folder in folders.items():
            word = word.replace(path, folder)
        command.append(re.sub(r"(?<=-address=0\.0\.0\.0:)\d+$", "0", word))
    published = {mapping.rpartition(":")[0]: mapping.rpartition(":")[2] for mapping in service["ports"]}
    assert set(published) == {"8001", "127.0.0.1:8002", "8003"}, "TLS and tokens are for the two that all may reach"
    with (STATE / "log").open("w") as log:
        server = subprocess.Popen(
            [os.environ["SPARSEAGG_SERVER"], *command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert server.stdout is not None
    line = server.stdout.readline()
    found = re.search(r"grpc=\S+:(\d+)", line)
    assert found is not None, f"{line}{(STATE / 'log').read_text()}"
    (STATE / "pid").write_text(str(server.pid))
    (STATE / "address").write_text(f"localhost:{found[1]}")


def created_objects() -> dict[str, Any]:
    """Returns what kubectl and helm have made, by kind and name."""
    path = STATE / "created.json"
    return (
        json.loads(path.read_text())
        if path.exists()
        else {"Secret": {}, "PersistentVolumeClaim": {}, "Deployment": {}, "Pod": {}}
    )


def _create(kind: str, name: str, value: Any) -> None:
    created = created_objects()
    created[kind][name] = value
    (STATE / "created.json").write_text(json.dumps(created))


def _check(manifest: dict[str, Any]) -> None:
    import kubernetes_validate

    for version in ("1.25", "1.34"):  # as scripts/check_deploy.py does
        kubernetes_validate.validate(manifest, version, strict=True)


def kubectl(words: list[str]) -> None:
    """``create secret generic`` and ``tls``, ``apply -f``, ``exec``, ``scale``, ``wait``, ``delete``, ``rollout``."""
    flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
    if words[:3] == ["create", "secret", "generic"]:
        (file,) = flags.values()
        assert set(flags) == {"from-file"}
        assert Path(file).is_file()
        _create("Secret", words[3], [Path(file).name])
    elif words[:3] == ["create", "secret", "tls"]:
        assert set(flags) == {"cert", "key"}
        assert all(Path(file).is_file() for file in flags.values())
        _create("Secret", words[3], ["tls.crt", "tls.key"])
    elif words[:2] == ["apply", "-f"]:
        manifest = yaml.safe_load(Path(words[2]).read_text())
        _check(manifest)
        _create(manifest["kind"], manifest["metadata"]["name"], manifest["spec"])
    elif words[0] == "exec":
        target, command = words[1:].index("--"), words[words.index("--") + 1 :]
        assert words[1:][target - 1] in ("deployment/merge-sparseagg", "restore")
        _in_container(command, {"/var/lib/sparseagg": str(STATE / "volume")})
    elif words[:2] == ["delete", "pod"] or words[0] == "wait":
        assert words[-1].rpartition("/")[2] in created_objects()["Pod"], words
    else:
        assert words[:2] in (["rollout", "status"], ["scale", "--replicas=0"], ["scale", "--replicas=1"]), words
        kind, _, name = words[2].partition("/")
        assert kind == "deployment"
        assert name in created_objects()["Deployment"]


def helm(words: list[str]) -> None:
    """``upgrade --install NAME CHART -f VALUES``."""
    import helm_python

    assert [*words[:2], words[4]] == ["upgrade", "--install", "-f"], words
    values = yaml.safe_load(Path(words[5]).read_text())
    with helm_python.Chart.load(REPOSITORY / words[3]) as chart:
        chart.validate_schema(values)
        rendered = chart.render(values, name=words[2], namespace="default")
    created = created_objects()
    for name, text in rendered.items():
        for manifest in yaml.safe_load_all(text) if name.endswith(".yaml") else []:
            if manifest is None:
                continue
            _check(manifest)
            if manifest["kind"] == "Deployment":
                for volume in manifest["spec"]["template"]["spec"]["volumes"]:
                    if "secret" in volume:
                        assert volume["secret"]["secretName"] in created["Secret"], volume
                    if "persistentVolumeClaim" in volume:
                        assert volume["persistentVolumeClaim"]["claimName"] in created["PersistentVolumeClaim"], volume
                _create("Deployment", manifest["metadata"]["name"], manifest["spec"])
            if manifest["kind"] == "ConfigMap":
                (STATE / "server.toml").write_text(manifest["data"]["server.toml"])


if __name__ == "__main__":
    {"docker": docker, "kubectl": kubectl, "helm": helm}[sys.argv[1]](sys.argv[2:])
