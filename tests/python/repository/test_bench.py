"""The parts of the races: the reference that answers are held to, the tables, the pictures."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest


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


@pytest.mark.parametrize("other", [{"op": "mean"}, {"result": "dense"}])
def test_table_compares_with_merge_bench_at_the_same_work(module, race_file, other) -> None:
    text = module("table").markdown(race_file)
    rows = race_file["merge_bench"]["results"]
    rows.insert(0, {**rows[0], **other, "tuples_per_s": 1e6})
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
        "left_out": [{"workload": "A", "variant": "plain", "contestant": "cub", "reason": "key 2: 3, not 4"}],
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
    assert "- cub on A (plain): key 2: 3, not 4" in text
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


def test_gpu_peers_write_after_each_workload(module, tmp_path, monkeypatch) -> None:
    peers = module("gpu_peers")
    out = tmp_path / "peers.json"

    def library() -> Any:
        def ways(keys: Any, values: Any, dimension: int) -> Any:
            yield "plain", lambda: np.bincount(keys, values, dimension), lambda answer: answer

        return {"plain": "1"}, ways, lambda run: 1.0

    def read_workload(gpu_bench: Any, letter: str, divide_clients: int) -> Any:
        if letter == "B":
            raise KeyboardInterrupt
        return np.array([1, 1], np.uint32), np.array([2, 3], np.float32), 4

    monkeypatch.setattr(peers, "LIBRARIES", {"plain": library})
    monkeypatch.setattr(peers, "read_workload", read_workload)
    monkeypatch.setattr(sys, "argv", ["gpu_peers.py", "--workloads", "AB", "--out", str(out)])
    with pytest.raises(KeyboardInterrupt):
        peers.main()
    assert [row["workload"] for row in json.loads(out.read_text(encoding="utf-8"))["results"]] == ["A"]


@pytest.mark.parametrize(("before", "then"), [(None, "false"), ("true", "true")])
def test_jax_leaves_the_others_their_memory(module, tmp_path, monkeypatch, before, then) -> None:
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.setenv(name, before or "")
    if before is None:
        monkeypatch.delenv(name)
    text = f"import os\nfound = os.environ.get({name!r})\ndef devices(): return []\n"
    (tmp_path / "jax.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    peers = module("gpu_peers")
    with pytest.raises(peers.Absent):
        peers.jax_library()
    assert sys.modules["jax"].found == then
    del sys.modules["jax"]
