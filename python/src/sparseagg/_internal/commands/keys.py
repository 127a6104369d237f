"""``sparseagg keys``: bearer tokens in the file of sparseagg-server's --tokens-file."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import os
import pathlib
import secrets
import sys
from collections.abc import Iterator

from sparseagg._internal.base.arguments import check_name
from sparseagg._internal.base.state_files import locked, replaced
from sparseagg._internal.commands.parser import put, put_json
from sparseagg.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError

ROLES = ("admin", "coordinator", "client", "observer")

DESCRIPTION = """\
Makes, lists and revokes bearer tokens in FILE, which sparseagg-server --tokens-file FILE reads, also while it runs.
FILE has the SHA-256 of each token in place of the token: nobody can learn a token from it, not even the server's owner.
"""

_HEAD = "# Tokens of sparseagg-server --tokens-file: SHA-256 of the token, role, tenant, name or -, end of validity\n"
_NOBODY = "-"  # in the place of a name
_ID_DIGITS = 12  # of a hash, as an id that people can type


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions to the command's parser."""
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a token, and print it once")
    create.add_argument(
        "file", metavar="FILE", type=pathlib.Path, help="the server's --tokens-file; created if it does not exist"
    )
    create.add_argument("--role", required=True, choices=ROLES, help="what the holder of the token may do")
    create.add_argument(
        "--tenant", default="default", help="the tenant whose rounds the holder sees (default: %(default)s)"
    )
    create.add_argument(
        "--name",
        default=_NOBODY,
        help="the holder's name; for the role client, its only client id (default: no name, and any client id)",
    )
    create.add_argument("--days", type=float, metavar="N", help="days until the token expires (default: never)")
    create.add_argument(
        "-o",
        "--output",
        type=pathlib.Path,
        metavar="TOKEN_FILE",
        help="write the token to this new file instead of printing it",
    )
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="show what the tokens may do, and when they expire")
    listing.add_argument("file", metavar="FILE", type=pathlib.Path, help="the server's --tokens-file")
    listing.add_argument("--json", action="store_true", help="print a JSON array instead of the table")
    listing.set_defaults(run=_list)
    revoke = actions.add_parser("revoke", help="remove tokens; a running server refuses them within two seconds")
    revoke.add_argument("file", metavar="FILE", type=pathlib.Path, help="the server's --tokens-file")
    revoke.add_argument("ids", metavar="ID", nargs="+", help="id of a token, as list shows it; 8 hex digits suffice")
    revoke.set_defaults(run=_revoke)


def _create(arguments: argparse.Namespace) -> int:
    check_name("--tenant", arguments.tenant)
    if arguments.name != _NOBODY:
        check_name("--name", arguments.name)
    token = f"sagg_{secrets.token_urlsafe(32)}"
    words = [hashlib.sha256(token.encode()).hexdigest(), arguments.role, arguments.tenant, arguments.name]
    if arguments.days is not None:
        words.append(_end(arguments.days))
    with _rewritten(arguments.file, make=True) as lines:
        lines.append(" ".join(words) + "\n")
        if arguments.output is not None:
            _write_secret(arguments.output, token)
    if arguments.output is None:
        put(token)
    put(f"sparseagg: key {words[0][:_ID_DIGITS]} of {'/'.join(words[2:0:-1])}/{words[3]}", to=sys.stderr)
    return 0


def _end(days: float) -> str:
    try:
        if not days > 0:
            raise OverflowError
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days)
    except OverflowError:
        raise InvalidArgumentError(f"--days must be a number above 0, got {days:g}") from None
    return f"{end:%Y-%m-%dT%H:%M:%SZ}"


def _list(arguments: argparse.Namespace) -> int:
    lines = [line.split() for line in arguments.file.read_text().splitlines() if not line.startswith("#")]
    names = ("id", "role", "tenant", "name", "expires")
    tokens = [(words[0][:_ID_DIGITS], *words[1:4], *(words[4:5] or ["never"])) for words in lines if len(words) >= 4]
    if arguments.json:
        put_json([dict(zip(names, token)) for token in tokens])
        return 0
    for key, role, tenant, name, expires in (tuple(map(str.upper, names)), *tokens):
        put(f"{key:{_ID_DIGITS}} {role:11} {tenant:16} {name:16} {expires}")
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    with _rewritten(arguments.file) as lines:
        for key in arguments.ids:
            if len(key) < 8:
                raise InvalidArgumentError(f"an id must have 8 hex digits or more, got {key!r}")
            found = [line for line in lines if line.lower().startswith(key.lower())]
            if len(found) != 1:
                raise NotFoundError(f"{arguments.file} has {len(found)} keys {key}, not one; none is revoked")
            lines.remove(found[0])
    put(f"sparseagg: {len(arguments.ids)} revoked", to=sys.stderr)
    return 0


@contextlib.contextmanager
def _rewritten(path: pathlib.Path, make: bool = False) -> Iterator[list[str]]:
    """Gives the file's lines to change, and replaces the file at once, unless the caller raises."""
    with locked(path):
        try:
            lines = path.read_text().splitlines(keepends=True)
        except FileNotFoundError:
            if not make:
                raise
            lines = [_HEAD]
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        yield lines
        with replaced(path, 0o644) as file:
            file.write("".join(lines).encode())


def _write_secret(path: pathlib.Path, token: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise AlreadyExistsError(f"{path} exists already; the token is not written over it") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
