"""The race's own parts: the reference that answers are held to, the tables, the allocation of turns."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import sys
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest

PEERS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of bench/peers, whose names are too plain to leave behind."""
    monkeypatch.syspath_prepend(str(PEERS))
    monkeypatch.syspath_prepend(str(PEERS.parent))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return __import__(name)

    yield load
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(PEERS.parent) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.fixture
def reference(module):
    """Of keys 2 (twice) and 5: 0.1 + 0.2, and 4."""
    return module("data").Reference(
        keys=np.array([2, 5], np.uint64),
        sums=np.array([[0.1 + 0.2], [4.0]]),
        magnitudes=np.array([[0.1 + 0.2], [4.0]]),
        counts=np.array([2, 1]),
    )


def test_reference_takes_any_order_and_float32_rounding(reference) -> None:
    right = np.array([np.float32(0.1) + np.float32(0.2), 4], np.float32)
    assert reference.error(np.array([2, 5]), right) is None
    assert reference.error(np.array([5, 2], np.int32), right[::-1]) is None
    dense = np.zeros(9, np.float32)
    dense[[2, 5]] = right
    assert reference.dense_error(dense, 9) is None


@pytest.mark.parametrize(
    ("keys", "values", "text"),
    [
        ([2], [0.3], "1 keys instead of 2"),
        ([2, 6], [0.3, 4], "other keys"),
        ([2, 5], [0.3001, 4], "key 2: 0.3001 instead of"),
        ([5, 2], [0.3, 4], "key 2: 4.0 instead of"),
        ([2, 5], [float("nan"), 4], "key 2: nan"),
    ],
)
def test_reference_finds_wrong_answers(reference, keys, values, text) -> None:
    assert text in reference.error(np.array(keys), np.array(values))


def test_reference_finds_values_where_nobody_has_one(reference) -> None:
    dense = np.zeros(9)
    dense[[2, 5, 7]] = [0.3, 4, 1e-9]
    assert "nobody" in reference.dense_error(dense, 9)


def test_data_written_is_the_sum_of_the_clients(module, tmp_path) -> None:
    data = module("data")

    class Workload:
        name, description, dimension, width = "A", "two clients", 10, 2
        clients = [  # noqa: RUF012
            (np.array([1, 3], np.uint32), np.array([[1, 2], [3, 4]], np.float32)),
            (np.array([3], np.uint32), np.array([[5, -6]], np.float32)),
        ]

    facts = data.write(Workload, 1, 1, tmp_path)
    assert (facts["tuples"], facts["rows_out"], facts["bytes_in"], facts["bytes_out"]) == (3, 2, 36, 24)
    found, reference = data.read(tmp_path), data.read_reference(tmp_path)
    assert found.num_clients == 2
    assert found.keys[found.client(1)].tolist() == [3]
    assert reference.sums.tolist() == [[1, 2], [8, -2]]
    assert reference.magnitudes.tolist() == [[1, 2], [8, 10]]
    assert reference.counts.tolist() == [1, 2]
    assert found.no_rows() is not None
    assert found.no_dense() is None


def row(contestant: str, output: str, threads: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "workload": "A",
        "contestant": contestant,
        "library": "some",
        "output": output,
        "threads": threads,
        "inputs": "joined",
        "memory": "fresh",
        "verified": True,
        "repetitions": 7,
        "median_seconds": seconds,
        "least_seconds": seconds / 2,
        "most_seconds": seconds * 2,
        "tuples_per_s": 1e6 / seconds,
        "bytes_per_s": 20e6 / seconds,
        "peak_bytes": 12_000_000,
        "seconds": [seconds] * 7,
        **more,
    }


@pytest.fixture
def race_file() -> dict[str, Any]:
    return {
        "date": "2000-01-01",
        "machine": {
            "cpu": "a CPU",
            "cores": 2,
            "python": "3",
            "memory_bytes_per_s": {f"{n} threads": {"read": 10e9, "write": 10e9, "memcpy": 5e9} for n in (1, 2)},
        },
        "seed": 1,
        "divide_clients": 1,
        "seconds": 60,
        "versions": {"some": "1.0"},
        "absent": [{"library": "gone", "reason": "no wheel"}],
        "left_out": [{"workload": "A", "contestant": "slow thing", "reason": "no answer within 30 s"}],
        "workloads": [
            {
                "name": "A",
                "description": "a workload, small",
                "clients": 10,
                "tuples": 1_000_000,
                "rows_out": 500_000,
                "bytes_in": 8_000_000,
                "bytes_out": 2_000_000,
            }
        ],
        "results": [
            row("sparseagg canonical", "sparse", 1, 0.004),
            row("sparseagg canonical", "sparse", 2, 0.002),
            row("sparseagg in C++ canonical", "sparse", 1, 0.0036),
            row("peer one", "sparse", 1, 0.04),
            row("peer two", "sparse", 2, 0.02),
            row("peer three", "dense", 1, 0.008),
            row("peer four", "dense", 1, 0.016, inputs="separate"),
            row("sparseagg canonical", "sparse", 1, 0.003, memory="warm"),
            row("peer one", "sparse", 1, 0.018, memory="warm"),
            row("peer two", "sparse", 2, 0.009, memory="warm"),
            row("peer three", "dense", 1, 0.0075, memory="warm"),
            row("peer four", "dense", 1, 0.006, memory="warm", inputs="separate"),
        ],
        "merge_bench": {
            "results": [
                {
                    "workload": "A",
                    "numerics": "canonical",
                    "counts": False,
                    "op": "sum",
                    "threads": 1,
                    "tuples_per_s": 500e6,
                }
            ]
        },
    }


def test_table_compares_with_the_best_peers_of_no_more_threads(module, race_file) -> None:
    lines = module("table").markdown(race_file).splitlines()
    one, two = (line for line in lines if line.startswith("| A |"))
    cells = [cell.strip() for cell in one.strip("|").split("|")]
    # The floor is 10 MB at 10 GB/s: one of four milliseconds.
    assert cells[:5] == ["A", "1", "250", "–", "–"]
    # With warm memory one of three, against 18 and the dense peer that is the faster one then, with 6.
    assert cells[5:11] == ["peer one 25.0", "10.0×", "6.0×", "peer three 125", "2.0×", "2.0×"]
    assert cells[11:] == ["peer four 62.5", "4.0×", "25%", "90%", "67%"]
    cells = [cell.strip() for cell in two.strip("|").split("|")]
    assert cells[5:13] == ["peer two 50.0", "10.0×", "–", "peer three 125", "4.0×", "–", "peer four 62.5", "8.0×"]


def test_table_takes_figures_of_a_merge_bench_that_did_sums_alone(module, race_file) -> None:
    text = module("table").markdown(race_file)
    del race_file["merge_bench"]["results"][0]["op"]
    assert module("table").markdown(race_file) == text


def test_table_lists_everything_fastest_first(module, race_file) -> None:
    text = module("table").markdown(race_file)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "| 7 + " in line]
    order = [line[0] for line in cells]
    assert order[:3] == ["sparseagg canonical", "sparseagg in C++ canonical", "sparseagg canonical"]
    assert order[-1] == "peer one"
    assert cells[-1][4:6] == ["25.0", "55.6"]  # fresh and warm
    assert "- slow thing: no answer within 30 s" in text
    assert "- gone: no wheel" in text


class FakeProcess:
    """Takes these seconds for the first run of an entry, and those for every later one."""

    module = "numpy_"

    def __init__(self, first: float, later: float, name: str = "x") -> None:
        self._first, self._later, self._name = first, later, name
        self.asked: list[str] = []

    def ask(self, **command: Any) -> dict[str, Any]:
        if command["do"] == "load":
            entry = {"name": self._name, "output": "sparse", "threads": 1, "inputs": "joined", "refuses": None}
            return {"entries": [entry]}
        self.asked.append(command.get("memory", "check"))
        seconds = self._later if len(self.asked) > 1 else self._first
        return {"error": None, "peak_bytes": 0, "seconds": seconds}


@pytest.fixture
def race_of(module, monkeypatch, tmp_path):
    """Runs the race of these processes; gives the results by kind of memory."""

    def run(*processes: FakeProcess) -> list[dict[str, Any]]:
        race_module = module("race")
        monkeypatch.setattr(race_module.native, "load", lambda: None)
        options = {"patience": 1.5, "least": 2, "repetitions": 7, "seed": 1, "threads": 1, "fresh_only": False}
        race = race_module.Race(argparse.Namespace(**options))
        race._processes = list(processes)
        race._race({"name": "A", "tuples": 1, "bytes_in": 1, "bytes_out": 1}, tmp_path)
        return race.results

    return run


@pytest.mark.parametrize(
    ("seconds", "fresh", "warm"), [(0.01, 7, 7), (0.3, 5, 5), (1.0, 2, 2), (2.0, 1, 0), (20.0, 1, 0)]
)
def test_race_gives_slow_ones_fewer_runs(race_of, seconds, fresh, warm) -> None:
    runs = {result["memory"]: result["repetitions"] for result in race_of(FakeProcess(seconds, seconds))}
    assert (runs["fresh"], runs.get("warm", 0)) == (fresh, warm)


@pytest.mark.parametrize("first", [1.0, 9.0])
def test_race_does_not_go_by_the_run_that_compiles(race_of, first) -> None:
    results = race_of(FakeProcess(first, 0.01))
    assert [(result["memory"], result["repetitions"]) for result in results] == [("fresh", 7), ("warm", 7)]
    assert all(result["most_seconds"] == 0.01 for result in results)


def test_race_gives_ours_all_runs(race_of) -> None:
    results = race_of(FakeProcess(9.0, 9.0, "sparseagg canonical"))
    assert [result["repetitions"] for result in results] == [7, 7]


def test_race_has_done_with_fresh_memory_before_it_warms_it(race_of) -> None:
    processes = FakeProcess(0.01, 0.01), FakeProcess(0.5, 0.5)
    race_of(*processes)
    assert processes[0].asked == ["check"] + ["fresh"] * 7 + ["warm"] * 7
    assert processes[1].asked == ["check"] + ["fresh"] * 3 + ["warm"] * 3


def test_worker_times_no_first_run(module, monkeypatch) -> None:
    worker = module("worker").Worker(module)
    monkeypatch.setattr(worker, "_set_memory", lambda memory: None)
    ran: list[str] = []
    contestant = module("contestants").Contestant("x", "sparse", 1, lambda: ran.append("x"), lambda *_: None)
    worker._entries = [contestant]
    assert worker.check(0)["error"] is None
    counts = [len(ran)]
    for memory in ("fresh", "fresh", "warm", "warm"):
        worker.run(0, memory)
        counts.append(len(ran))
    assert counts == [1, 2, 3, 5, 6]
    worker._ran.clear()  # as in a process that was started again
    worker.run(0, "fresh")
    assert len(ran) == 8


def test_race_module_list_is_complete(module) -> None:
    names = {path.stem for path in (PEERS / "contestants").glob("*.py")} - {"__init__"}
    assert set(module("contestants").MODULES) == names


@pytest.mark.parametrize("name", ["jax_", "tensorflow_", "tensorflow_accumulator"])
def test_contestants_have_the_threads_that_they_report(module, monkeypatch, name) -> None:
    module("contestants")
    library = mock.MagicMock()
    for package in ("jax", "jax.numpy", "jax.experimental", "tensorflow"):
        monkeypatch.setitem(sys.modules, package, library)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    set_affinity = mock.MagicMock()
    monkeypatch.setattr(os, "sched_setaffinity", set_affinity, raising=False)
    data = mock.MagicMock(keys=np.arange(3), width=1, no_dense=lambda: None)
    found = importlib.import_module(f"contestants.{name}").contestants(data, 3)
    assert {contestant.threads for contestant in found} == {3}
    if name == "jax_":
        set_affinity.assert_called_once_with(0, [0, 1, 2])
    elif name == "tensorflow_":
        library.config.threading.set_intra_op_parallelism_threads.assert_called_once_with(3)
        library.config.threading.set_inter_op_parallelism_threads.assert_called_once_with(3)
    else:
        threads = {"intra_op_parallelism_threads": 3, "inter_op_parallelism_threads": 3}
        library.compat.v1.ConfigProto.assert_called_once_with(**threads)
        config = library.compat.v1.ConfigProto.return_value
        assert library.compat.v1.Session.call_args.kwargs["config"] is config


def gpu_row(what: str, memory: str, rate: float, share: float, **more: Any) -> dict[str, Any]:
    return {
        "workload": "A",
        "variant": "plain",
        "what": what,
        "memory": memory,
        "tuples_per_s": rate,
        "share_of_limit": share,
        "median_seconds": 10e6 / rate,
        "device_peak_bytes": 300_000_000,
        "kernels": {},
        **more,
    }


@pytest.fixture
def gpu_file() -> dict[str, Any]:
    parts = {"sort": 0.0006, "fold_values": 0.0004, "copy": 0.000001}
    return {
        "date": "2000-01-01",
        "device": "a GPU",
        "is_gpu": True,
        "cpu": "a CPU",
        "clients_divided_by": 1,
        "limits": {
            "copy_bytes_per_s": 2e12,
            "pinned_in_bytes_per_s": 50e9,
            "pageable_in_bytes_per_s": 10e9,
            "pinned_out_bytes_per_s": 40e9,
        },
        "results": [
            gpu_row("end_to_end", "pageable", 1e9, 0.2),
            gpu_row("end_to_end", "pinned", 4e9, 0.8),
            gpu_row("resident", "device", 9e9, 0.45),
            gpu_row("kernels", "device", 10e9, 0.5, kernels=parts),
            gpu_row("thrust", "device", 3e9, 0.1),
            gpu_row("kernels", "device", 10e9, 0.5, kernels=parts, variant="skewed"),
        ],
    }


@pytest.fixture
def peers_file() -> dict[str, Any]:
    return {
        "clients_divided_by": 1,
        "absent": [{"library": "cupy", "reason": "no such thing"}],
        "left_out": [{"workload": "D", "contestant": "torch index_add_", "reason": "no memory"}],
        "results": [{"workload": "A", "what": "torch coalesce", "tuples_per_s": 4.5e9}],
    }


def test_gpu_table_compares_with_the_fastest_peer(module, gpu_file, peers_file) -> None:
    text = module("plot_gpu").markdown(gpu_file, peers_file)
    plain, skewed = (line for line in text.splitlines() if line.startswith("| A |") and line.count("|") > 5)
    cells = [cell.strip() for cell in plain.strip("|").split("|")]
    assert cells == [
        "A",
        "plain",
        "9,000",
        "10,000",
        "50%",
        "4,000",
        "80%",
        "1,000",
        "torch coalesce 4,500",
        "2.0×",
        "300",
    ]
    assert "–" in skewed  # a figure that was not taken
    assert "| A | plain | 1.000 | sort 60%, fold_values 40% |" in text
    assert "- cupy: no such thing" in text
    assert "torch index_add_ on D: no memory" in text


def test_gpu_table_takes_no_peers_of_other_sizes(module, gpu_file, peers_file) -> None:
    assert "thrust 3,000" in module("plot_gpu").markdown(gpu_file, {**peers_file, "clients_divided_by": 4})
    assert "A quick look: a 4th" in module("plot_gpu").markdown({**gpu_file, "clients_divided_by": 4}, None)


def test_gpu_figures_of_a_host_are_refused(module, gpu_file, tmp_path, monkeypatch, capsys) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({**gpu_file, "is_gpu": False}), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["plot_gpu.py", str(path), "--table", str(tmp_path / "table.md")])
    assert module("plot_gpu").main() == 1
    assert "without a GPU" in capsys.readouterr().err
    assert not (tmp_path / "table.md").exists()


def test_gpu_picture_is_drawn(module, gpu_file, peers_file, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    module("plot_gpu").draw(gpu_file, peers_file, tmp_path / "gpu.png")
    assert (tmp_path / "gpu.png").read_bytes().startswith(b"\x89PNG")


def test_gpu_peers_find_wrong_answers(module) -> None:
    peers = module("gpu_peers")
    expected = peers.reference(np.array([5, 2, 2], np.uint32), np.array([4, 0.25, 0.5], np.float32))
    assert [each.tolist() for each in expected] == [[2, 5], [0.75, 4], [0.75, 4]]
    right = np.array([4, 0.75], np.float32)
    assert peers.difference((np.array([5, 2]), right), *expected) is None
    assert peers.difference((np.array([5, 3]), right), *expected) == "other keys"
    assert peers.difference((np.array([5, 2]), right[::-1]), *expected) == "2 wrong values"
    assert peers.difference(np.array([0, 0, 0.75, 0, 0, 4], np.float32), *expected) is None


def test_gpu_peers_report_what_is_absent(module, tmp_path, monkeypatch) -> None:
    peers = module("gpu_peers")

    def absent() -> Any:
        raise peers.Absent("it sees no device")

    def not_installed() -> Any:
        raise ImportError("No module named 'jax'")

    monkeypatch.setattr(peers, "LIBRARIES", {"torch": absent, "jax": not_installed})
    monkeypatch.setattr(sys, "argv", ["gpu_peers.py", "--out", str(tmp_path / "peers.json")])
    assert peers.main() == 0
    found = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
    assert found["results"] == []
    assert [each["reason"] for each in found["absent"]] == ["it sees no device", "absent: No module named 'jax'"]


@pytest.fixture
def fake_server(tmp_path):
    """Writes a program that says what the server says, leaves its id behind, and waits with these signal handlers."""

    def make(first_line: str, on_terminate: str = "SIG_DFL") -> pathlib.Path:
        program = tmp_path / "server"
        lines = [
            f"#!{sys.executable}",
            "import os, pathlib, signal, time",
            f"signal.signal(signal.SIGTERM, signal.{on_terminate})",
            f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))",
            f"print({first_line!r}, flush=True)",
            "time.sleep(60)",
        ]
        program.write_text("\n".join(lines) + "\n", encoding="utf-8")
        program.chmod(0o755)
        return program

    yield make
    assert not is_running(int((tmp_path / "pid").read_text(encoding="utf-8")))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_service_bench_ends_its_server_when_a_measurement_fails(module, fake_server) -> None:
    service = module("service")
    bench = service.Bench(fake_server("listening grpc=127.0.0.1:1"), pathlib.Path("/bin/false"), service.QUICK)
    with pytest.raises(SystemExit, match="/bin/false"):
        bench.small_rounds()


def test_service_bench_kills_a_server_that_does_not_stop(module, fake_server, monkeypatch) -> None:
    service = module("service")
    monkeypatch.setattr(service, "STOP_TIMEOUT_S", 0.2)
    server = service.Server(fake_server("listening grpc=127.0.0.1:1", "SIG_IGN"))
    with pytest.raises(SystemExit, match="status -9"), server:
        assert server.address == "127.0.0.1:1"


def test_service_bench_ends_a_server_that_does_not_say_where_it_is(module, fake_server) -> None:
    with pytest.raises(SystemExit, match="did not start"):
        module("service").Server(fake_server("something else"))
