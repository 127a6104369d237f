"""``sparseagg submit`` and ``sparseagg result``: updates and results in files."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from sparseagg._internal.commands import npz
from sparseagg._internal.commands.at_server import client_of, time_left
from sparseagg._internal.commands.output import put
from sparseagg._internal.wire.formats import ENCODINGS
from sparseagg._internal.wire.values import NARROW
from sparseagg.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError

__all__ = ["add_result_arguments", "add_submit_arguments"]


def add_submit_arguments(submit: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``submit``."""
    submit.add_argument("round", help="the round's id")
    submit.add_argument("client", help="the client's id")
    submit.add_argument(
        "file", help="the .npz file, with arrays TENSOR.keys and TENSOR.values, or TENSOR for a dense tensor"
    )
    submit.add_argument("--weight", type=float, help="weight of the update, for rounds with weighting by_weight")
    submit.add_argument(
        "--key-encoding",
        choices=ENCODINGS,
        default="auto",
        help="how keys are sent: auto (default) is the smallest encoding, plain 4 or 8 bytes a key",
    )
    submit.add_argument(
        "--value-encoding", choices=NARROW, help="round floats to this narrower type, to send fewer bytes"
    )
    submit.add_argument(
        "--submission-id",
        metavar="ID",
        help="name of this content: the same id with the same file resumes an upload (default: a random one)",
    )
    submit.set_defaults(run=_submit)


def add_result_arguments(result: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``result``."""
    result.add_argument("round", help="the round's id")
    result.add_argument("-o", "--output", required=True, metavar="FILE", help="the .npz file to write")
    result.add_argument(
        "--tensor", action="append", metavar="NAME", help="a tensor to read; may be repeated (default: all tensors)"
    )
    result.add_argument(
        "--keys", metavar="[BEGIN]:[END]", help="read the keys from BEGIN on and below END (default: all keys)"
    )
    result.add_argument(
        "--value-encoding",
        choices=NARROW,
        help="let the server round floats to this narrower type, to receive fewer bytes",
    )
    result.set_defaults(run=_result)


def _submit(arguments: argparse.Namespace) -> int:
    submission_id = arguments.submission_id or f"file-{os.urandom(8).hex()}"
    with client_of(arguments) as client:
        found = client.get_round(arguments.round)
        update = npz.read_update(arguments.file, found.spec)
        try:
            submission = found.submit(
                arguments.client,
                update,
                arguments.weight,
                key_encoding=arguments.key_encoding,
                value_encoding=arguments.value_encoding,
                submission_id=submission_id,
                resumable=True,
                progress=True,
                timeout=time_left(arguments),
            )
        except (KeyboardInterrupt, UnavailableError, DeadlineExceededError) as error:
            stopped = "interrupted" if isinstance(error, KeyboardInterrupt) else "not submitted"
            put(
                f"sparseagg: {stopped}; to go on where it stopped, add to the same command: "
                f"--submission-id {shlex.quote(submission_id)}",
                to=sys.stderr,
            )
            raise
    again = " (submitted before; it counts once)" if submission.duplicate else ""
    put(f"{submission.num_tuples} tuples, {submission.num_bytes} bytes{again}")
    return 0


def _result(arguments: argparse.Namespace) -> int:
    npz.check_output(arguments.output)
    keys = None if arguments.keys is None else _key_range(arguments.keys)
    with client_of(arguments) as client:
        found = client.get_round(arguments.round)
        result = found.result(
            arguments.tensor,
            keys=keys,
            value_encoding=arguments.value_encoding,
            progress=True,
            timeout=time_left(arguments),
        )
    npz.write_result(arguments.output, result)
    npz.print_rows(arguments.output, result)
    return 0


def _key_range(text: str) -> tuple[int, int | None]:
    begin, colon, end = text.partition(":")
    try:
        if colon:
            return int(begin or 0), int(end) if end else None
    except ValueError:
        pass
    raise InvalidArgumentError(f"--keys must be [BEGIN]:[END], got {text!r}")
