"""The options of commands that call a server, and the client that they give."""

from __future__ import annotations

import argparse
import os
import time

from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.commands import credentials_flags

__all__ = ["address_options", "client_of", "server_options", "time_left"]

_DEFAULT_ADDRESS = "127.0.0.1:8001"


def address_options() -> argparse.ArgumentParser:
    """Returns a parent parser with --address and the flags of credentials."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument(
        "--address",
        default=os.environ.get("SPARSEAGG_ADDRESS") or _DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help=f"address of the server (default: SPARSEAGG_ADDRESS, or {_DEFAULT_ADDRESS})",
    )
    credentials_flags.add_arguments(parent)
    return parent


def server_options(address: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Returns a parent parser with these and --timeout."""
    parent = argparse.ArgumentParser(add_help=False, parents=[address])
    parent.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="limit of the whole command (default: 60 per call, none for submissions, merges, results and backups)",
    )
    return parent


def client_of(arguments: argparse.Namespace) -> Client:
    """Returns a client of the server; all its calls together have --timeout."""
    options = credentials_flags.client_options(arguments)
    if arguments.timeout is not None:
        options["timeout"] = arguments.timeout
    client = Client(arguments.address, **options)
    if arguments.timeout is not None:
        arguments.deadline = client._connection.deadline = time.monotonic() + arguments.timeout
    return client


def time_left(arguments: argparse.Namespace) -> float | None:
    """Returns the seconds that --timeout leaves for the rest of the command; None: it has no limit."""
    return None if arguments.timeout is None else max(0.0, arguments.deadline - time.monotonic())
