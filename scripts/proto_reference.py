"""The reference of the gRPC API in Markdown, from the comments of the proto files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from google.protobuf import descriptor_pb2

__all__ = ["reference_of"]

Location = descriptor_pb2.SourceCodeInfo.Location
_TYPES = {value: name[5:].lower() for name, value in descriptor_pb2.FieldDescriptorProto.Type.items()}
_REPEATED = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED


def reference_of(descriptor_set: bytes) -> str:
    """Returns a page: services with their methods, then messages and enums with their fields.

    Args:
        descriptor_set: a serialised FileDescriptorSet with source info.
    """
    lines = ["# gRPC API", ""]
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
        comments = {tuple(each.path): each for each in file.source_code_info.location}

        def said(*path: int, comments: dict[tuple[int, ...], Location] = comments) -> str:
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
