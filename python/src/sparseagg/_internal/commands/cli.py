"""The command ``sparseagg``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from google.protobuf import json_format

import sparseagg
from sparseagg._internal.base import extension
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.client.round_errors import raise_if_failed
from sparseagg._internal.commands import credentials_flags, demo, doctor, keys, merge, npz, top, verification
from sparseagg._internal.commands.demo import run as demo_run
from sparseagg._internal.commands.output import put
from sparseagg._internal.commands.spec_file import SPEC_HELP, read_spec
from sparseagg._internal.local import programs
from sparseagg._internal.results.info import TensorSummary, Timeline
from sparseagg._internal.wire.formats import ENCODINGS
from sparseagg._internal.wire.values import NARROW
from sparseagg.errors import InvalidArgumentError, SparseaggError

__all__ = ["main"]

DEFAULT_ADDRESS = "127.0.0.1:8001"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status; ``argv`` of None takes the process's arguments."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["server"]:  # whose flags, --help among them, are the program's
            programs.run(programs.find(programs.SERVER), words[1:])
        arguments = _parser().parse_args(words)
        return int(arguments.run(arguments))
    except BrokenPipeError:  # the reader of our output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (OSError, ValueError, SparseaggError) as error:
        put(*f"sparseagg: {error}".splitlines(), to=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sparseagg", description=sparseagg.__doc__.partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"sparseagg {sparseagg.__version__}")
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", description="sparseagg COMMAND --help explains each."
    )

    address = argparse.ArgumentParser(add_help=False)
    address.add_argument(
        "--address",
        default=os.environ.get("SPARSEAGG_ADDRESS") or DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help=f"address of the server (default: SPARSEAGG_ADDRESS, or {DEFAULT_ADDRESS})",
    )
    credentials_flags.add_arguments(address)
    at_server = argparse.ArgumentParser(add_help=False, parents=[address])
    at_server.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="limit of the whole command (default: 60 for each call, none for submissions, merges and results)",
    )

    info = _add(commands, "info", "show the server's version, engine and limits", parents=[at_server])
    info.set_defaults(run=_info)

    rounds = _add(commands, "rounds", "list, create, show and end rounds")
    actions = rounds.add_subparsers(title="actions", required=True, metavar="ACTION")
    _add(actions, "list", "list all rounds, oldest first", parents=[at_server]).set_defaults(run=_list)
    create = _add(actions, "create", "open a round, and print its id", parents=[at_server])
    create.add_argument("spec", type=pathlib.Path, help=SPEC_HELP)
    create.add_argument("--id", help="the round's id (default: a random one)")
    create.set_defaults(run=_create)
    for name, run, text in (
        ("show", _show, "show everything about a round"),
        ("seal", _seal, "freeze a round's submissions without merging them"),
        ("close", _close, "close a round: it takes no more submissions; wait for the merge"),
        ("cancel", _cancel, "end a round without a result"),
        ("delete", _delete, "remove a round and its result from the server"),
    ):
        action = _add(actions, name, text, parents=[at_server])
        action.add_argument("round", help="the round's id")
        action.set_defaults(run=run)

    sealed = _add(actions, "certificate", "wait for a round's signed certificate, and write it", parents=[at_server])
    sealed.add_argument("round", help="the round's id")
    sealed.add_argument("-o", "--output", required=True, metavar="FILE", type=pathlib.Path, help="the file to write")
    sealed.set_defaults(run=_certificate)
    receipt = _add(actions, "receipt", "write what is signed about a client's submission", parents=[at_server])
    receipt.add_argument("round", help="the round's id")
    receipt.add_argument("client", help="the client's id")
    receipt.add_argument("-o", "--output", required=True, metavar="FILE", type=pathlib.Path, help="the file to write")
    receipt.set_defaults(run=_receipt)
    export = _add(actions, "export", "write a round's submissions, result and certificate", parents=[at_server])
    export.add_argument("round", help="the round's id")
    export.add_argument("folder", help="the folder to write; there must be nothing of this name")
    export.set_defaults(run=_export)

    submit = _add(commands, "submit", "submit a client's update from a .npz file", parents=[at_server])
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
        "--submission-id", metavar="ID", help="name of this content: the same id with the same file resumes an upload"
    )
    submit.set_defaults(run=_submit)

    result = _add(commands, "result", "wait for a round's result, and read it into a .npz file", parents=[at_server])
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

    merging = _add(commands, "merge", "merge .npz files in this process, without a server", merge.DESCRIPTION)
    merge.add_arguments(merging)
    merging.set_defaults(run=merge.main)

    verifying = _add(commands, "verify", "verify a round's certificate", verification.DESCRIPTION)
    verification.add_arguments(verifying)
    verifying.set_defaults(run=verification.main)
    replaying = _add(commands, "replay", "compute the result of an exported round again, without a server")
    verification.add_replay_arguments(replaying)
    replaying.set_defaults(run=verification.replay_main)

    _add(commands, "engine", "show the engine that merges without a server, or why there is none").set_defaults(
        run=_engine
    )

    checking = _add(
        commands, "doctor", "check this installation, and say what to do about what is missing", doctor.DESCRIPTION
    )
    doctor.add_arguments(checking)
    checking.set_defaults(run=doctor.main)

    live = _add(commands, "top", "watch the rounds of a running server", top.DESCRIPTION, parents=[address])
    top.add_arguments(live)
    live.set_defaults(run=top.main)

    commands.add_parser("server", add_help=False, help="run a server: sparseagg-server with the flags that follow")

    keys.add_arguments(_add(commands, "keys", "make, list and revoke bearer tokens of a server", keys.DESCRIPTION))

    training = _add(commands, "demo", "federated training on real text, through a real server", demo.__doc__)
    demo_run.add_arguments(training)
    training.set_defaults(run=demo_run.main)
    return parser


def _add(group: Any, name: str, text: str, description: str | None = None, **options: Any) -> argparse.ArgumentParser:
    """Adds a command to a group; its own help shows ``description``, by default the line in the group's help."""
    parser: argparse.ArgumentParser = group.add_parser(
        name, help=text, description=description or f"{text[0].upper()}{text[1:]}.", **options
    )
    return parser


def _client(arguments: argparse.Namespace) -> Client:
    options = credentials_flags.client_options(arguments)
    if arguments.timeout is not None:
        options["timeout"] = arguments.timeout
    client = Client(arguments.address, **options)
    if arguments.timeout is not None:
        arguments.deadline = client._connection.deadline = time.monotonic() + arguments.timeout
    return client


def _time_left(arguments: argparse.Namespace) -> float | None:
    """Returns the seconds that --timeout leaves for the rest of the command; None: it has no limit."""
    return None if arguments.timeout is None else max(0.0, arguments.deadline - time.monotonic())


def _info(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        info = client.server_info()
    rows = {
        "version": info.version,
        "api": ", ".join(info.api_versions),
        "engine": f"{info.engine} ({info.engine_description})",
        **({"features": ", ".join(info.features)} if info.features else {}),
        "key_encodings": ", ".join(info.key_encodings),
        "value_encodings": ", ".join(info.value_encodings),
        **{name: f"{value:g}" if isinstance(value, float) else value for name, value in vars(info.limits).items()},
        **({"warnings": "; ".join(info.warnings)} if info.warnings else {}),
    }
    for name, value in rows.items():
        put(f"{name:26} {value}")
    return 0


def _engine(_arguments: argparse.Namespace) -> int:
    put(extension.describe())
    return 0


def _list(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        put(f"{'ID':34} {'STATE':11} {'SUBMISSIONS':>11} {'TUPLES':>12} {'MB':>9}  TENSORS")
        for found in client.list_rounds():
            info = found.info
            tensors = ", ".join(tensor.name for tensor in info.spec.tensors)
            put(
                f"{found.id:34} {info.state:11} {info.num_submissions:11} {info.num_tuples:12} "
                f"{info.num_bytes / 1e6:9.1f}  {tensors}"
            )
    return 0


def _create(arguments: argparse.Namespace) -> int:
    spec = read_spec(arguments.spec)
    with _client(arguments) as client:
        put(client.create_round(spec, arguments.id).id)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        info = client.get_round(arguments.round).info
    for field in dataclasses.fields(info):
        value = getattr(info, field.name)
        if field.name == "timeline":
            lines = _timeline(value)
        elif field.name == "results":
            lines = [_summary(tensor) for tensor in value] or [""]
        elif field.name == "spec":
            lines = [json_format.MessageToJson(value.to_proto(), indent=None)]
        else:
            lines = [str(value)]
        put(f"{field.name:16} {lines[0]}", *(f"{'':16} {line}" for line in lines[1:]))
    return 0


def _summary(tensor: TensorSummary) -> str:
    plan = f"; {tensor.plan}" if tensor.plan else ""
    return f"{tensor.name}: {tensor.num_keys} rows, {tensor.layout}{plan}"


def _timeline(timeline: Timeline) -> list[str]:
    """Returns a line of wall times, and a line for each stage."""
    return [
        f"open {timeline.open * 1e3:.1f} ms, finish {timeline.finish * 1e3:.1f} ms, longest {timeline.longest}",
        *(
            f"{spent.stage:8} busy {spent.busy * 1e3:10.1f} ms  wait {spent.wait * 1e3:10.1f} ms  "
            f"{spent.bytes / 1e6:10.3f} MB"
            for spent in timeline.stages
        ),
    ]


def _close(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        found = client.get_round(arguments.round)
        found.close(_time_left(arguments))
        info = found.wait(_time_left(arguments))
    raise_if_failed(info)
    for tensor in info.results:
        put(f"{tensor.name}: {tensor.num_keys} rows, {tensor.layout}")
    return 0


def _seal(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        info = client.get_round(arguments.round).seal(_time_left(arguments))
    put(f"sealed with {info.num_submissions} submissions")
    return 0


def _cancel(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        client.get_round(arguments.round).cancel("by command")
    return 0


def _certificate(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        certificate = client.get_round(arguments.round).certificate(_time_left(arguments))
    arguments.output.write_bytes(certificate.envelope)
    return 0


def _receipt(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        receipt = client.get_round(arguments.round).receipt(arguments.client)
    arguments.output.write_text(receipt.to_json(), encoding="utf-8")
    put("promised" if receipt.leaf_index is None else "promised, and in the certificate's tree")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        client.get_round(arguments.round).export(arguments.folder, _time_left(arguments))
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        client.get_round(arguments.round).delete()
    return 0


def _submit(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        found = client.get_round(arguments.round)
        update = npz.read_update(arguments.file, found.spec)
        submission = found.submit(
            arguments.client,
            update,
            arguments.weight,
            key_encoding=arguments.key_encoding,
            value_encoding=arguments.value_encoding,
            submission_id=arguments.submission_id,
            resumable=arguments.submission_id is not None,
            progress=True,
            timeout=_time_left(arguments),
        )
    again = " (submitted before; it counts once)" if submission.duplicate else ""
    put(f"{submission.num_tuples} tuples, {submission.num_bytes} bytes{again}")
    return 0


def _result(arguments: argparse.Namespace) -> int:
    npz.check_output(arguments.output)
    keys = None if arguments.keys is None else _key_range(arguments.keys)
    with _client(arguments) as client:
        found = client.get_round(arguments.round)
        result = found.result(
            arguments.tensor, keys=keys, value_encoding=arguments.value_encoding, timeout=_time_left(arguments)
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
