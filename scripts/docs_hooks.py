"""What `make docs` does beyond MkDocs: links to files of the repository, and the reference of the gRPC API.

A page of docs/ may link to any file of the repository (`../proto/...`): pictures and sources are copied into the site,
below `files/`, so that it is whole without a network. reference/grpc.md is made of the proto files,
and the lists of reference/errors.md from the sources.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))
from error_reference import with_texts  # noqa: E402

_LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\])\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")
_NOT_HERE = re.compile(r'^(```sh title=")not here: ', re.MULTILINE)  # for scripts/run_page.py, and no word to readers
_SHOWN = {".png", ".svg", ".jpg"}


def _openapi() -> str:
    """The description that a test compares with the server's, and where a reader's own server is by default."""
    description = json.loads((REPOSITORY / "docs/openapi.json").read_text(encoding="utf-8"))
    return json.dumps({**description, "servers": [{"url": "http://127.0.0.1:8003"}]})


def on_config(config: Any) -> Any:
    """Puts the version beside the site's name, and a link to where this clone is from, if that is on the web."""
    version = re.search(r"project.sparseagg VERSION ([\d.]+)", (REPOSITORY / "CMakeLists.txt").read_text())
    assert version is not None
    config.site_name += f" {version[1]}"
    origin = ["git", "config", "remote.origin.url"]
    url = subprocess.run(origin, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout.strip()
    on_the_web = re.fullmatch(r"https://(?:[^/@]*@)?(.+?)(?:[.]git)?", url)  # without a password
    if on_the_web is not None:
        config.repo_url, config.repo_name = f"https://{on_the_web[1]}", "Repository"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated reference, and the files of the repository that pages link to."""
    files.append(File.generated(config, "reference/grpc.md", content=_grpc()))
    files.append(File.generated(config, "reference/openapi.json", content=_openapi()))
    linked = set()
    for file in files.documentation_pages():
        for _, target in _LINK.findall(file.content_string):
            path = _in_repository(file.src_uri, target)
            if path is not None and (REPOSITORY / path).is_file():
                linked.add(path)
    for path in sorted(linked):
        files.append(File.generated(config, _copy_of(path), abs_src_path=str(REPOSITORY / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_others: Any) -> str:
    """Turns links to the repository's files into links to their copies, and links to folders into their text.

    Puts the texts of the server's errors into their page, and takes the marks of run_page.py away.
    """
    if page.file.src_uri == "reference/errors.md":
        markdown = with_texts(markdown)

    def turned(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path = _in_repository(page.file.src_uri, target)
        if path is None:
            return match[0]
        if not (REPOSITORY / path).is_file():
            return text[1:-1]
        return f"{text}({posixpath.relpath(_copy_of(path), posixpath.dirname(page.file.src_uri) or '.')})"

    return _LINK.sub(turned, _NOT_HERE.sub(r"\1", markdown))


def _copy_of(path: str) -> str:
    """Returns where the site has a file of the repository. Sources are shown as text."""
    return f"files/{path}" if Path(path).suffix in _SHOWN else f"files/{path}.txt"


def _in_repository(page: str, target: str) -> str | None:
    """Returns the path below the repository that a page links to; None: the target is a page of the site."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith("docs/") or path.startswith("..") else path


def _grpc() -> str:
    """Returns the proto files as a page with a heading for each service, message and enum, which its comment begins."""
    page = "# gRPC API\n"
    for name in ("aggregation", "tasks"):
        source = (REPOSITORY / f"proto/sparseagg/v1/{name}.proto").read_text(encoding="utf-8")
        page += f"\n## sparseagg/v1/{name}.proto\n"
        head, *parts = re.split(r"^((?://.*\n)*(?:service|message|enum) (\w+) )", source, flags=re.MULTILINE)
        page += f"\n```proto\n{head.strip()}\n```\n"
        for begin, title, rest in zip(parts[::3], parts[1::3], parts[2::3]):
            page += f"\n### {title}\n\n```proto\n{begin}{rest.strip()}\n```\n"
    return page
