"""Containers on this machine, for tests/deploy: Podman with a store of its own, and the images that the tests need.

``python machine.py SERVER``, as root and with a network, makes the images of the program SERVER. The tests themselves
need no network: `make test-deploy` runs them in a network namespace of their own, where the fixed ports of the how-tos
are free. DEPLOY_FOLDER, build/deploy by default, has the store; it must be on a file system on which overlays may lie.

As ``runtime``, this file stands before runc: where root may not raise limits (no CAP_SYS_RESOURCE, as in some virtual
machines), a process with `ulimits` above the machine's gets the machine's.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("DEPLOY_FOLDER", REPOSITORY / "build" / "deploy"))
CONTAINERFILE = REPOSITORY / "deploy" / "container" / "Containerfile"
# What `COPY . /` of the image's stage takes.
PREBUILT = FOLDER / "prebuilt"
BASE = "docker.io/library/debian:bookworm-slim"
IMAGE = "localhost/sparseagg-server"
RUNTIME = "localhost/sparseagg-runtime"
SYSTEMD = "localhost/sparseagg-systemd"
PROMETHEUS = Path(shutil.which("prometheus") or REPOSITORY / "build/lint/prometheus/usr/bin/prometheus")

ENVIRONMENT = {
    "CONTAINERS_CONF": str(FOLDER / "containers.conf"),
    "CONTAINERS_STORAGE_CONF": str(FOLDER / "storage.conf"),
}


def podman(*words: str, check: bool = True, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs Podman on the tests' own store; what it prints is in the answer's ``stdout``."""
    return subprocess.run(
        ["podman", *words],
        check=check,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        **{"stdout": subprocess.PIPE, **options},  # type: ignore[call-overload,no-any-return]
    )


def configure() -> None:
    """Writes what keeps the tests' containers, images and networks apart from those of the machine."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    runtime = FOLDER / "runtime"
    runtime.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} runtime "$@"\n')
    runtime.chmod(0o755)
    (FOLDER / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{FOLDER}/storage"\nrunroot = "{FOLDER}/run"\n'
    )
    (FOLDER / "containers.conf").write_text(
        f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nlock_type = "file"\nruntime = "here"\n'
        f'tmp_dir = "{FOLDER}/tmp"\n[engine.runtimes]\nhere = ["{runtime}"]\n'
        f'[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "{FOLDER}/networks"\n'
    )


def runtime(words: list[str]) -> None:
    """Becomes runc, after having brought the limits of a container that is made within those of this process."""
    at = {"create": "--bundle", "exec": "--process"}
    for option in (option for command, option in at.items() if command in words):
        path = Path(words[words.index(option) + 1])
        path = path / "config.json" if path.is_dir() else path
        config = json.loads(path.read_text())
        for limit in config.get("process", config).get("rlimits", []):
            hard = resource.getrlimit(getattr(resource, limit["type"]))[1]
            if hard != resource.RLIM_INFINITY:
                limit["soft"], limit["hard"] = min(limit["soft"], hard), min(limit["hard"], hard)
        path.write_text(json.dumps(config))
    os.execvp("runc", ["runc", *words])


def get_base() -> None:
    """Pulls the base image; where the registry is not reached or DEPLOY_BASE=debian, makes one of Debian's packages."""
    if is_here(BASE):
        return
    print(f"machine: {BASE} is not the registry's: it is made here, of Debian's packages by mmdebstrap")
    archive = FOLDER / "base.tar"
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")]
    subprocess.run(["mmdebstrap", "-q", "--variant=minbase", *left_out, "bookworm", archive], check=True)
    podman("import", "-q", str(archive), BASE)
    archive.unlink()


def build(tag: str, *words: str, text: str | None = None) -> None:
    """Builds an image; ``text`` is a Containerfile, of the folder PREBUILT."""
    words = words if text is None else ("-f", "-", str(PREBUILT))
    podman("build", "-q", "--network", "host", "-t", tag, *words, input=text)


def is_here(image: str) -> bool:
    """Whether an image is here, or is pulled now."""
    if podman("image", "exists", image, check=False).returncode == 0:
        return True
    return os.environ.get("DEPLOY_BASE") != "debian" and podman("pull", "-q", image, check=False).returncode == 0


def stand_in(name: str, text: str) -> None:
    """Makes the image that Compose's file takes of this name, where it is not had from the registry."""
    compose = (REPOSITORY / "deploy/compose/compose.yaml").read_text()
    (tag,) = re.findall(rf"image: ({name}:\S+)", compose)
    if not is_here(tag):
        print(f"machine: {tag} is not the registry's: Debian's Prometheus, or a sleep, stands in its place")
        build(tag, text=f"FROM {RUNTIME}\nUSER root\n{text}\n")


def main(server: Path) -> None:
    """Makes all images."""
    configure()
    get_base()
    shutil.rmtree(PREBUILT, ignore_errors=True)
    program = PREBUILT / "usr/bin/sparseagg-server"
    program.parent.mkdir(parents=True)
    subprocess.run(["strip", "-o", program, server], check=True)
    os.utime(program, (0, 0))  # the same program is the same layer
    build(RUNTIME, "-f", str(CONTAINERFILE), "--target", "runtime", str(PREBUILT))
    build(IMAGE, "-f", str(CONTAINERFILE), "--target", "prebuilt", str(PREBUILT))
    stand_in("docker.io/grafana/grafana", 'ENTRYPOINT ["busybox", "sleep", "86400"]')
    shutil.copy(PROMETHEUS, PREBUILT)
    stand_in(
        "docker.io/prom/prometheus",
        "COPY prometheus /bin/\nRUN install -d -o 10001 /prometheus\nWORKDIR /prometheus\n"
        'ENTRYPOINT ["/bin/prometheus"]\n'
        'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]',
    )
    (PREBUILT / PROMETHEUS.name).unlink()
    install = "apt-get update && apt-get install -y --no-install-recommends systemd dbus"
    build(
        SYSTEMD,
        text=f"FROM {RUNTIME}\nUSER root\nRUN {install} && rmdir /var/lib/sparseagg\nSTOPSIGNAL SIGRTMIN+3\n"
        'ENTRYPOINT ["/lib/systemd/systemd"]\nCOPY usr /usr\n',
    )
    podman("image", "prune", "--force")
    print(podman("images", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}").stdout)


if __name__ == "__main__":
    if sys.argv[1] == "runtime":
        runtime(sys.argv[2:])
    main(Path(sys.argv[1]))
