"""Strategies that need the clients' single updates are refused; others take their step from the merged model."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import flwr.server.strategy as legacy_strategies
import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, FedMedian
from local_grid import LocalGrid, start
from sparseagg.flower import SparseFedAvg, SparseMixin, legacy, sparse_mod
from sparseagg.flower.model import CONFIG

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
    return OwnMedian if name == "OwnMedian" else getattr(strategies, name)  # type: ignore[no-any-return]


def test_every_strategy_of_flower_is_one_or_the_other() -> None:
    derived = [name for name in strategies.__all__ if issubclass(own(name), FedAvg)]
    assert sorted(derived) == sorted(NEED_REPLIES + TAKE_STEPS)


class OwnMedian(FedAvg):
    """A user's, that calls nothing of FedAvg's."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return FedMedian().configure_train, None


@pytest.mark.parametrize("name", [*NEED_REPLIES, "OwnMedian"])
def test_strategies_that_need_the_replies_are_refused_in_the_constructor(name: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=r"\.aggregate_train needs the single updates"):
        type("Combined", (SparseMixin, own(name)), {})(sparse=SPARSE)
    options = {"client_learning_rate": 0.1} if name == "QFedAvg" else {}
    with pytest.raises(sa.InvalidArgumentError, match=r"\.aggregate_train needs the single updates"):
        type("Combined", (own(name), SparseFedAvg), {})(**options)  # in front of the mixin


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


class Delegates(FedAvg):
    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return self.helper(server_round, replies)

    def helper(self, server_round: int, replies: Iterable[Message]) -> Any:
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("strategy", [Checkpoints, Decorated, Delegates])
def test_overrides_that_call_on_work_and_see_the_metrics_of_all(strategy: type, tmp_path: Any) -> None:
    combined = type("Combined", (SparseMixin, strategy), {})(sparse=SPARSE, fraction_evaluate=0.0)
    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    got, result = start(combined, LocalGrid(app, NODES))
    wanted, _ = start(SparseFedAvg(sparse=SPARSE, fraction_evaluate=0.0), LocalGrid(app, NODES))
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
    assert set(result.train_metrics_clientapp[2]) == {"loss"}
    if strategy is Checkpoints:
        assert len(set(combined.seen)) == NODES


def loss(reply: Message) -> float:
    return float(reply.content["metrics"]["loss"])  # type: ignore[call-overload,arg-type]


def rebuilt(reply: Message) -> Message:
    return Message(RecordDict(dict(reply.content)), metadata=reply.metadata)  # type: ignore[call-overload]


# What overrides hand on: all replies in other containers, and copies of them.
HANDED_ON: dict[str, Callable[[list[Message]], Iterable[Message]]] = {
    "a list": list,
    "a tuple": tuple,
    "sorted": lambda replies: sorted(replies, key=loss),
    "a filter": lambda replies: filter(Message.has_content, replies),
    "a generator": lambda replies: (reply for reply in replies),
    "copies": lambda replies: [copy.copy(reply) for reply in replies],
    "deep copies": copy.deepcopy,
    "pickled": lambda replies: pickle.loads(pickle.dumps(list(replies))),
    "rebuilt": lambda replies: map(rebuilt, replies),
    "twice": lambda replies: [*replies, *replies],
}


def handing_on(base: type, change: Callable[[list[Message]], Iterable[Message]]) -> type:
    class Override(base):  # type: ignore[misc]
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            return super().aggregate_train(server_round, change(list(replies)))

    return Override


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("on_server", [False, True])
@pytest.mark.parametrize("what", HANDED_ON)
def test_replies_may_be_handed_on_in_any_form(
    what: str, on_server: bool, behind: bool, server: sa.Client, tmp_path: Any
) -> None:
    options: dict[str, Any] = {"sparse": SPARSE, "server": server if on_server else None, "fraction_evaluate": 0.0}
    if behind:
        strategy = type("Combined", (SparseMixin, handing_on(FedAvg, HANDED_ON[what])), {})
    else:
        strategy = handing_on(SparseFedAvg, HANDED_ON[what])
    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    got, result = start(strategy(**options), LocalGrid(app, NODES))
    wanted, wanted_result = start(SparseFedAvg(**options), LocalGrid(app, NODES))
    assert (wanted["embedding.weight"] != jobs.initial_model()["embedding.weight"]).any()
    assert all(got[name].tobytes() == array.tobytes() for name, array in wanted.items())
    for server_round, metrics in wanted_result.train_metrics_clientapp.items():
        assert result.train_metrics_clientapp[server_round]["loss"] == pytest.approx(metrics["loss"])


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("on_server", [False, True])
def test_updates_of_replies_that_are_left_out_do_not_count(
    on_server: bool, behind: bool, server: sa.Client, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def best(replies: list[Message]) -> list[Message]:
        return sorted((reply for reply in replies if not reply.has_error()), key=loss)[:2]

    caplog.set_level("INFO", "flwr")
    base = handing_on(FedAvg if behind else SparseFedAvg, best)
    strategy = type("Combined", (SparseMixin, base), {}) if behind else base
    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    got, result = start(
        strategy(sparse=SPARSE, server=server if on_server else None), LocalGrid(app, NODES), rounds=1, failing=[4]
    )
    before = jobs.initial_model()
    trained = [jobs.train_arrays(before, node, 1) for node in range(NODES) if node != 4]
    kept = sorted(trained, key=lambda pair: -pair[1])[:2]  # the loss is 1 / examples
    for name, array in jobs.rounded(before, jobs.average(before, kept)).items():
        np.testing.assert_allclose(got[name], array, rtol=1e-14, atol=5e-7, err_msg=name)
    examples = sum(number for _, number in kept)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(2 / examples)
    assert "the updates of 3 replies" in caplog.text


def test_override_that_leaves_all_replies_out_is_logged(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    strategy = handing_on(SparseFedAvg, lambda replies: [])(sparse=SPARSE)
    record = ArrayRecord({name: Array(array) for name, array in jobs.initial_model().items()})
    result = strategy.start(LocalGrid(app, NODES), record, num_rounds=1)
    assert not result.train_metrics_clientapp
    errors = [line.getMessage() for line in caplog.records if line.levelname == "ERROR"]
    assert errors == ["aggregate_train: the reply of none of 6 nodes counts, and the model stays"]


def test_arrays_of_replies_are_gone_with_a_text_and_the_rest_is_there(tmp_path: Any) -> None:
    seen: list[Any] = []

    def look(content: RecordDict) -> None:
        with pytest.raises(KeyError, match="'arrays': the arrays of a reply are merged when it arrives, and not kept"):
            content["arrays"]
        with pytest.raises(KeyError, match="'arrays': the arrays of a reply are merged when it arrives, and not kept"):
            content.array_records["arrays"]
        assert "arrays" not in content
        assert content.get("arrays") is None
        assert (len(content.array_records), CONFIG in content) == (0, False)
        seen.append(content["own"]["words"])  # type: ignore[call-overload,index]

    def metrics(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        for content in contents:
            look(content)
        return MetricRecord({"mine": len(contents)})

    class Strategy(SparseFedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            replies = list(replies)
            for reply in replies:
                look(reply.content)
            return super().aggregate_train(server_round, replies)

    def adding(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        reply.content["own"] = ConfigRecord({"words": "x"})
        return reply  # type: ignore[no-any-return]

    app = jobs.make_client_app([sparse_mod(copies=tmp_path), adding])
    strategy = Strategy(sparse=SPARSE, train_metrics_aggr_fn=metrics, fraction_evaluate=0.0)
    _, result = start(strategy, LocalGrid(app, NODES), rounds=1)
    assert seen == ["x"] * 2 * NODES
    assert result.train_metrics_clientapp[1]["mine"] == NODES


class Ema(SparseFedAvg):
    """Returns its own arrays: an average of the models of all rounds."""

    average: jobs.Arrays | None = None

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        models = {name: array.numpy() for name, array in arrays.items()}
        last = self.average or models
        self.average = {name: np.asarray((array + last[name]) / 2, array.dtype) for name, array in models.items()}
        return ArrayRecord({name: Array(array) for name, array in self.average.items()}), metrics


def put_in_place(base: type) -> type:
    class InPlace(base):  # type: ignore[misc]
        """Puts arrays into the record that it is given."""

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            row = arrays["embedding.weight"].numpy()
            row[7] = server_round
            arrays["embedding.weight"] = Array(row)
            return arrays, metrics

    return InPlace


@pytest.mark.parametrize("strategy", [Ema, put_in_place(SparseFedAvg), put_in_place(Ema)])
def test_own_arrays_travel_as_the_rows_that_differ(
    strategy: type, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def model(use_mod: bool) -> tuple[jobs.Arrays, Any, LocalGrid]:
        mods = [sparse_mod(copies=tmp_path)] if use_mod else []
        grid = LocalGrid(jobs.make_client_app(mods), NODES)
        return *start(strategy(sparse=SPARSE), grid, rounds=4), grid

    caplog.set_level("INFO", "flwr")
    got, result, grid = model(True)
    assert "travels whole" not in caplog.text
    table = jobs.VOCABULARY * jobs.WIDTH * 4
    for sizes in grid.sent.values():
        assert sizes[0] > table > max(sizes[1:])
    wanted, _, _ = model(False)
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-14, atol=1e-6, err_msg=name)
    # What clients evaluated is what the strategy returned.
    checksum = sum(float(array.astype(np.float64).sum()) for array in got.values())
    assert result.evaluate_metrics_clientapp[4]["checksum"] == pytest.approx(checksum, rel=1e-12)


@pytest.mark.parametrize("form", [False, True])
def test_own_arrays_that_make_all_travel_whole_are_logged_once(
    form: bool, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Moves(SparseFedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            moved = {name: array.numpy() for name, array in arrays.items()}
            if form:
                moved["scale"] = moved["scale"].astype(np.float64 if server_round % 2 else np.float32)
            else:
                moved["embedding.weight"] *= 2
            return ArrayRecord({name: Array(np.asarray(array)) for name, array in moved.items()}), metrics

    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    start(Moves(sparse=SPARSE), LocalGrid(app, NODES), rounds=3)
    warnings = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    words = "with other names, shapes or dtypes" if form else "differ from it in 2000 of 2000 rows"
    assert len([line for line in warnings if words in line and "Moves" in line]) == 1


@pytest.mark.parametrize("how", ["deep copies", "new records", "other arrays"])
def test_configure_train_may_rebuild_its_messages(how: str, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Strategy(SparseFedAvg):
        def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Any:
            messages = list(super().configure_train(server_round, arrays, config, grid))
            if how == "deep copies":
                return copy.deepcopy(messages)
            node = {"config": ConfigRecord({**config, "node": 1}), "arrays": ArrayRecord(dict(arrays))}
            if how == "other arrays":
                node["arrays"]["scale"] = Array(np.array(2, np.float32))
            return [Message(RecordDict(node), message.metadata.dst_node_id, "train") for message in messages]

    caplog.set_level("INFO", "flwr")
    grid = LocalGrid(jobs.make_client_app([sparse_mod(copies=tmp_path)]), NODES)
    start(Strategy(sparse=SPARSE, fraction_evaluate=0.0), grid)
    table = jobs.VOCABULARY * jobs.WIDTH * 4
    is_whole = how == "other arrays"
    assert all((sizes[1] > table) is is_whole for sizes in grid.sent.values())
    assert caplog.text.count("configure_train of Strategy has put other arrays") == int(is_whole)
    assert "sparse_mod" not in caplog.text


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
