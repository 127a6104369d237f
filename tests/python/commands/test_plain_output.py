"""Names, reasons and errors of a hostile server: what a terminal would obey in them reaches no terminal and no log."""

from __future__ import annotations

import ast
import asyncio
import io
import logging
import re
import traceback
from typing import Any

import grpc
import pytest
import sparseagg as sa
from google.protobuf import timestamp_pb2
from real_server import REPOSITORY
from scripted_server import Scripted, serving
from sparseagg._internal.base.text import plain
from sparseagg._internal.commands.cli import main
from sparseagg.v1 import aggregation_pb2 as pb

# Sets the title, clears the screen, rings; C1's escape; the end of a line, and a line over the one before; reverses.
EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31mb\r\nc\x08\u202ed"
SHOWN = plain(EVIL)
SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])


class Hostile(Scripted):
    """A server that puts EVIL into every text that it may choose."""

    def _round(self, name: str = "rounds/", state: int | None = None) -> pb.Round:
        if state is None:
            is_failed = name.startswith("rounds/failed")
            state = pb.ROUND_STATE_FAILED if is_failed else pb.ROUND_STATE_DONE
        return pb.Round(
            name=f"{name}{EVIL}",
            state=state,
            state_reason=EVIL,
            engine=EVIL,
            create_time=timestamp_pb2.Timestamp(seconds=1),
            spec=pb.RoundSpec(tensors=[pb.TensorSpec(name=EVIL, dtype=pb.DTYPE_FLOAT32, num_rows=10, row_width=1)]),
            timeline=pb.RoundTimeline(longest=EVIL, stages=[pb.StageTime(stage=EVIL)]),
            results=[pb.TensorSummary(name=EVIL, plan=EVIL, dtype=pb.DTYPE_FLOAT32, num_rows=10, row_width=1)],
        )

    def GetServerInfo(self, request: Any, context: grpc.ServicerContext) -> pb.ServerInfo:
        limits = pb.ServerLimits(max_message_bytes=1 << 20)
        return pb.ServerInfo(
            version=EVIL, api_versions=[EVIL], engine=EVIL, engine_description=EVIL, features=[EVIL], limits=limits
        )

    def ListRounds(self, request: Any, context: grpc.ServicerContext) -> pb.ListRoundsResponse:
        return pb.ListRoundsResponse(rounds=[self._round(), self._round(state=99)])

    def GetRound(self, request: Any, context: grpc.ServicerContext) -> pb.Round:
        if request.round == "rounds/refused":
            context.abort(grpc.StatusCode.NOT_FOUND, EVIL)
        return self._round(request.round)

    def CloseRound(self, request: Any, context: grpc.ServicerContext) -> pb.Round:
        return self._round(request.round)

    def WaitRound(self, request: Any, context: grpc.ServicerContext) -> pb.Round:
        return self._round(request.round)

    def CreateRound(self, request: Any, context: grpc.ServicerContext) -> pb.Round:
        return self._round()

    def CancelRound(self, request: Any, context: grpc.ServicerContext) -> pb.Round:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"the round is FAILED: {EVIL}")

    def StreamResult(self, request: Any, context: grpc.ServicerContext) -> Any:
        if "refuse" in request.round:
            context.abort(grpc.StatusCode.INTERNAL, EVIL)
        tensor = self._round().results[0]
        tensor.has_values = True
        yield pb.ResultPage(
            slice=pb.TensorSlice(
                tensor=EVIL,
                keys=b"\1\0\0\0",
                values=b"\0\0\0\0",
                num_keys=1,
                key_encoding=pb.KEY_ENCODING_U32,
                value_encoding=pb.VALUE_ENCODING_FLOAT32,
            ),
            summary=tensor,
        )


@pytest.fixture(scope="module")
def hostile() -> Any:
    with serving(Hostile()) as address:
        yield address


def lines(text: str) -> list[str]:
    """The lines of a text; fails if a terminal would obey a character in one."""
    found = text.split("\n")
    assert [line for line in found if not line.isprintable()] == []
    return found


@pytest.mark.parametrize("words", ["info", "rounds list", "rounds show r", "rounds show failed", "rounds close r"])
def test_command_prints_the_words_of_a_server_as_plain_text(words, hostile, capsys):
    assert main([*words.split(), "--address", hostile]) == 0
    printed = capsys.readouterr()
    assert SHOWN in printed.out
    lines(printed.out + printed.err)


def test_result_and_create_print_names_as_plain_text(hostile, capsys, tmp_path):
    assert main(["result", "r", "-o", str(tmp_path / "x.npz"), "--address", hostile]) == 0
    spec = tmp_path / "spec.json"
    spec.write_text('{"tensors": [{"name": "v", "dtype": "DTYPE_FLOAT32", "num_rows": 3, "row_width": 1}]}')
    assert main(["rounds", "create", str(spec), "--address", hostile]) == 0
    printed = lines(capsys.readouterr().out)
    assert printed == [f"{SHOWN}: 1 rows, sparse", SHOWN, ""]


@pytest.mark.parametrize("words", ["rounds show refused", "rounds cancel r", "rounds close failed"])
def test_command_prints_the_errors_of_a_server_as_plain_text(words, hostile, capsys):
    assert main([*words.split(), "--address", hostile]) == 1
    printed = capsys.readouterr().err
    assert SHOWN in printed
    assert len(lines(printed)) == 2


def test_top_and_doctor_show_the_words_of_a_server_as_plain_text(hostile, capsys):
    pytest.importorskip("rich")
    assert main(["top", "--once", "--address", hostile]) == 0
    main(["doctor", "--address", hostile])
    assert lines(capsys.readouterr().out)
    main(["doctor", "--json", "--address", hostile])
    lines(capsys.readouterr().out)


CALLS = {
    "refused": lambda client: client.get_round("refused"),
    "failed": lambda client: client.get_round("failed").finish(),
    "closed": lambda client: client.get_round("r").cancel(),
    "result": lambda client: client.get_round("refuse").result(),
}


def call(address: str, name: str) -> Exception:
    with sa.Client(address) as client, pytest.raises(sa.SparseaggError) as failed:
        CALLS[name](client)
    return failed.value


def call_with_asyncio(address: str, name: str) -> Exception:
    async def job() -> Exception:
        async with sa.aio.Client(address) as client:
            with pytest.raises(sa.SparseaggError) as failed:
                await (await client.get_round(name)).cancel()
            return failed.value

    return asyncio.run(job())


@pytest.mark.parametrize(
    ("calls", "name"), [*((call, name) for name in CALLS), (call_with_asyncio, "refused"), (call_with_asyncio, "r")]
)
def test_error_of_a_server_is_plain_text_in_a_traceback_and_a_log(hostile, calls, name):
    error = calls(hostile, name)
    assert "owned" in str(error)
    assert str(error).isprintable()
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.error("failed: %s", error, exc_info=error)
    traces = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    assert SHOWN in written.getvalue()
    lines(written.getvalue() + traces + repr(error))


def test_error_keeps_the_lines_of_its_own_text_alone():
    assert str(sa.errors.UnavailableError("its log:\none\x1b[2J\n\ttwo")) == "its log:\none [2J\n two"
    assert repr(sa.errors.NotFoundError("\x1b")) == "NotFoundError('\\x1b')"


TAGS = ("p", "table", "tr", "th", "td")


def test_representations_of_what_a_server_says_are_plain_text(hostile):
    with sa.Client(hostile) as client:
        opened = client.get_round("r")
        result = opened.result()
        for shown in (
            opened,
            opened.info,
            result,
            result[EVIL],
            opened.spec,
            client.server_info(),
            opened.info.results,
        ):
            assert "owned" in repr(shown)
            assert repr(shown).isprintable()
            if hasattr(shown, "_repr_html_"):
                text = re.sub(' style="text-align: (left|right)"', "", shown._repr_html_())
                assert text.isprintable()
                assert set(re.findall(r"<[^>]*>?", text)) <= {f"<{end}{tag}>" for end in ("", "/") for tag in TAGS}


def test_package_prints_through_put_alone():
    """Otherwise the next line that a command prints might not be clean."""
    package = REPOSITORY / "python" / "src" / "sparseagg"
    printing = re.compile(r"print|sys\.std(out|err)\.write")
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and printing.fullmatch(ast.unparse(node.func)):
                found.add(str(path.relative_to(package)))
    assert found == {"_internal/commands/parser.py"}
