"""A disk that fails: nothing is acknowledged that is not stored, reads go on, and so does the server afterwards."""

from __future__ import annotations

import pathlib
import re
import shlex
import time
import urllib.request
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
import sparseagg as sa
from google.protobuf.message import Message
from real_server import START_TIMEOUT_S, ServerProcess, server_binary
from sparseagg.v1 import aggregation_pb2, models_pb2
from wrapped_server import wrap

LIBRARY = pathlib.Path(server_binary()).resolve().parents[1] / "tests/service/libsparseagg_failing_disk.so"
NUM_ROWS = 100_000
SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=NUM_ROWS)])
SIZES = {"in the log": 3, "in a file": 50_000}  # tuples of an update, whose chunk lies there

if not LIBRARY.exists():
    pytest.skip(f"{LIBRARY} is not built", allow_module_level=True)


def update(size: int, value: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {"v": (np.arange(size), np.full(size, value, np.float32))}


class Machine:
    """A server on a disk that fails on demand."""

    def __init__(self, start: Callable[..., ServerProcess], folder: pathlib.Path) -> None:
        self._start = start
        self._folder = folder
        self.data = folder / "data"
        self._rule = folder / "data.rule"
        self.start()

    def start(self) -> None:
        flags = ("--data-dir", str(self.data), "--metrics-address", "127.0.0.1:0")
        self.server = self._start(self._folder / "log", *flags)
        self.client = sa.Client(self.server.address, retry=sa.RetryPolicy(attempts=1), timeout=START_TIMEOUT_S)

    def restart(self) -> None:
        self.end()
        self.start()

    def end(self) -> None:
        self.client.close()
        if self.server.process.poll() is None:
            self.server.kill()

    def rule(self, text: str) -> None:
        # In one step: the server reads it at any time.
        written = self._folder / "new.rule"
        written.write_text(text, encoding="utf-8")
        written.replace(self._rule)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://{self.server.metrics_address}/metrics", timeout=START_TIMEOUT_S) as page:
            (value,) = re.findall(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)
        return float(value)


@pytest.fixture
def machine(monkeypatch, tmp_path) -> Iterator[Machine]:
    preload = f"SPARSEAGG_FAILING_DISK={shlex.quote(str(tmp_path / 'data'))} LD_PRELOAD={shlex.quote(str(LIBRARY))}"
    started = Machine(wrap(monkeypatch, tmp_path, preload), tmp_path)
    yield started
    started.end()


def two_rounds(machine: Machine, size: int) -> tuple[sa.Round, sa.Round]:
    """A round with a result of ten keys, and "r", an open one with the submission of "a"."""
    earlier = machine.client.create_round(SPEC, round_id="earlier")
    earlier.submit("x", update(10, 7))
    earlier.start_merge()
    rnd = machine.client.create_round(SPEC, round_id="r")
    rnd.submit("a", update(size, ord("a")))
    return earlier, rnd


def clients_of(rnd: sa.Round) -> list[str]:
    return [each.client_id for each in rnd.submissions()]


def check_result(machine: Machine, size: int, clients: list[str]) -> None:
    """Closes the round, and compares the result with a sum that is exact."""
    rnd = machine.client.get_round("r")
    assert clients_of(rnd) == clients
    result = rnd.finish()["v"]
    expected = np.full(size, sum(ord(client) for client in clients), np.float32)
    assert result.values is not None
    assert result.values.tobytes() == expected.tobytes()


def submit_until_it_works(rnd: sa.Round, who: str, size: int) -> None:
    """As clients retry: RocksDB looks for itself whether there is space again."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            rnd.submit(who, update(size, ord(who)))
        except (sa.errors.ResourceExhaustedError, sa.errors.UnavailableError):
            assert time.monotonic() < deadline
        else:
            return


@pytest.mark.parametrize("where", SIZES)
def test_failed_sync_acknowledges_nothing_until_a_restart(machine, where) -> None:
    size = SIZES[where]
    earlier, rnd = two_rounds(machine, size)
    machine.rule("sync")
    with pytest.raises(sa.errors.UnavailableError, match=r"cannot (sync|write to) the data directory's"):
        rnd.submit("b", update(size, ord("b")))
    machine.rule("")
    # Nobody knows what the disk has, although it takes syncs again.
    with pytest.raises(sa.errors.UnavailableError, match="until a restart"):
        rnd.submit("c", update(size, ord("c")))
    assert earlier.result()["v"].keys.tolist() == list(range(10))
    assert rnd.refresh().state == "open"
    machine.restart()
    rnd = machine.client.get_round("r")
    assert clients_of(rnd) in (["a"], ["a", "b"])  # nobody was told of b
    rnd.submit("b", update(size, ord("b")))
    check_result(machine, size, ["a", "b"])


@pytest.mark.parametrize("where", SIZES)
@pytest.mark.parametrize("rule", ["full", "nearly"])
def test_full_disk_refuses_and_goes_on_when_there_is_space(machine, where, rule) -> None:
    size = SIZES[where]
    earlier, rnd = two_rounds(machine, size)
    assert machine.metric("sparseagg_data_writes_refused") == 0
    machine.rule(rule)
    with pytest.raises(
        sa.errors.ResourceExhaustedError, match=r"cannot (sync|write to) the data directory's"
    ) as caught:
        rnd.submit("b", update(size, ord("b")))
    assert "No space left on device" in str(caught.value)
    with pytest.raises(sa.errors.ResourceExhaustedError):
        rnd.submit("b", update(size, ord("b")), resumable=True)
    assert machine.metric("sparseagg_data_writes_refused") >= 2
    assert earlier.result()["v"].keys.tolist() == list(range(10))
    assert clients_of(rnd) == ["a"]
    machine.rule("")
    submit_until_it_works(rnd, "b", size)
    machine.restart()
    check_result(machine, size, ["a", "b"])


@pytest.mark.parametrize("where", SIZES)
def test_failed_writes_are_unavailable_until_a_restart(machine, where) -> None:
    size = SIZES[where]
    earlier, rnd = two_rounds(machine, size)
    machine.rule("broken")
    for _ in range(2):
        with pytest.raises(sa.errors.UnavailableError, match="Input/output error"):
            rnd.submit("b", update(size, ord("b")))
    assert clients_of(rnd) == ["a"]
    assert earlier.result()["v"].keys.tolist() == list(range(10))
    assert machine.metric("sparseagg_data_writes_refused") == 0
    machine.rule("")
    machine.restart()
    rnd = machine.client.get_round("r")
    rnd.submit("b", update(size, ord("b")))
    check_result(machine, size, ["a", "b"])


@pytest.mark.parametrize("where", SIZES)
def test_short_writes_lose_nothing(machine, where) -> None:
    size = SIZES[where]
    machine.rule("short")
    rnd = machine.client.create_round(SPEC, round_id="r")
    for who in "ab":
        rnd.submit(who, update(size, ord(who)))
    machine.restart()
    check_result(machine, size, ["a", "b"])


def test_full_disk_leaves_a_round_open_that_cannot_be_closed(machine) -> None:
    rnd = machine.client.create_round(SPEC, round_id="r")
    rnd.submit("a", update(3, ord("a")))
    machine.rule("full")
    with pytest.raises(sa.errors.ResourceExhaustedError):
        rnd.finish()
    assert rnd.refresh().state == "open"
    machine.rule("")
    submit_until_it_works(rnd, "b", 3)
    check_result(machine, 3, ["a", "b"])


def call_model(machine: Machine, method: str, request: Message, answer: type) -> Message:
    with grpc.insecure_channel(machine.server.address) as channel:
        path = f"/sparseagg.v1.Models/{method}"
        return channel.unary_unary(path, type(request).SerializeToString, answer.FromString)(request)


def apply(machine: Machine, number: int) -> int:
    request = models_pb2.ApplyRoundRequest(model="models/m", round=f"rounds/r{number}", base_version=number - 1)
    return call_model(machine, "ApplyRound", request, models_pb2.ModelVersion).version


def model_values(machine: Machine, size: int) -> np.ndarray:
    page = call_model(machine, "ReadRows", models_pb2.ReadRowsRequest(model="models/m"), models_pb2.RowsPage)
    assert np.frombuffer(page.slice.keys, np.uint32).tolist() == list(range(size))
    return np.frombuffer(page.slice.values, np.float32)


@pytest.mark.parametrize("where", SIZES)
@pytest.mark.parametrize("rule", ["full", "nearly", "sync", "broken"])
def test_failed_disk_leaves_a_model_as_it_is_until_it_works(machine, where, rule) -> None:
    size = SIZES[where]
    tensor = models_pb2.ModelTensor(name="v", dtype=aggregation_pb2.DTYPE_FLOAT32, num_rows=NUM_ROWS)
    create = models_pb2.CreateModelRequest(model_id="m", spec=models_pb2.ModelSpec(tensors=[tensor]))
    call_model(machine, "CreateModel", create, models_pb2.Model)
    for number in (1, 2):
        rnd = machine.client.create_round(SPEC, round_id=f"r{number}")
        rnd.submit("a", update(size, number))
        rnd.finish()
    assert apply(machine, 1) == 1
    machine.rule(rule)
    passes = rule in ("full", "nearly")
    wanted = grpc.StatusCode.RESOURCE_EXHAUSTED if passes else grpc.StatusCode.UNAVAILABLE
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as caught:
            apply(machine, 2)
        assert caught.value.code() == wanted, caught.value.details()
    assert set(model_values(machine, size)) == {1}
    machine.rule("")
    if not passes:
        machine.restart()
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            assert apply(machine, 2) == 2
            break
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED or time.monotonic() > deadline:
                raise
    for _ in range(2):
        assert set(model_values(machine, size)) == {3}
        machine.restart()


def test_disk_metrics_measure_the_directory(machine) -> None:
    before = machine.metric("sparseagg_data_bytes")
    rnd = machine.client.create_round(SPEC, round_id="r")
    rnd.submit("a", update(NUM_ROWS, 1))
    assert machine.metric("sparseagg_data_bytes") >= before + 4 * NUM_ROWS
    assert machine.metric("sparseagg_data_available_bytes") > 0
    rnd.delete()
    deadline = time.monotonic() + START_TIMEOUT_S
    while machine.metric("sparseagg_data_bytes") >= before + 4 * NUM_ROWS:
        assert time.monotonic() < deadline, "the space of a deleted round was not given back"
