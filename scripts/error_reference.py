"""The texts of the server's errors, read from its sources, for docs/reference/errors.md.

The page has groups of errors with their cause and cure. A line `<!-- errors: SELECTOR, SELECTOR … -->` stands for the
texts of a group; a selector is `CODE PATH`, with `*` in either, as in `NOT_FOUND service/*`. A text belongs to the
first group that selects it. Only calls that make an error from a text are read: `absl::…Error(` and the helpers of
_HELPERS.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
_MARKER = re.compile(r"^<!-- errors: (.*?) -->$", re.MULTILINE | re.DOTALL)
# Functions that add the place to a text, and the code of their errors. Lower case: lambdas of one function.
_HELPERS = {
    "Failed": "UNAVAILABLE",
    "InField": "INVALID_ARGUMENT",
    "Invalid": "INVALID_ARGUMENT",
    "InvalidKey": "INVALID_ARGUMENT",
    "InvalidSlice": "INVALID_ARGUMENT",
    "Malformed": "INVALID_ARGUMENT",
    "Refused": "UNAUTHENTICATED",
    "RetryLater": "RESOURCE_EXHAUSTED",
    "Unused": "INVALID_ARGUMENT",
    "invalid": "INVALID_ARGUMENT",
    "refuse": "INVALID_ARGUMENT",
}
_CALL = re.compile(rf"\babsl::(\w+)Error\(|\b({'|'.join(_HELPERS)})\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_COMMENT = re.compile(r"^\s*//.*$|\s// .*$", re.MULTILINE)
# Code that answers no caller: what it says is in the log, or in a process without a server.
_ELSEWHERE = ("service/gateway/openapi",)


@dataclasses.dataclass(frozen=True)
class ErrorText:
    """A text as a caller sees it, with "…" for what differs, and where its source is."""

    path: str
    code: str
    text: str


def error_texts() -> list[ErrorText]:
    """Returns the texts of service/ and host/, in the order of paths."""
    found = []
    for folder in ("host", "service"):
        for path in sorted((REPOSITORY / folder).rglob("*")):
            name = path.relative_to(REPOSITORY).as_posix()
            if path.suffix in (".cc", ".h") and not name.startswith(_ELSEWHERE):
                found += [ErrorText(name, *each) for each in texts_of(path.read_text(encoding="utf-8"))]
    return list(dict.fromkeys(found))


def texts_of(source: str) -> list[tuple[str, str]]:
    """Returns code and text of each error that a source makes from a text of its own."""
    source = _COMMENT.sub("", source)
    found = []
    for match in _CALL.finditer(source):
        code = _HELPERS.get(match[2]) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1]).upper()
        text = _shown(_arguments(source, match.end()))
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= 2:  # else all of it comes from elsewhere
            found.append((code, text))
    return found


def _arguments(source: str, start: int) -> list[str]:
    """Returns the arguments of the call whose parenthesis ends at ``start``."""
    arguments: list[str] = []
    depth, at, begin = 0, start, start
    while at < len(source):
        character = source[at]
        if character == '"':
            at = _STRING.match(source, at).end()  # type: ignore[union-attr]
            continue
        if character in "([{":
            depth += 1
        elif character in ")]}":
            if depth == 0:
                return [*arguments, source[begin:at]]
            depth -= 1
        elif character == "," and depth == 0:
            arguments.append(source[begin:at])
            begin = at + 1
        at += 1
    return arguments


def _shown(arguments: list[str]) -> str:
    """Returns the text that a call makes of its arguments: literals as they are, "…" for the rest."""
    parts = []
    for argument in (each.strip() for each in arguments):
        call = re.match(r"(?:absl::|std::)?(StrCat|StrFormat|string)\(", argument)
        if call is not None and argument.endswith(")"):
            inner = _arguments(argument, call.end())
            is_format = call[1] == "StrFormat"
            parts.append(re.sub(r"%[.\d]*[a-zA-Z]", "…", _shown(inner[:1])) if is_format else _shown(inner))
        elif argument.startswith('"'):
            literal = "".join(_STRING.findall(argument))
            parts.append(literal.replace('\\"', '"').replace("\\\\", "\\"))
        elif argument.startswith("Quoted("):
            parts.append("tensor '…'")
        elif argument:
            parts.append("…")
    if len(parts) > 1 and re.fullmatch(r"[a-z][\w.\[\]…]+", parts[0]):  # a field, and what is wrong with it
        parts[0] += ": "
    return re.sub(r"…[…\s]*…", "…", "".join(parts)).strip()


def with_texts(page: str) -> str:
    """Returns the page with a list of texts for each marker.

    Raises: ValueError: a text belongs to no group, or a group selects none.
    """
    selectors = [_selectors(match[1]) for match in _MARKER.finditer(page)]
    groups: list[list[ErrorText]] = [[] for _ in selectors]
    lost = []
    for each in error_texts():
        for group, wanted in zip(groups, selectors):
            if any(
                fnmatch.fnmatchcase(each.code, code) and fnmatch.fnmatchcase(each.path, path) for code, path in wanted
            ):
                group.append(each)
                break
        else:
            lost.append(f"{each.code} {each.path}: {each.text}")
    if lost:
        raise ValueError("errors that no group of docs/reference/errors.md selects:\n" + "\n".join(lost))
    empty = [wanted for wanted, group in zip(selectors, groups) if not group]
    if empty:
        raise ValueError(f"groups of docs/reference/errors.md that select no error: {empty}")
    lists = iter(groups)
    return _MARKER.sub(lambda _: _listed(next(lists)), page)


def _selectors(text: str) -> list[tuple[str, str]]:
    found = []
    for each in text.split(","):
        code, _, path = each.strip().partition(" ")
        found.append((code, path))
    return found


def _listed(group: list[ErrorText]) -> str:
    by_code: dict[str, list[str]] = {}
    for each in group:
        by_code.setdefault(each.code, []).append(each.text)
    lines = []
    for code, texts in by_code.items():
        lines.append(f"`{code}`:\n")
        lines += [f"- {_quoted(text)}" for text in dict.fromkeys(texts)]
        lines.append("")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
