"""``sparseagg rounds``: lists, creates, shows and ends rounds."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib

from google.protobuf import json_format

from sparseagg._internal.base.state_files import replaced
from sparseagg._internal.client.round_errors import raise_if_failed
from sparseagg._internal.commands.at_server import client_of, time_left
from sparseagg._internal.commands.output import put, put_json
from sparseagg._internal.commands.parser import Parser, add_command
from sparseagg._internal.commands.spec_file import SPEC_HELP, read_spec
from sparseagg._internal.results.info import TensorSummary, Timeline

__all__ = ["add_arguments"]


def add_arguments(parser: Parser, at_server: argparse.ArgumentParser) -> None:
    """Adds the actions; ``at_server``: a parent with the options of commands that call a server."""
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", parser_class=Parser)
    listing = add_command(actions, "list", "list all rounds, oldest first", parents=[at_server])
    listing.add_argument("--json", action="store_true", help="print a JSON array of all that is known of each round")
    listing.set_defaults(run=_list)
    create = add_command(actions, "create", "open a round, and print its id", parents=[at_server])
    create.add_argument("spec", type=pathlib.Path, help=SPEC_HELP)
    create.add_argument("--id", help="the round's id (default: a random one)")
    create.set_defaults(run=_create)
    made = {}
    for name, run, text in (
        ("show", _show, "show everything about a round"),
        ("seal", _seal, "freeze a round's submissions without merging them"),
        ("close", _close, "close a round: it takes no more submissions; wait for the merge"),
        ("cancel", _cancel, "end a round without a result"),
        ("delete", _delete, "remove a round and its result from the server"),
    ):
        made[name] = action = add_command(actions, name, text, parents=[at_server])
        action.add_argument("round", help="the round's id")
        action.set_defaults(run=run)
    made["show"].add_argument("--json", action="store_true", help="print a JSON object")

    sealed = add_command(
        actions, "certificate", "wait for a round's signed certificate, and write it", parents=[at_server]
    )
    sealed.add_argument("round", help="the round's id")
    sealed.add_argument("-o", "--output", required=True, metavar="FILE", type=pathlib.Path, help="the file to write")
    sealed.set_defaults(run=_certificate)
    receipt = add_command(actions, "receipt", "write what is signed about a client's submission", parents=[at_server])
    receipt.add_argument("round", help="the round's id")
    receipt.add_argument("client", help="the client's id")
    receipt.add_argument("-o", "--output", required=True, metavar="FILE", type=pathlib.Path, help="the file to write")
    receipt.add_argument(
        "--submission-id", default="", metavar="ID", help="needed if the client has several in a version of a stream"
    )
    receipt.set_defaults(run=_receipt)
    export = add_command(actions, "export", "write a round's submissions, result and certificate", parents=[at_server])
    export.add_argument("round", help="the round's id")
    export.add_argument("folder", help="the folder to write; there must be nothing of this name")
    export.set_defaults(run=_export)


def _list(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        if arguments.json:
            put_json([found.info for found in client.list_rounds()])
            return 0
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
    with client_of(arguments) as client:
        put(client.create_round(spec, arguments.id).id)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        info = client.get_round(arguments.round).info
    if arguments.json:
        put_json(info)
        return 0
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
    with client_of(arguments) as client:
        found = client.get_round(arguments.round)
        found.close(time_left(arguments))
        info = found.wait(time_left(arguments))
    raise_if_failed(info)
    for tensor in info.results:
        put(f"{tensor.name}: {tensor.num_keys} rows, {tensor.layout}")
    return 0


def _seal(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        info = client.get_round(arguments.round).seal(time_left(arguments))
    put(f"sealed with {info.num_submissions} submissions")
    return 0


def _cancel(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        client.get_round(arguments.round).cancel("by command")
    return 0


def _certificate(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        certificate = client.get_round(arguments.round).certificate(time_left(arguments))
    with replaced(arguments.output) as file:
        file.write(certificate.envelope)
    return 0


def _receipt(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        receipt = client.get_round(arguments.round).receipt(arguments.client, arguments.submission_id)
    with replaced(arguments.output) as file:
        file.write(receipt.to_json().encode())
    put("promised" if receipt.leaf_index is None else "promised, and in the certificate's tree")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        client.get_round(arguments.round).export(arguments.folder, time_left(arguments))
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        client.get_round(arguments.round).delete()
    return 0
