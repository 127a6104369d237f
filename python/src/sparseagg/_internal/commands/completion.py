"""``sparseagg completion``: makes a shell complete the command."""

from __future__ import annotations

import argparse

from sparseagg._internal.commands.output import put

__all__ = ["DESCRIPTION", "add_arguments", "main"]

DESCRIPTION = """Print a script by which a shell completes commands and options.
bash: sparseagg completion bash > ~/.local/share/bash-completion/completions/sparseagg.
zsh: sparseagg completion zsh > FOLDER/_sparseagg, with FOLDER in $fpath."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def main(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Prints the script for ``parser``."""
    import shtab  # only here: other commands need not wait for it

    put(*shtab.complete(parser, arguments.shell).split("\n"))
    return 0
