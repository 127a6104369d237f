"""One client that sends anything: it fails, is named with tensor and value, and the others count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from local_grid import LocalGrid, start
from sparseagg.flower import (
    SparseFedAvg,
    SparseFedMedian,
    SparseFedTrimmedAvg,
    SparseKrum,
    sparse_mod,
)
from sparseagg.flower.model import CONFIG, sparse_arrays

NODES = 5
BAD = 2
SPARSE = ["embedding.weight"]
KEYS, ROWS = "embedding.weight:keys", "embedding.weight:rows"
ROW = np.ones((1, jobs.WIDTH), np.float32)


def without(*bad: int) -> jobs.Arrays:
    """The model after a round in which these clients do not count."""
    before = jobs.initial_model()
    trained = [jobs.train_arrays(before, partition, 1) for partition in range(NODES) if partition not in bad]
    return jobs.rounded(before, jobs.average(before, trained))


def assert_model(got: jobs.Arrays, wanted: jobs.Arrays) -> None:
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-14, atol=5e-7 if name in SPARSE else 0, err_msg=name)


def spoiling(app: Any, spoil: Callable[[Message], Any], kind: str = "train") -> Any:
    """An app whose replies of one client are spoiled behind the mod."""

    def run(message: Message, context: Any) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == kind and context.node_config["partition-id"] == BAD:
            spoil(reply)
        return reply

    return run


def arrays_of(change: Callable[[ArrayRecord], Any]) -> Callable[[Message], Any]:
    return lambda reply: change(reply.content["arrays"])


def config_of(**changes: Any) -> Callable[[Message], Any]:
    return lambda reply: reply.content[CONFIG].update(changes)


def metrics_of(**changes: Any) -> Callable[[Message], Any]:
    return lambda reply: reply.content["metrics"].update(changes)


def rows(keys: Any, values: Any) -> Callable[[Message], Any]:
    return arrays_of(lambda arrays: arrays.update(sparse_arrays("embedding.weight", np.array(keys), np.array(values))))


def whole(name: str, values: Any) -> Callable[[Message], Any]:
    def change(arrays: ArrayRecord) -> None:
        for part in (KEYS, ROWS) if name in SPARSE else ():
            del arrays[part]
        arrays[name] = Array(np.asarray(values))

    return arrays_of(change)


SPOILS = {
    "key beyond the table": (rows([jobs.VOCABULARY], ROW), ["embedding.weight", str(jobs.VOCABULARY)]),
    "NaN": (rows([7], ROW * np.nan), ["embedding.weight", "nan"]),
    "rows of another width": (rows([7], ROW[:, 1:]), ["embedding.weight"]),
    "keys that are floats": (
        arrays_of(lambda arrays: arrays.update({KEYS: Array(np.array([0.5]))})),
        ["embedding.weight"],
    ),
    "rows of words": (rows([7], [["x"] * jobs.WIDTH]), ["embedding.weight"]),
    "a whole table of words": (
        whole("embedding.weight", np.full((jobs.VOCABULARY, jobs.WIDTH), "x")),
        ["embedding.weight"],
    ),
    "a dense array of words": (whole("dense.weight", np.full((jobs.WIDTH, 3), "x")), ["dense.weight"]),
    "bytes that are no array": (
        arrays_of(lambda arrays: arrays.update(scale=Array("float32", (), "numpy.ndarray", b"\x93NUMPY junk"))),
        ["scale"],
    ),
    "no bytes": (arrays_of(lambda arrays: arrays.update(scale=Array("float32", (), "numpy.ndarray", b""))), ["scale"]),
    "another serialization": (
        arrays_of(lambda arrays: arrays.update(scale=Array("float32", (), "pickle", b"x"))),
        ["scale"],
    ),
    "a tensor is missing": (arrays_of(lambda arrays: arrays.pop("scale")), ["scale"]),
    "an unknown tensor": (whole("other", [1.0]), ["other"]),
    "keys without rows": (arrays_of(lambda arrays: arrays.pop(ROWS)), ["embedding.weight"]),
    "no arrays": (lambda reply: reply.content.pop("arrays"), ["ArrayRecord"]),
    "no metrics": (lambda reply: reply.content.pop("metrics"), ["MetricRecord"]),
    "no weight": (lambda reply: reply.content["metrics"].pop("num-examples"), ["num-examples"]),
    "a weight below 0": (metrics_of(**{"num-examples": -1}), ["-1"]),
    "a weight that is a list": (metrics_of(**{"num-examples": [1, 2]}), ["num-examples"]),
    "no text as its id": (config_of(client=3), ["client"]),
    "a list as its version": (config_of(version=[1, 2]), []),
}


@pytest.mark.parametrize("what", SPOILS)
def test_bad_client_fails_alone_and_is_named(what: str, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    spoil, words = SPOILS[what]
    caplog.set_level("INFO", "flwr")
    app = spoiling(jobs.make_client_app([sparse_mod(copies=tmp_path)]), spoil)
    grid = LocalGrid(app, NODES)
    got, result = start(SparseFedAvg(sparse=SPARSE), grid, rounds=1)
    assert_model(got, without(BAD))
    assert set(result.train_metrics_clientapp[1]) == {"loss"}
    assert f"aggregate_train: Received {NODES - 1} results and 1 failures" in caplog.text
    (line,) = (line for line in caplog.messages if "Received error in reply" in line)
    node = next(node for node, context in grid.contexts.items() if context.node_config["partition-id"] == BAD)
    assert str(node) in line
    assert all(word in line for word in words), line


def test_client_that_takes_the_id_of_another_does_not_push_it_out(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever comes first. Both count: who may take part is Flower's to say."""
    caplog.set_level("INFO", "flwr")
    for seed in range(4):
        app = jobs.make_client_app([sparse_mod(copies=tmp_path / str(seed))])
        grid = LocalGrid(app, NODES, seed=seed)
        other = next(node for node, context in grid.contexts.items() if context.node_config["partition-id"] == 0)
        grid.app = spoiling(app, config_of(client=f"0000000000:{other}"))
        got, _ = start(SparseFedAvg(sparse=SPARSE, fraction_evaluate=0.0), grid, rounds=1)
        assert_model(got, without())
    assert caplog.text.count(f"aggregate_train: Received {NODES} results and 0 failures") == 4


@pytest.mark.parametrize(
    "spoil",
    [
        metrics_of(extra=1.0),
        lambda reply: reply.content["metrics"].pop("loss"),
        metrics_of(loss=[1.0, 2.0]),
        lambda reply: reply.content.update(other=reply.content.pop("metrics")),
    ],
)
def test_metrics_unlike_the_others_are_left_out_and_the_update_counts(
    spoil: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    app = spoiling(jobs.make_client_app([sparse_mod(copies=tmp_path)]), spoil)
    grid = LocalGrid(app, NODES)
    got, result = start(SparseFedAvg(sparse=SPARSE), grid, rounds=1)
    assert_model(got, without())
    trained = [jobs.train_arrays(jobs.initial_model(), partition, 1)[1] for partition in range(NODES)]
    examples = [number for partition, number in enumerate(trained) if partition != BAD]
    assert dict(result.train_metrics_clientapp[1]) == {"loss": pytest.approx(len(examples) / sum(examples))}
    node = next(node for node, context in grid.contexts.items() if context.node_config["partition-id"] == BAD)
    assert any("metrics" in line and str(node) in line for line in caplog.messages)


@pytest.mark.parametrize(
    "spoil",
    [
        metrics_of(extra=1.0),
        metrics_of(**{"num-examples": [1]}),
        metrics_of(**{"num-examples": float("nan")}),
        lambda reply: reply.content.pop("metrics"),
    ],
)
def test_evaluation_with_one_bad_client_goes_on(spoil: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "flwr")
    app = spoiling(jobs.make_client_app([sparse_mod(copies=tmp_path)]), spoil, "evaluate")
    got, result = start(SparseFedAvg(sparse=SPARSE), LocalGrid(app, NODES), rounds=1)
    checksum = sum(float(array.astype(np.float64).sum()) for array in got.values())
    assert result.evaluate_metrics_clientapp[1]["checksum"] == pytest.approx(checksum, rel=1e-12)
    assert f"aggregate_evaluate: Received {NODES - 1} results and 1 failures" in caplog.text


def reporting(app: Any, report: Callable[[int], dict[str, Any]], kind: str = "train") -> Any:
    """An app whose clients, by partition, report other metrics."""

    def run(message: Message, context: Any) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == kind:
            reply.content["metrics"] = MetricRecord(report(context.node_config["partition-id"]))
        return reply

    return run


STRATEGIES: dict[str, Callable[[], Any]] = {
    "median": lambda: SparseFedMedian(sparse=SPARSE),
    "trimmed mean": lambda: SparseFedTrimmedAvg(sparse=SPARSE),
    "krum": lambda: SparseKrum(sparse=SPARSE, options={"weighting": "uniform"}),
    "uniform": lambda: SparseFedAvg(sparse=SPARSE, options={"weighting": "uniform"}),
    "private": lambda: SparseFedAvg(
        sparse=SPARSE,
        dp=sa.PrivacySpec(noise_multiplier=2**-10, keys="public"),
        options={"clip": sa.ClipSpec(l2=1.0, max_keys=2000), "max_submissions": 64, "fixed_divisor": NODES},
    ),
}


@pytest.mark.parametrize("number", [0, -1, 1e308])
@pytest.mark.parametrize("name", STRATEGIES)
def test_numbers_of_examples_without_an_average_cost_the_metrics_alone(
    name: str, number: float, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Where each update has one vote, the numbers of examples weigh the metrics alone."""

    def report(partition: int) -> dict[str, Any]:
        value = number if number != -1 else partition - 2  # which add up to 0
        return {"num-examples": value, "loss": 1.0}

    caplog.set_level("INFO", "flwr")
    app = reporting(jobs.make_client_app([sparse_mod(copies=tmp_path)], 1900), report)
    got, result = start(STRATEGIES[name](), LocalGrid(app, NODES), rounds=2)
    moved = got["embedding.weight"] != jobs.initial_model()["embedding.weight"]
    assert moved.any()
    assert set(result.train_metrics_clientapp) == {1, 2}
    if number == 0:
        assert not result.train_metrics_clientapp[2]
        assert caplog.text.count("there is no average of the metrics: ZeroDivisionError") == 2
    if number == -1 and name != "krum":  # which has chosen a node of a negative number
        assert result.train_metrics_clientapp[2]["loss"] == pytest.approx(1.0)


def test_round_in_which_all_weights_are_0_leaves_the_model(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "flwr")
    app = reporting(jobs.make_client_app([sparse_mod(copies=tmp_path)]), lambda _: {"num-examples": 0})
    _, result = start(SparseFedAvg(sparse=SPARSE), LocalGrid(app, NODES), rounds=1)
    assert not result.train_metrics_clientapp
    assert "the model stays" in caplog.text


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_most_clients_without_samples_and_metrics_leave_those_of_the_others(
    kind: str, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def report(partition: int) -> dict[str, Any]:
        return {"num-examples": 3, "loss": 2.0, "accuracy": 0.5} if partition == 1 else {"num-examples": 0}

    caplog.set_level("INFO", "flwr")
    app = reporting(jobs.make_client_app([sparse_mod(copies=tmp_path)]), report, kind)
    for weighting in ("uniform", "by_weight") if kind == "evaluate" else ("uniform",):
        strategy = SparseFedAvg(sparse=SPARSE, options={"weighting": weighting})
        _, result = start(strategy, LocalGrid(app, NODES), rounds=1)
        found = result.train_metrics_clientapp if kind == "train" else result.evaluate_metrics_clientapp
        assert dict(found[1]) == {"loss": pytest.approx(2.0), "accuracy": pytest.approx(0.5)}


@pytest.mark.parametrize("use_mod", [True, False])
@pytest.mark.parametrize("op", ["mean", "coordinate_mean", "sum"])
def test_client_without_samples_costs_the_others_nothing(op: Any, use_mod: bool, tmp_path: Any) -> None:
    """Also at rows that it alone has changed."""
    inner = jobs.make_client_app([sparse_mod(copies=tmp_path)] if use_mod else [])

    def without_samples(reply: Message) -> None:
        reply.content["metrics"]["num-examples"] = 0  # type: ignore[call-overload,index]

    def model(app: Any) -> tuple[jobs.Arrays, Any]:
        return start(SparseFedAvg(sparse=SPARSE, op=op), LocalGrid(app, NODES), rounds=1)

    got, result = model(spoiling(inner, without_samples))
    wanted, _ = model(spoiling(inner, lambda reply: reply.content.pop("arrays")))
    assert set(result.train_metrics_clientapp) == {1}
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def test_own_averages_that_divide_by_0_end_no_run(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    def average(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        return MetricRecord({"accuracy": 1.0 / sum(content["metrics"]["seen"] for content in contents)})  # type: ignore[call-overload,index]

    app: Any = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    for kind in ("train", "evaluate"):
        app = reporting(app, lambda _: {"num-examples": 3, "seen": 0}, kind)
    own = {"train_metrics_aggr_fn": average, "evaluate_metrics_aggr_fn": average}
    got, result = start(SparseFedAvg(sparse=SPARSE, **own), LocalGrid(app, NODES))
    assert (got["embedding.weight"] != jobs.initial_model()["embedding.weight"]).any()
    assert not result.evaluate_metrics_clientapp
    assert caplog.text.count("there is no average of the metrics") == 4


def test_client_that_claims_an_upload_that_is_not_there_fails_alone(
    server: sa.Client, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    inner = jobs.make_client_app([sparse_mod(copies=tmp_path)])

    def app(message: Message, context: Any) -> Message:
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == BAD:
            claim = ConfigRecord({**message.content[CONFIG], "client": "nobody"})
            metrics = MetricRecord({"num-examples": 100, "loss": 1e9})
            return Message(RecordDict({"metrics": metrics, CONFIG: claim}), reply_to=message)
        return inner(message, context)

    got, result = start(SparseFedAvg(sparse=SPARSE, server=server), LocalGrid(app, NODES), rounds=1)  # type: ignore[arg-type]
    assert_model(got, without(BAD))
    assert result.train_metrics_clientapp[1]["loss"] < 1e6
    assert "'nobody'" in caplog.text


@pytest.mark.parametrize("seed", range(4))
def test_client_that_claims_the_upload_of_another_fails_or_that_one_is_named(
    seed: int, server: sa.Client, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever comes first, the upload counts once, and what the claiming client has uploaded does not."""
    print(f"seed {seed}")
    caplog.set_level("INFO", "flwr")
    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    grid = LocalGrid(app, NODES, seed=seed)
    other = next(node for node, context in grid.contexts.items() if context.node_config["partition-id"] == 0)
    grid.app = spoiling(app, config_of(client=f"0000000000:{other}"))
    got, _ = start(SparseFedAvg(sparse=SPARSE, server=server), grid, rounds=1)
    assert_model(got, without(BAD))
    assert f"aggregate_train: Received {NODES - 1} results and 1 failures" in caplog.text
    assert "another node has named this submission as its own" in caplog.text
