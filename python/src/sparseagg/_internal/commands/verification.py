"""The commands ``sparseagg verify`` and ``sparseagg replay``."""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import pathlib

from sparseagg._internal.certificates.bundle import replay
from sparseagg._internal.commands import npz
from sparseagg._internal.commands.parser import put
from sparseagg._internal.results.info import SubmissionReceipt
from sparseagg.certificates import verify
from sparseagg.errors import InvalidArgumentError

DESCRIPTION = """Verify a round's certificate, and with it a client's receipt and an exported round, whose result is
computed again. Prints a line for each thing that was verified. If one does not fit, ends with status 1 and says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``main``."""
    parser.add_argument("certificate", type=pathlib.Path, help="the certificate's file")
    parser.add_argument(
        "--key",
        required=True,
        action="append",
        type=pathlib.Path,
        metavar="FILE",
        help="PEM file of public keys that you trust; may be repeated, for keys that were in use before",
    )
    parser.add_argument("--receipt", type=pathlib.Path, metavar="FILE", help="a client's receipt")
    parser.add_argument("--bundle", type=pathlib.Path, metavar="FOLDER", help="a folder of sparseagg rounds export")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="where to compute (default: cpu)")
    parser.add_argument(
        "--any-version", action="store_true", help="compute again although the certificate is of another version"
    )


def main(arguments: argparse.Namespace) -> int:
    """Runs ``sparseagg verify``."""
    receipt = None
    if arguments.receipt is not None:
        try:
            receipt = SubmissionReceipt.from_json(arguments.receipt.read_bytes())
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{arguments.receipt}: {error}") from error
    lines = verify(
        _envelope(arguments.certificate),
        b"\n".join(path.read_bytes() for path in arguments.key),
        receipt=receipt,
        bundle=arguments.bundle,
        device=arguments.device,
        any_version=arguments.any_version,
    )
    put(*(f"ok: {line}" for line in lines))
    return 0


def _envelope(path: pathlib.Path) -> bytes:
    """Returns the envelope in a file, which is one, or an answer of the HTTP gateway that has one."""
    data = path.read_bytes()
    try:
        return base64.b64decode(json.loads(data)["envelope"], validate=True)
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        return data


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``replay_main``."""
    parser.add_argument("bundle", type=pathlib.Path, help="a folder of sparseagg rounds export")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the .npz file to write")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="where to compute (default: cpu)")


def replay_main(arguments: argparse.Namespace) -> int:
    """Runs ``sparseagg replay``."""
    npz.check_output(arguments.output)
    result = replay(arguments.bundle, device=arguments.device)
    npz.write_result(arguments.output, result)
    npz.print_rows(arguments.output, result)
    return 0
