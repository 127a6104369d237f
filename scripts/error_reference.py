"""The texts of the server's errors, read from its sources, for docs/reference/errors.md.

The page has groups of errors with their cause and cure. A line `<!-- errors: SELECTOR, SELECTOR … -->` stands for the
texts of a group; a selector is `CODE PATH PATH …`, with `*` in each, as in `NOT_FOUND service/*`. A text belongs to the
first group that selects it. Only calls that make an error from a text are read: `absl::…Error(` and the helpers of
_HELPERS.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
_MARKER = re.compile(r"^<!-- errors: (.*?) -->$", re.MULTILINE | re.DOTALL)
# Functions that add the place to a text, and the code of their errors. Lower case: lambdas of one function.
_HELPERS = {
    **{"Failed": "UNAVAILABLE", "Refused": "UNAUTHENTICATED", "RetryLater": "RESOURCE_EXHAUSTED"},
    **dict.fromkeys(("InField", "Invalid", "InvalidKey", "InvalidSlice", "Malformed", "Unused"), "INVALID_ARGUMENT"),
    **dict.fromkeys(("invalid", "refuse"), "INVALID_ARGUMENT"),
}
_CALL = re.compile(rf"\babsl::(\w+)Error\(|\b({'|'.join(_HELPERS)})\(")
_STRING = r'"((?:[^"\\]|\\.)*)"'
_TOKEN = re.compile(rf"{_STRING}|[(\[{{}}\]),]")
_COMMENT = re.compile(r"^\s*//.*$|\s// .*$", re.MULTILINE)
# Code that answers no caller: what it says is in the log, or in a process without a server.
_ELSEWHERE = "service/gateway/openapi"


def _error_texts() -> Iterator[tuple[str, str, str]]:
    """Yields path, code and text of each error of host/ and service/, with "…" for what differs."""
    for path in sorted(path for folder in ("host", "service") for path in (REPOSITORY / folder).rglob("*")):
        name = path.relative_to(REPOSITORY).as_posix()
        if path.suffix not in (".cc", ".h") or name.startswith(_ELSEWHERE):
            continue
        source = _COMMENT.sub("", path.read_text(encoding="utf-8"))
        for match in _CALL.finditer(source):
            code = _HELPERS.get(match[2]) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1]).upper()
            text = _shown(_arguments(source, match.end()))
            if len(re.findall(r"[A-Za-z]{2,}", text)) >= 2:  # else all of it comes from elsewhere
                yield name, code, text


def _arguments(source: str, start: int) -> list[str]:
    """Returns the arguments of the call whose parenthesis ends at ``start``."""
    arguments: list[str] = []
    depth = 0
    for token in _TOKEN.finditer(source, start):
        if token[0] in "([{":
            depth += 1
        elif depth > 0:
            depth -= token[0] in ")]}"
        elif token[0] in ",)]}":
            arguments.append(source[start : token.start()].strip())
            start = token.end()
            if token[0] != ",":
                break
    return arguments


def _shown(arguments: list[str]) -> str:
    """Returns the text that a call makes of its arguments: literals as they are, "…" for the rest."""
    parts = []
    for argument in filter(None, arguments):
        call = re.match(r"(?:absl::|std::)?(StrCat|StrFormat|string)\(", argument)
        if call is not None and argument.endswith(")"):
            inner = _arguments(argument, call.end())
            is_format = call[1] == "StrFormat"
            parts.append(re.sub(r"%[.\d]*[a-zA-Z]", "…", _shown(inner[:1])) if is_format else _shown(inner))
        elif argument.startswith('"'):
            parts.append("".join(re.findall(_STRING, argument)).replace('\\"', '"').replace("\\\\", "\\"))
        else:
            parts.append("tensor '…'" if argument.startswith("Quoted(") else "…")
    if len(parts) > 1 and re.fullmatch(r"[a-z][\w.\[\]…]+", parts[0]):  # a field, and what is wrong with it
        parts[0] += ": "
    return re.sub(r"…[…\s]*…", "…", "".join(parts)).strip()


def with_texts(page: str) -> str:
    """Returns the page with a list of texts, by code, for each marker.

    Raises: ValueError: a text belongs to no group, or a group selects none.
    """
    selectors = [[each.split() for each in match[1].split(",")] for match in _MARKER.finditer(page)]
    groups: list[dict[str, list[str]]] = [{} for _ in selectors]
    for path, code, text in _error_texts():
        for group, wanted in zip(groups, selectors):
            if any(_selects(code, path, *each) for each in wanted):
                group.setdefault(code, []).append(f"- `` {text} ``" if "`" in text else f"- `{text}`")
                break
        else:
            raise ValueError(f"no group of docs/reference/errors.md selects {code} {path}: {text}")
    if {} in groups:
        raise ValueError(f"docs/reference/errors.md: selects no error: {selectors[groups.index({})]}")
    return _MARKER.sub(lambda _: "\n".join(itertools.starmap(_listed, groups.pop(0).items())), page)


def _selects(code: str, path: str, wanted_code: str, *wanted_paths: str) -> bool:
    return fnmatch.fnmatchcase(code, wanted_code) and any(fnmatch.fnmatchcase(path, each) for each in wanted_paths)


def _listed(code: str, texts: list[str]) -> str:
    return "\n".join([f"`{code}`:\n", *dict.fromkeys(texts), ""])
