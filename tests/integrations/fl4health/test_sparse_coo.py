"""examples/fl4health_sparse_coo.py inside FL4Health: its exchanger on the clients, and its strategy beside ours."""

from __future__ import annotations

import types

import fl4health_sparse_coo as coo
import numpy as np
import pytest
import torch

pytest.importorskip("fl4health", reason="not installed; requirements.txt says how")

from fl4health.parameter_exchange.parameter_selection_criteria import largest_final_magnitude_scores
from fl4health.parameter_exchange.sparse_coo_parameter_exchanger import SparseCooParameterExchanger
from fl4health.strategies.fedavg_sparse_coo_tensor import FedAvgSparseCooTensor
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays


def make_model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 5))


def results_of(clients: int, level: float = 0.3) -> list:
    """What the server gets: each client's parameters of the largest magnitude, packed by FL4Health."""
    exchanger = SparseCooParameterExchanger(level, largest_final_magnitude_scores)
    results = []
    for client in range(clients):
        arrays = exchanger.push_parameters(make_model(client), make_model(99))
        fit = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), 10 + client, {"client": f"hospital-{client}"})
        results.append((types.SimpleNamespace(cid=f"random {client}"), fit))
    return results


@pytest.mark.parametrize("weighted", [True, False])
def test_mean_has_the_numbers_of_fl4health(weighted: bool) -> None:
    results = results_of(5)
    theirs, _ = FedAvgSparseCooTensor(weighted_aggregation=weighted).aggregate_fit(2, results, [])
    ours, _ = coo.sparse_strategy("mean")(weighted_aggregation=weighted).aggregate_fit(2, results, [])
    theirs, ours = (coo.unpack(parameters_to_ndarrays(packed)) for packed in (theirs, ours))
    assert ours.keys() == theirs.keys()
    for name, part in theirs.items():
        assert ours[name].shape == part.shape
        np.testing.assert_array_equal(ours[name].indices, part.indices)
        np.testing.assert_allclose(ours[name].values, part.values, rtol=1e-5)


def test_merged_parameters_go_back_into_a_model() -> None:
    exchanger = SparseCooParameterExchanger(0.3, largest_final_magnitude_scores)
    packed, _ = coo.sparse_strategy()().aggregate_fit(2, results_of(3), [])
    arrays, model = parameters_to_ndarrays(packed), make_model(7)
    exchanger.pull_parameters(arrays, model)
    for name, part in coo.unpack(arrays).items():
        tensor = model.state_dict()[name].numpy()
        np.testing.assert_array_equal(tensor[tuple(part.indices.T)], part.values)


def spoil(fit: FitRes, how: str) -> None:
    arrays = parameters_to_ndarrays(fit.parameters)
    if how == "NaN":
        arrays[0][0] = np.nan
    elif how == "index":
        number = (len(arrays) - 1) // 3
        arrays[number][0] += 1000
    fit.parameters = ndarrays_to_parameters(arrays)
    if how == "bytes":
        fit.parameters.tensors[1] = b"\x93NUMPY junk"
    elif how == "number":
        del fit.parameters.tensors[1]
    elif how == "id":
        fit.metrics["client"] = "hospital-0"
    elif how == "weight":
        fit.num_examples = float("nan")  # type: ignore[assignment]


@pytest.mark.parametrize("how", ["NaN", "index", "bytes", "number", "weight"])
def test_one_bad_client_fails_alone_and_is_named(how: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "flwr")
    results = results_of(5)
    spoil(results[2][1], how)
    strategy = coo.sparse_strategy()(fit_metrics_aggregation_fn=lambda metrics: {"clients": len(metrics)})
    failures: list = []
    merged, metrics = strategy.aggregate_fit(2, results, failures)
    wanted, _ = coo.sparse_strategy()().aggregate_fit(2, results_of(5)[:2] + results_of(5)[3:], [])
    assert merged.tensors == wanted.tensors
    assert metrics == {"clients": 4}
    assert len(failures) == 1
    assert "hospital-2" in str(failures[0])
    assert "hospital-2" in caplog.text
    strategy = coo.sparse_strategy()(accept_failures=False)
    assert strategy.aggregate_fit(2, results, []) == (None, {})


def test_failures_are_handled_as_fl4health_handles_them() -> None:
    strategy = coo.sparse_strategy()(accept_failures=False)
    assert strategy.aggregate_fit(2, results_of(2), [RuntimeError()]) == (None, {})
    assert strategy.aggregate_fit(2, [], []) == (None, {})
