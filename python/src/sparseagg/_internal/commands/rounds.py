"""The commands about rounds: their specs in files, submissions and results."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import shlex
import sys
from typing import Any

from google.protobuf import descriptor as descriptors
from google.protobuf import json_format

from sparseagg import certificates
from sparseagg._internal.base.arguments import did_you_mean, shown
from sparseagg._internal.base.state_files import replaced
from sparseagg._internal.base.text import plain_table
from sparseagg._internal.commands import npz
from sparseagg._internal.commands.parser import Parser, add_command, client_of, put, put_json, time_left
from sparseagg._internal.results.info import RoundInfo, raise_if_failed
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg._internal.wire.columns import NARROW
from sparseagg._internal.wire.encode import ENCODINGS
from sparseagg.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from sparseagg.v1 import aggregation_pb2 as pb

# Help text of the commands that take such a file.
SPEC_HELP = """a file with a sparseagg.v1.RoundSpec in JSON, such as {"tensors": [{"name": "emb", "dtype": "float32",
"shape": [1000, 16]}], "aggregation": {"op": "mean"}}; docs/reference/rounds.md has more"""

_Field = descriptors.FieldDescriptor
_INTEGERS = (_Field.CPPTYPE_INT32, _Field.CPPTYPE_INT64, _Field.CPPTYPE_UINT32, _Field.CPPTYPE_UINT64)
_FIRST_ROUNDED = 2.0**53  # from here on, float64 does not have every integer


def read_spec(path: pathlib.Path) -> RoundSpec:
    """Reads a sparseagg.v1.RoundSpec in the JSON form of Protocol Buffers.

    Values of enums may also have their Python names: "float32" is "DTYPE_FLOAT32". A shape may be a list of sizes. It
    makes num_rows and row_width where the file has neither. Raises ``InvalidArgumentError``, which names file and
    field.
    """
    proto = pb.RoundSpec()
    try:
        message = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
        json_format.ParseDict(_message(message, pb.RoundSpec.DESCRIPTOR, ""), proto)
        return RoundSpec._from_proto(proto)
    except (json_format.ParseError, RecursionError, ValueError) as error:
        raise InvalidArgumentError(f"{path}: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object as a dict. Refuses repeated names, of which Python would take the last."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"{twice} is given twice")
    return made


def _message(value: Any, descriptor: Any, place: str) -> dict[str, Any]:
    """Returns a JSON message in which all enums have their proto names; unknown members stay, and the parser refuses
    them.

    ``place``: of the message in the file, such as "tensors[0].aggregation". Raises ``InvalidArgumentError`` for no
    object, or an enum without such a value; the text names the field.
    """
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{place or descriptor.name} must be an object, got {shown(value)}")
    fields = {name: field for field in descriptor.fields for name in (field.name, field.json_name)}
    made: dict[str, Any] = {}
    given: set[str] = set()
    for name, member in value.items():
        at = f"{place}.{name}" if place else name
        if name in fields and fields[name].name in given:  # in both forms, of which the parser would take the last
            raise InvalidArgumentError(f"{at} is given twice")
        given.add(fields[name].name if name in fields else name)
        if name not in fields:
            made[name] = member
        elif isinstance(member, list) and fields[name].message_type is pb.Shape.DESCRIPTOR:
            made[name] = _message({"sizes": member}, pb.Shape.DESCRIPTOR, at)
        elif isinstance(member, list) and fields[name].default_value != []:
            raise InvalidArgumentError(f"{at} is no list")
        elif isinstance(member, list):
            made[name] = [_member(part, fields[name], f"{at}[{index}]") for index, part in enumerate(member)]
        else:
            made[name] = _member(member, fields[name], at)
    return made


def _member(value: Any, field: Any, place: str) -> Any:
    if value is None:  # like a member that is not there
        return value
    if field.enum_type is not None:
        return _enum_value(value, field.enum_type, place)
    if isinstance(value, float) and field.cpp_type in _INTEGERS and abs(value) >= _FIRST_ROUNDED:
        raise InvalidArgumentError(f"{place} is too large an integer for a fraction or an exponent")
    # Durations are messages in the proto, but strings in JSON.
    if field.message_type is None or field.message_type.file.package == "google.protobuf":
        return value
    return _message(value, field.message_type, place)


def _enum_value(value: Any, enum: Any, place: str) -> Any:
    numbers = {known.name: known.number for known in enum.values}
    if isinstance(value, str) and value in numbers:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value in numbers.values():
        return value
    prefix = enum.values_by_number[0].name[: -len("UNSPECIFIED")]
    names = {name[len(prefix) :].lower(): name for name, number in numbers.items() if number}
    if not isinstance(value, str) or value not in names:
        meant = did_you_mean(value, names)
        raise InvalidArgumentError(f"{place} must be one of {', '.join(names)}, got {shown(value)}{meant}")
    return names[value]


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
        infos = [found.info for found in client.list_rounds()]
    if arguments.json:
        put_json(infos)
        return 0
    rows = [
        (_id(info), info.state, *_sizes(info), ", ".join(each.name for each in info.spec.tensors)) for info in infos
    ]
    put(*plain_table(("id", "state", *_SIZE_HEADS, "tensors"), rows))
    return 0


def _create(arguments: argparse.Namespace) -> int:
    spec = read_spec(arguments.spec)
    with client_of(arguments) as client:
        put(client.create_round(spec, arguments.id).name.partition("/")[2])
    return 0


def _show(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        info = client.get_round(arguments.round).info
    if arguments.json:
        put_json(info)
        return 0
    facts = {
        "round": _id(info),
        "state": f"{info.state}: {info.state_reason}" if info.state_reason else info.state,
        "engine": info.engine,
        "uploads": f"{info.num_uploads} under way",
        **{name: _time(at) for name in ("create", "close", "end", "expire") if (at := getattr(info, f"{name}_time"))},
        "timeline": f"open {_ms(info.timeline.open)} ms, finish {_ms(info.timeline.finish)} ms, longest "
        f"{info.timeline.longest}",
        **({"clip": str(info.clip)} if info.clip is not None else {}),
        **({"release_id": info.release_id.hex()} if info.release_id else {}),
        "spec": json_format.MessageToJson(info.spec._to_proto(), indent=None),
    }
    put(*(f"{name:10}  {value}" for name, value in facts.items()), "")
    put(*plain_table(_SIZE_HEADS, [_sizes(info)]), "")
    stages = [(each.stage, _ms(each.busy), _ms(each.wait), f"{each.bytes / 1e6:.3f}") for each in info.timeline.stages]
    put(*plain_table(("stage", "busy ms", "wait ms", "mb"), stages))
    if info.results:
        results = [(each.name, each.num_keys, each.layout, each.plan) for each in info.results]
        put("", *plain_table(("tensor", "rows", "layout", "plan"), results))
    if info.recent_refusals:
        refusals = [(each.client_id, _time(each.time), each.code, each.reason) for each in info.recent_refusals]
        put("", *plain_table(("refused client", "time", "code", "reason"), refusals))
    return 0


def _id(info: RoundInfo) -> str:
    return info.name.partition("/")[2]


_SIZE_HEADS = ("submissions", "refused", "tuples", "mb")


def _sizes(info: RoundInfo) -> tuple[int | str, ...]:
    return info.num_submissions, info.num_refused, info.num_tuples, f"{info.num_bytes / 1e6:.1f}"


def _time(at: datetime.datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _close(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        found = client.get_round(arguments.round)
        found.start_merge(time_left(arguments))
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
        receipt = certificates.receipt(client.get_round(arguments.round), arguments.client, arguments.submission_id)
    with replaced(arguments.output) as file:
        file.write(receipt.to_json().encode())
    put("promised" if receipt.leaf_index is None else "promised, and in the certificate's tree")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        certificates.export_bundle(client.get_round(arguments.round), arguments.folder, time_left(arguments))
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        client.get_round(arguments.round).delete()
    return 0


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
