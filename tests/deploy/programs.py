"""Called as docker, kubectl and helm by the lines of the how-tos; all containers are Podman's.

docker compose: on top of the files that .env or -f names comes one which says that the image is built of the program
that is there already, so that `up --build` takes seconds.

kubectl and helm: those of howto_programs.py keep and check what is created. Here a pod is one container with the pod's
image, user, limits and mounts, on the network of the tests; it is ready when its probe says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
import howto_programs
import machine

STATE = howto_programs.STATE


def docker(words: list[str]) -> None:
    """Becomes podman-compose."""
    assert words[0] == "compose", words
    built = machine.FOLDER / "prebuilt.yaml"
    build = f"{{context: {machine.PREBUILT}, dockerfile: {machine.CONTAINERFILE}, target: prebuilt}}"
    built.write_text(f"services:\n  server:\n    image: {machine.IMAGE}\n    build: {build}\n")
    dotenv = Path(".env")
    variables = dict(line.split("=", 1) for line in dotenv.read_text().splitlines()) if dotenv.exists() else {}
    if words[1] == "-f":
        variables, words = {"COMPOSE_FILE": words[2]}, [words[0], *words[3:]]
    # Docker takes the last file's name for the project, podman-compose the first one's.
    texts = [Path(file).read_text() for file in variables["COMPOSE_FILE"].split(":")]
    variables["COMPOSE_PROJECT_NAME"] = [name for text in texts for name in re.findall("(?m)^name: (.+)$", text)][-1]
    variables["COMPOSE_FILE"] += f":{built}"
    if "--build" in words:  # Docker makes a container anew whose image is another one
        words = [*words[:2], "--force-recreate", *words[2:]]
    program = Path(sys.executable).with_name("podman-compose")
    os.execve(program, [str(program), *words[1:]], {**os.environ, **machine.ENVIRONMENT, **variables})


def start(name: str, pod: dict[str, Any]) -> None:
    """Starts the one container of a pod as a node does, and waits until it is ready."""
    (container,), user = pod["containers"], pod["securityContext"]
    flags = ["--user", f"{user['runAsUser']}:{user['runAsGroup']}", "--group-add", str(user["fsGroup"])]
    if "limits" in container.get("resources", {}):
        flags += ["--memory", container["resources"]["limits"]["memory"].replace("Mi", "m")]
    if container.get("securityContext", {}).get("readOnlyRootFilesystem"):
        flags += ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
    for mount in container["volumeMounts"]:
        (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
        if "persistentVolumeClaim" in volume:
            folder = STATE / volume["persistentVolumeClaim"]["claimName"]
            folder.mkdir(exist_ok=True)
            mode = 0o2770  # of a volume that the node gives to fsGroup
        else:
            folder = STATE / volume["secret"]["secretName"] if "secret" in volume else STATE / "config"
            mode = 0o750
            for file in folder.iterdir():
                file.chmod(volume["secret"]["defaultMode"] if "secret" in volume else 0o644)
        folder.chmod(mode)
        for path in (folder, *(folder.iterdir() if mode == 0o750 else ())):
            os.chown(path, 0, user["fsGroup"])
        flags += ["--volume", f"{folder}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"]
    command = container.get("command", []) + container.get("args", [])
    if "command" in container:
        flags += ["--entrypoint", json.dumps(container["command"][:1])]
        command = command[1:]
    machine.podman("run", "--detach", "--name", name, "--network", "host", *flags, machine.IMAGE, *command)
    probe = container.get("readinessProbe")
    deadline = time.monotonic() + 60
    while probe is not None:
        (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == probe["httpGet"]["port"]]
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}{probe['httpGet']['path']}", timeout=5).close()
            return
        assert time.monotonic() < deadline, machine.podman("logs", name, stderr=subprocess.STDOUT).stdout
        time.sleep(0.2)


def kubectl(words: list[str]) -> None:
    """Those of howto_programs.py, with a container for each pod."""
    if words[0] == "exec":
        at = words.index("--")
        name = words[at - 1].rpartition("/")[2]
        machine.podman("exec", "--interactive", name, *words[at + 1 :], stdout=None)
        return
    howto_programs.kubectl(words)
    made, name = howto_programs.created_objects(), words[-1].rpartition("/")[2]
    if words[:2] == ["create", "secret"]:
        (STATE / words[3]).mkdir()
        flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
        names = {"cert": "tls.crt", "key": "tls.key"}
        for flag, file in flags.items():
            shutil.copy(file, STATE / words[3] / names.get(flag, Path(file).name))
    elif words[0] == "apply" and "restore" in made["Pod"]:
        start("restore", made["Pod"]["restore"])
    elif words[0] == "delete" or words[:2] == ["scale", "--replicas=0"]:
        pod = made["Pod"][name] if words[0] == "delete" else made["Deployment"][name]["template"]["spec"]
        machine.podman("rm", "--force", "--time", str(pod["terminationGracePeriodSeconds"]), name)
    elif words[:2] == ["scale", "--replicas=1"]:
        start(name, made["Deployment"][name]["template"]["spec"])


def helm(words: list[str]) -> None:
    """The release's one Deployment, with its config."""
    howto_programs.helm(words)
    (STATE / "config").mkdir(exist_ok=True)
    shutil.copy(STATE / "server.toml", STATE / "config")
    ((name, spec),) = howto_programs.created_objects()["Deployment"].items()
    start(name, spec["template"]["spec"])


if __name__ == "__main__":
    {"docker": docker, "kubectl": kubectl, "helm": helm}[sys.argv[1]](sys.argv[2:])
