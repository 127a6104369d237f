"""The parser of commands: its errors suggest what was meant."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

__all__ = ["Parser", "add_command"]


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that names the nearest command, choice or option in the place of an unknown one."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError:
            choices = [str(choice) for choice in action.choices or ()]
            wrong = f"unknown: {value!r}{_suggestion(str(value), choices)}; choose from {', '.join(choices)}"
            raise argparse.ArgumentError(action, wrong) from None

    def error(self, message: str) -> NoReturn:
        """Prints usage and message, and exits with status 2."""
        start, colon, unknown = message.partition("unrecognized arguments: ")
        first = unknown.split(" ", 1)[0].partition("=")[0]
        if colon and not start and first.startswith("-"):
            message += _suggestion(first, _options_of(self))
        super().error(message)


def add_command(group: Any, name: str, text: str, description: str | None = None, **options: Any) -> Parser:
    """Adds a command to a group; its own help shows ``description``, by default the line in the group's help."""
    parser: Parser = group.add_parser(
        name, help=text, description=description or f"{text[0].upper()}{text[1:]}.", **options
    )
    return parser


def _options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _options_of(each)


def _suggestion(word: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(word, set(known), 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
