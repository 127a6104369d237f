"""Strategies of ``flwr.server.strategy``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.common import Code, EvaluateRes, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from sparseagg.flower.legacy import SparseFedAvg, sparse_ndarrays


class Proxy(ClientProxy):
    """Only the id of a client counts here."""

    def get_properties(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    get_parameters = fit = evaluate = reconnect = get_properties


def results(clients: Any, sparse: list[int], before: list[np.ndarray]) -> list[tuple[ClientProxy, FitRes]]:
    found = []
    for client in clients:
        after, examples = jobs.train_arrays(dict(zip(jobs.initial_model(), before)), client, 1)
        arrays = sparse_ndarrays(before, list(after.values()), sparse)
        metrics = {"partition-id": client}
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), examples, metrics)
        found.append((Proxy(cid=str(np.random.default_rng(client).integers(1 << 60))), result))
    return found


def strategy_of(before: list[np.ndarray], **options: Any) -> SparseFedAvg:
    strategy = SparseFedAvg(min_fit_clients=1, min_available_clients=1, **options)
    manager = SimpleClientManager()
    manager.register(Proxy(cid="1"))
    strategy.configure_fit(1, ndarrays_to_parameters(before), manager)
    return strategy


def test_sparse_and_dense_results_are_averaged_in_any_order() -> None:
    before = list(jobs.initial_model().values())
    some = results(range(5), [0], before) + results(range(5, 7), [], before)
    arrays = []
    for order in (some, some[::-1]):
        parameters, metrics = strategy_of(before, sparse=[0]).aggregate_fit(1, order, [])
        assert parameters is not None
        assert metrics == {}
        arrays.append(parameters_to_ndarrays(parameters))
    named = dict(zip(jobs.initial_model(), before))
    wanted = jobs.rounded(named, jobs.average(named, [jobs.train_arrays(named, client, 1) for client in range(7)]))
    for got, reverse, array in zip(*arrays, wanted.values()):
        assert got.tobytes() == reverse.tobytes()
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        np.testing.assert_allclose(got, array, rtol=1e-6, atol=5e-7)
    stock, _ = FedAvg().aggregate_fit(1, results(range(7), [], before), [])
    floats = [pair for pair in zip(arrays[0], parameters_to_ndarrays(stock)) if pair[0].dtype.kind == "f"]
    for got, array in floats:  # of integers, FedAvg truncates every term of the mean
        np.testing.assert_allclose(got, array, rtol=1e-5, atol=1e-5)


SPOILS: dict[str, Callable[[FitRes], Any]] = {
    "number": lambda fit: fit.parameters.tensors.__delitem__(slice(-2, None)),
    "bytes": lambda fit: fit.parameters.tensors.__setitem__(3, b"\x93NUMPY junk"),
    "words": lambda fit: fit.parameters.tensors.__setitem__(
        2, ndarrays_to_parameters([np.full((jobs.WIDTH, 3), "x")]).tensors[0]
    ),
    "weight": lambda fit: setattr(fit, "num_examples", "many"),
    "partition": lambda fit: fit.metrics.update({"partition-id": 0}),  # that of another client, which counts as well
}


@pytest.mark.parametrize("what", SPOILS)
def test_bad_result_is_a_failure_and_the_others_count(what: str) -> None:
    before = list(jobs.initial_model().values())
    some = results(range(3), [0], before)
    SPOILS[what](some[1][1])
    failures: list[Any] = []
    merged, _ = strategy_of(before, sparse=[0]).aggregate_fit(1, some, failures)
    assert merged is not None
    named = dict(zip(jobs.initial_model(), before))
    counted = (0, 1, 2) if what == "partition" else (0, 2)
    wanted = jobs.rounded(named, jobs.average(named, [jobs.train_arrays(named, client, 1) for client in counted]))
    for got, array in zip(parameters_to_ndarrays(merged), wanted.values()):
        np.testing.assert_allclose(got, array, rtol=1e-6, atol=5e-7)
    assert len(failures) == 3 - len(counted)
    if failures:
        assert some[1][0].cid in str(failures[0])
        assert strategy_of(before, sparse=[0], accept_failures=False).aggregate_fit(1, some, [])[0] is None
    if what == "number":
        assert "5 arrays, but the model has 6, 1 of them sparse" in str(failures[0])


def test_no_examples_cost_the_metrics_and_the_loss_alone(caplog: pytest.LogCaptureFixture) -> None:
    before = list(jobs.initial_model().values())
    some = results(range(3), [0], before)
    for _, fit in some:
        fit.num_examples = 0

    def average(metrics: list[tuple[int, Any]]) -> Any:
        return {"partition": sum(n * each["partition-id"] for n, each in metrics) / sum(n for n, _ in metrics)}

    strategy = strategy_of(before, sparse=[0], options={"weighting": "uniform"}, fit_metrics_aggregation_fn=average)
    parameters, metrics = strategy.aggregate_fit(1, some, [])
    assert (parameters is not None, metrics) == (True, {})
    assert strategy_of(before, sparse=[0]).aggregate_fit(1, some, []) == (None, {})  # by weight: the model stays
    evaluated: Any = [(proxy, EvaluateRes(Status(Code.OK, ""), 1.0, 0, {})) for proxy, _ in some]
    assert strategy.aggregate_evaluate(1, evaluated, []) == (None, {})
    assert "there is no average of the metrics: division by zero" in caplog.text
    assert "there is no average of the loss: float division by zero" in caplog.text


def test_client_without_sparse_ndarrays_and_round_without_results_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = list(jobs.initial_model().values())
    strategy = strategy_of(before, sparse=[0])
    for _ in range(2):
        strategy.aggregate_fit(1, results(range(3), [], before), [])
    assert caplog.text.count("without sparse_ndarrays") == 1
    some = results(range(2), [0], before)
    for _, fit in some:
        del fit.parameters.tensors[-2:]
    assert strategy.aggregate_fit(1, some, []) == (None, {})
    assert "aggregate_fit: none of 2 results counts, and the model stays" in caplog.text


def test_positions_of_no_array_are_refused() -> None:
    with pytest.raises(sa.InvalidArgumentError, match="sparse has position 6, but the model has 6 arrays"):
        strategy_of(list(jobs.initial_model().values()), sparse=[0, 6])
    with pytest.raises(sa.InvalidArgumentError, match="1 arrays before training, and 2 after"):
        sparse_ndarrays([np.zeros(2)], [np.zeros(2), np.zeros(2)], [0])
