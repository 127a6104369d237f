"""Called as docker by the lines of the how-tos: `docker compose` is Podman's, with the image of PREBUILT.

On top of the files that .env or -f names comes one which says that the image is built of the program that is there
already, so that `up --build` takes seconds.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
import machine


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


if __name__ == "__main__":
    docker(sys.argv[2:])
