"""The parts of the comparisons: the reference that answers are held to, and the tables."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from real_server import REPOSITORY


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
        name, description, num_rows, row_width = "A", "two clients", 10, 2
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


def test_kept_comparison_has_tables_of_all_workloads(module) -> None:
    found = json.loads((REPOSITORY / "bench/results/comparison.json").read_text(encoding="utf-8"))
    text = module("table").markdown(found)
    for workload in found["workloads"]:
        assert f"## {workload['name']}: {workload['description']}\n" in text
        assert f"\n| {workload['name']} | 1 | " in text


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
            gpu_row("finish", "pinned", 7e9, 0.6),
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
    text = module("measured_table").markdown(gpu_file, peers_file)
    plain, skewed = (line for line in text.splitlines() if line.startswith("| A |") and line.count("|") > 5)
    cells = [cell.strip() for cell in plain.strip("|").split("|")]
    assert cells == [
        "A",
        "plain",
        "9,000",
        "10,000",
        "50%",
        "7,000",
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


def test_gpu_peers_find_wrong_answers(module) -> None:
    peers = module("gpu_peers")
    expected = peers.reference(np.array([5, 2, 2], np.uint32), np.array([4, 0.25, 0.5], np.float32))
    assert [each.tolist() for each in expected] == [[2, 5], [0.75, 4], [0.75, 4]]
    right = np.array([4, 0.75], np.float32)
    assert peers.difference((np.array([5, 2]), right), *expected) is None
    assert peers.difference((np.array([5, 3]), right), *expected) == "other keys"
    assert peers.difference((np.array([5, 2]), right[::-1]), *expected) == "2 wrong values"
    assert peers.difference(np.array([0, 0, 0.75, 0, 0, 4], np.float32), *expected) is None
