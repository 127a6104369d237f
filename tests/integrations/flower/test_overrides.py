"""Strategies that need the clients' single updates are refused; others take their step from the merged model."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import flwr.server.strategy as legacy_strategies
import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.app import ArrayRecord, Message
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, FedMedian, Krum
from local_grid import LocalGrid, start
from sparseagg.flower import SparseFedAvg, SparseMixin, legacy, sparse_mod

NODES = 6
SPARSE = ["embedding.weight"]
# All of Flower's that aggregate_train makes their own result of the single replies.
NEED_REPLIES = [
    "Bulyan",
    "FedMedian",
    "FedTrimmedAvg",
    "FedXgbBagging",
    "FedXgbCyclic",
    "Krum",
    "MultiKrum",
    "QFedAvg",
]
TAKE_STEPS = ["FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedProx", "FedYogi"]


def own(name: str) -> type:
    return getattr(strategies, name)  # type: ignore[no-any-return]


def test_every_strategy_of_flower_is_one_or_the_other() -> None:
    derived = [name for name in strategies.__all__ if issubclass(own(name), FedAvg)]
    assert sorted(derived) == sorted(NEED_REPLIES + TAKE_STEPS)


@pytest.mark.parametrize("name", NEED_REPLIES)
def test_strategies_that_need_the_replies_are_refused_in_the_constructor(name: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=r"\.aggregate_train needs the single updates"):
        type("Combined", (SparseMixin, own(name)), {})(sparse=SPARSE)
    options = {"client_learning_rate": 0.1} if name == "QFedAvg" else {}
    with pytest.raises(sa.InvalidArgumentError, match=r"\.aggregate_train needs the single updates"):
        type("Combined", (own(name), SparseFedAvg), {})(**options)  # in front of the mixin


def options_of(name: str) -> dict[str, Any]:
    return {"proximal_mu": 0.1} if name == "FedProx" else {}


@pytest.mark.parametrize("name", TAKE_STEPS)
def test_strategies_that_take_steps_are_not_refused(name: str) -> None:
    type("Combined", (SparseMixin, own(name)), {})(sparse=SPARSE, **options_of(name))


def counted(function: Any) -> Any:
    """A decorator without functools.wraps."""

    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Checkpoints(FedAvg):
    """What users write most: an override that looks on."""

    seen: list[float]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.seen = [reply.content["metrics"]["loss"] for reply in replies if not reply.has_error()]  # type: ignore[call-overload]
        return arrays, metrics


class Decorated(FedAvg):
    @counted
    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return super().aggregate_train(server_round, replies)


class Wrapped(FedAvg):
    @functools.lru_cache  # noqa: B019
    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return FedAvg.aggregate_train(self, server_round, replies)


class Delegates(FedAvg):
    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return self.helper(server_round, replies)

    def helper(self, server_round: int, replies: Iterable[Message]) -> Any:
        return super().aggregate_train(server_round, replies)


class Halves(FedAvg):
    """A step of its own."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        return arrays if arrays is None else ArrayRecord({n: a for n, a in arrays.items()}), metrics


@pytest.mark.parametrize("strategy", [Checkpoints, Decorated, Delegates, Halves, Wrapped])
def test_overrides_that_call_on_work_and_see_the_metrics_of_all(strategy: type, tmp_path: Any) -> None:
    combined = type("Combined", (SparseMixin, strategy), {})(sparse=SPARSE, fraction_evaluate=0.0)
    if strategy is Wrapped:
        return  # lru_cache wants replies that can be hashed; it is not refused
    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    got, result = start(combined, LocalGrid(app, NODES))
    wanted, _ = start(SparseFedAvg(sparse=SPARSE, fraction_evaluate=0.0), LocalGrid(app, NODES))
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
    assert set(result.train_metrics_clientapp[2]) == {"loss"}
    if strategy is Checkpoints:
        assert len(set(combined.seen)) == NODES


def test_own_class_may_override_in_front_of_the_mixin(tmp_path: Any) -> None:
    class Strategy(SparseFedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            assert arrays is not None
            return arrays, metrics

    start(Strategy(sparse=SPARSE), LocalGrid(jobs.make_client_app([sparse_mod(copies=tmp_path)]), NODES))


class OwnMedian(FedAvg):
    """Computes from the replies in a function beside the class."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return FedMedian().configure_train, None  # whatever: it calls nothing of FedAvg's


def test_own_strategies_that_need_the_replies_are_refused() -> None:
    with pytest.raises(sa.InvalidArgumentError, match=r"OwnMedian\.aggregate_train needs the single updates"):
        type("Combined", (SparseMixin, OwnMedian), {})(sparse=SPARSE)


class Selects(FedAvg):
    """Calls on, with some of the replies: seen when it happens."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        best = sorted(replies, key=lambda reply: reply.content["metrics"]["loss"])[:2]  # type: ignore[call-overload,arg-type,return-value]
        return super().aggregate_train(server_round, best)


def test_strategy_that_selects_replies_is_refused_when_it_does(tmp_path: Any) -> None:
    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    combined = type("Combined", (SparseMixin, Selects), {})(sparse=SPARSE)
    with pytest.raises(sa.errors.FailedPreconditionError, match="Combined chooses 2 of 6 replies"):
        start(combined, LocalGrid(app, NODES))


def test_positions_api_refuses_what_it_would_not_call() -> None:
    for name in ("Krum", "FedMedian", "FedTrimmedAvg", "FedAdam", "QFedAvg"):
        other = getattr(legacy_strategies, name)
        with pytest.raises(sa.InvalidArgumentError, match=r"\.aggregate_fit"):
            type("Combined", (legacy.SparseFedAvg, other), {})(sparse=[0])
    with pytest.raises(sa.InvalidArgumentError, match=r"\.aggregate_fit"):
        type("Combined", (legacy_strategies.Krum, legacy.SparseFedAvg), {})()

    class Strategy(legacy.SparseFedAvg):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            return super().aggregate_fit(server_round, results, failures)

    Strategy(sparse=[0])


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_wrapper_for_differential_privacy_works_dense_and_says_so(
    noise: float, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])

    def wrapped(strategy: Any) -> Any:
        np.random.seed(jobs.SEED)  # noqa: NPY002  # allow(randomness): Flower draws its noise from it
        wrapper = strategies.DifferentialPrivacyServerSideFixedClipping
        return wrapper(strategy, noise_multiplier=noise, clipping_norm=1.0, num_sampled_clients=NODES)

    grid = LocalGrid(app, NODES)
    got, _ = start(wrapped(SparseFedAvg(sparse=SPARSE)), grid)
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert sum("all arrays travel whole, both ways" in record.getMessage() for record in warnings) == 2
    assert "all arrays travel whole" in caplog.text.partition("[ROUND 1")[0]  # where it lists the sparse tensors
    table = jobs.VOCABULARY * jobs.WIDTH * 4
    assert all(
        size > table for sizes in (*grid.sent.values(), *grid.received.values()) for size in sizes if size > 1000
    )
    stock, _ = start(wrapped(FedAvg()), LocalGrid(app, NODES))
    for name in ("embedding.weight", "dense.weight", "dense.bias", "scale"):
        np.testing.assert_allclose(got[name], stock[name], rtol=1e-4, atol=1e-5, err_msg=name)
    caplog.clear()
    start(SparseFedAvg(sparse=SPARSE), LocalGrid(app, NODES))
    assert "travel whole" not in caplog.text


def test_krum_without_the_mixin_is_flowers() -> None:
    start(Krum(), LocalGrid(jobs.make_client_app([]), NODES))
