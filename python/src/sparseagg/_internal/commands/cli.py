"""The command ``sparseagg``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

import sparseagg
from sparseagg._internal.base import extension
from sparseagg._internal.base.text import binary_size, decimal
from sparseagg._internal.commands import (
    demo,
    doctor,
    keys,
    merge,
    rounds,
    verification,
)
from sparseagg._internal.commands.demo import run as demo_run
from sparseagg._internal.commands.parser import (
    Parser,
    add_command,
    address_options,
    client_of,
    put,
    put_json,
    server_options,
    time_left,
)
from sparseagg._internal.local import programs
from sparseagg._internal.results.server_info import ServerActivity
from sparseagg.errors import SparseaggError

_EXIT = """exit status: 0: done. 1: an error, or something is missing or does not verify; the text says what. 2: wrong
arguments. 130: interrupted. Every command that lists or shows something has --json."""

_TOP = (
    "Shows the rounds of a running server, live: state, submissions, rates and memory, until it is interrupted. "
    "Through a pipe, and on a terminal of TERM=dumb, it prints a plain table at each refresh. With the addresses of "
    "a cluster's servers, with commas: rounds over all of them, bytes on each, and seconds of each step."
)

_COMPLETION = """Print a script by which a shell completes commands and options.
bash: sparseagg completion bash > ~/.local/share/bash-completion/completions/sparseagg.
zsh: sparseagg completion zsh > FOLDER/_sparseagg, with FOLDER in $fpath."""


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


def _parser() -> Parser:
    parser = Parser(prog="sparseagg", description=sparseagg.__doc__.partition("\n")[0], epilog=_EXIT)
    parser.add_argument("--version", action="version", version=f"sparseagg {sparseagg.__version__}")
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", description="sparseagg COMMAND --help explains each."
    )
    address = address_options()
    server = server_options(address)

    info = add_command(commands, "info", "show the server's version, engine and limits", parents=[server])
    info.add_argument("--json", action="store_true", help="print a JSON object instead of the table")
    info.set_defaults(run=_info)
    backup = add_command(
        commands, "backup", "copy a server's data directory into its --backup-dir while it runs", parents=[server]
    )
    backup.add_argument("name", help="the copy's folder there; there must be nothing of this name")
    backup.set_defaults(run=_backup)
    rounds.add_arguments(add_command(commands, "rounds", "list, create, show and end rounds"), server)
    rounds.add_submit_arguments(
        add_command(commands, "submit", "submit a client's update from a .npz file", parents=[server])
    )
    rounds.add_result_arguments(
        add_command(commands, "result", "wait for a round's result, and read it into a .npz file", parents=[server])
    )

    merging = add_command(commands, "merge", "merge .npz files in this process, without a server", merge.DESCRIPTION)
    merge.add_arguments(merging)
    merging.set_defaults(run=merge.main)

    verifying = add_command(commands, "verify", "verify a round's certificate", verification.DESCRIPTION)
    verification.add_arguments(verifying)
    verifying.set_defaults(run=verification.main)
    replaying = add_command(commands, "replay", "compute the result of an exported round again, without a server")
    verification.add_replay_arguments(replaying)
    replaying.set_defaults(run=verification.replay_main)

    engine = add_command(commands, "engine", "show the engine that merges without a server, or why there is none")
    engine.add_argument("--json", action="store_true", help="print a JSON object")
    engine.set_defaults(run=_engine)
    checking = add_command(
        commands, "doctor", "check this installation, and say what to do about what is missing", doctor.DESCRIPTION
    )
    doctor.add_arguments(checking)
    checking.set_defaults(run=doctor.main)

    live = add_command(commands, "top", "watch the rounds of a running server", _TOP, parents=[address])
    text = "time between two refreshes (default: %(default)s)"
    live.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help=text)
    text = "show only rounds and streams whose id or state has each word of TEXT"
    live.add_argument("--filter", default="", metavar="TEXT", help=text)
    live.add_argument("--once", action="store_true", help="print one view, without rates, and end")
    live.set_defaults(run=_top)

    commands.add_parser("server", add_help=False, help="run a server: sparseagg-server with the flags that follow")

    keys.add_arguments(
        add_command(commands, "keys", "make, list and revoke bearer tokens of a server", keys.DESCRIPTION)
    )

    training = add_command(commands, "demo", "federated training on real text, through a real server", demo.__doc__)
    demo_run.add_arguments(training)
    training.set_defaults(run=demo_run.main)

    completing = add_command(commands, "completion", "print what makes a shell complete commands", _COMPLETION)
    completing.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    completing.set_defaults(run=lambda arguments: _complete(arguments, parser))
    return parser


def _info(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        info = client.server_info()
    if arguments.json:
        put_json(info)
        return 0
    rows = {
        "version": info.version,
        "api": ", ".join(info.api_versions),
        "engine": f"{info.engine} ({info.engine_description})",
        **({"features": ", ".join(info.features)} if info.features else {}),
        "key_encodings": ", ".join(info.key_encodings),
        "value_encodings": ", ".join(info.value_encodings),
        **{name: f"{value:g}" if isinstance(value, float) else value for name, value in vars(info.limits).items()},
        **({"warnings": "; ".join(info.warnings)} if info.warnings else {}),
        **(_since_start(info.activity) if info.activity is not None else {}),
    }
    for name, value in rows.items():
        put(f"{name:26} {value}")
    return 0


def _backup(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        put(f"{arguments.name}: {decimal(client.backup(arguments.name, timeout=time_left(arguments)), 'B')}")
    return 0


def _since_start(activity: ServerActivity) -> dict[str, str]:
    """Returns rows of what the server has done since it started."""
    rows = {
        "start_time": "" if activity.start_time is None else activity.start_time.isoformat(timespec="seconds"),
        "rounds": f"{activity.num_rounds}, of which {activity.num_ended_rounds} have ended",
        "submissions": f"{activity.num_submissions}, and {activity.num_refused} refused",
        "received": decimal(activity.received_bytes, "B"),
    }
    if activity.resident_bytes:
        rows["memory_in_use"] = binary_size(activity.resident_bytes)
    return rows


def _engine(arguments: argparse.Namespace) -> int:
    described = extension.describe()
    if arguments.json:
        name, _, description = described.partition(" (")
        put_json({"engine": name, "description": description.removesuffix(")")})
    else:
        put(described)
    return 0


def _top(arguments: argparse.Namespace) -> int:
    from sparseagg._internal.commands import top  # only here: rich takes a tenth of a second

    return top.main(arguments)


def _complete(arguments: argparse.Namespace, parser: Parser) -> int:
    import shtab  # only here: other commands need not wait for it

    put(*shtab.complete(parser, arguments.shell).split("\n"))
    return 0
