"""What `make docs` does beyond MkDocs: links to files of the repository, and the reference of the gRPC API.

A page of docs/ may link to any file of the repository (`../proto/...`): pictures and sources are copied into the site,
below `files/`, so that it is whole without a network. reference/grpc.md is made from the comments of the proto files,
and the lists of reference/errors.md from the sources.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
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
    with tempfile.NamedTemporaryFile() as made:
        command = ["protoc", "-Iproto", "--include_source_info", f"--descriptor_set_out={made.name}"]
        subprocess.run(
            [*command, "sparseagg/v1/aggregation.proto", "sparseagg/v1/tasks.proto"], check=True, cwd=REPOSITORY
        )
        return _reference_of(Path(made.name).read_bytes())


_Location = descriptor_pb2.SourceCodeInfo.Location
_TYPES = {value: name[5:].lower() for name, value in descriptor_pb2.FieldDescriptorProto.Type.items()}
_REPEATED = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED


def _reference_of(descriptor_set: bytes) -> str:
    """Returns a page: services with their methods, then messages and enums with their fields.

    Args:
        descriptor_set: a serialised FileDescriptorSet with source info.
    """
    lines = ["# gRPC API", ""]
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
        comments = {tuple(each.path): each for each in file.source_code_info.location}

        def said(*path: int, comments: dict[tuple[int, ...], _Location] = comments) -> str:
            found = comments.get(tuple(path))
            return "" if found is None else _text(found.leading_comments or found.trailing_comments)

        lines += [f"## {file.name}", "", said(12), ""]
        for index, service in enumerate(file.service):
            lines += [f"### {file.package}.{service.name}", "", said(6, index), ""]
            for number, method in enumerate(service.method):
                arguments = ("stream " if method.client_streaming else "") + _link(method.input_type)
                answer = ("stream " if method.server_streaming else "") + _link(method.output_type)
                lines += [f"#### {method.name}", "", f"{arguments} → {answer}", "", said(6, index, 2, number), ""]
        for index, message in enumerate(file.message_type):
            lines += _message(message, message.name, (4, index), said)
        for index, enum in enumerate(file.enum_type):
            lines += _enum(enum, enum.name, (5, index), said)
    return "\n".join(lines)


def _message(
    message: descriptor_pb2.DescriptorProto, name: str, path: tuple[int, ...], said: Callable[..., str]
) -> Iterator[str]:
    yield from (f"### {name}", "", said(*path), "")
    if message.field:
        yield from ("| field | type | |", "|---|---|---|")
    for index, field in enumerate(message.field):
        kind = _link(field.type_name) if field.type_name else _TYPES[field.type]
        many = "repeated " if field.label == _REPEATED else "optional " if field.proto3_optional else ""
        text = said(*path, 2, index).replace("\n", " ").replace("|", "\\|")
        yield f"| `{field.name}` = {field.number} | {many}{kind} | {text} |"
    yield ""
    for index, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(nested, f"{name}.{nested.name}", (*path, 3, index), said)
    for index, enum in enumerate(message.enum_type):
        yield from _enum(enum, f"{name}.{enum.name}", (*path, 4, index), said)


def _enum(
    enum: descriptor_pb2.EnumDescriptorProto, name: str, path: tuple[int, ...], said: Callable[..., str]
) -> Iterator[str]:
    yield from (f"### {name}", "", said(*path), "", "| value | |", "|---|---|")
    for index, value in enumerate(enum.value):
        text = said(*path, 2, index).replace("\n", " ").replace("|", "\\|")
        yield f"| `{value.name}` = {value.number} | {text} |"
    yield ""


def _link(type_name: str) -> str:
    """Returns a link to a message or enum of this page; the name alone of any other."""
    if not type_name.startswith(".sparseagg.v1."):
        return type_name.lstrip(".")
    name = type_name.removeprefix(".sparseagg.v1.")
    return f"[{name}](#{name.lower().replace('.', '')})"


def _text(comment: str) -> str:
    """Returns a comment as Markdown: rules go, indented parts stay as they are."""
    lines = [line[1:] if line.startswith(" ") else line for line in comment.rstrip().split("\n")]
    kept: list[str] = []
    for line in lines:
        if re.fullmatch(r"-{10,}", line):
            continue
        indented = line.startswith("  ")
        if indented and kept and kept[-1] and not kept[-1].startswith("    "):
            kept.append("")
        kept.append(f"    {line[2:]}" if indented else re.sub(r"([<>_*])", r"\\\1", line))
    return "\n".join(kept)
