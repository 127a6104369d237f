"""The strategy and the mod together, with clients in this process."""

from __future__ import annotations

import pickle
import re
from typing import Any

import jobs
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi
from local_grid import LocalGrid, changing, start
from sparseagg.flower import (
    SparseFedAdagrad,
    SparseFedAdam,
    SparseFedAvg,
    SparseFedAvgM,
    SparseFedBuff,
    SparseFedYogi,
    SparseMixin,
    sparse_mod,
)

NODES = 8
SPARSE = ["embedding.weight"]


@pytest.fixture
def mod(tmp_path: Any) -> Any:
    return sparse_mod(copies=tmp_path)


def expected(clients: Any, rounds: int = 2) -> list[jobs.Arrays]:
    """The models of all rounds by FedAvg in float64, each rounded once."""
    models = [jobs.initial_model()]
    for server_round in range(1, rounds + 1):
        trained = [jobs.train_arrays(models[-1], client, server_round) for client in clients]
        models.append(jobs.rounded(models[-1], jobs.average(models[-1], trained)))
    return models


def assert_close(got: jobs.Arrays, wanted: jobs.Arrays) -> None:
    """Dense arrays are equal, but for the order of sums in float64. Rows are sums of rounded means of differences."""
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
        if name in SPARSE:
            np.testing.assert_allclose(got[name], array, rtol=0, atol=5e-7)
        elif array.dtype == np.float64:
            np.testing.assert_allclose(got[name], array, rtol=1e-14)
        else:
            np.testing.assert_array_equal(got[name], array, err_msg=name)


def test_model_is_that_of_fedavg_in_float64(mod: Any) -> None:
    grid = LocalGrid(jobs.make_client_app([mod]), NODES)
    got, result = start(SparseFedAvg(sparse=SPARSE), grid)
    before, *_, wanted = expected(range(NODES))
    assert_close(got, wanted)
    untouched = (before["embedding.weight"] == wanted["embedding.weight"]).all(axis=1)
    assert untouched.sum() > 1000
    np.testing.assert_array_equal(got["embedding.weight"][untouched], before["embedding.weight"][untouched])
    # What evaluation was given is the whole model, too.
    checksum = sum(float(array.astype(np.float64).sum()) for array in got.values())
    assert result.evaluate_metrics_clientapp[2]["checksum"] == pytest.approx(checksum, rel=1e-12)
    assert set(result.train_metrics_clientapp[2]) == {"loss"}


def test_order_of_arrival_and_node_ids_change_no_bit(tmp_path: Any) -> None:
    models = []
    for seed in range(3):
        app = jobs.make_client_app([sparse_mod(copies=tmp_path / str(seed))])
        models.append(start(SparseFedAvg(sparse=SPARSE), LocalGrid(app, NODES, seed=seed), rounds=3)[0])
    for model in models[1:]:
        assert all(model[name].tobytes() == array.tobytes() for name, array in models[0].items())
    stock = [start(FedAvg(), LocalGrid(jobs.make_client_app([]), NODES, seed=seed))[0] for seed in range(3)]
    assert len({model["embedding.weight"].tobytes() for model in stock}) > 1  # the job shows the difference


def test_both_ways_are_sparse_after_the_first_message(mod: Any) -> None:
    grid = LocalGrid(jobs.make_client_app([mod]), NODES)
    start(SparseFedAvg(sparse=SPARSE, fraction_evaluate=0.0), grid, rounds=3)
    table, row = jobs.VOCABULARY * jobs.WIDTH * 4, jobs.WIDTH * 4 + 4
    rest = 5000  # the dense arrays, headers and names
    for partition in range(NODES):
        first, *later = grid.sent[partition]
        assert table < first < table + rest
        assert all(size < NODES * jobs.TOUCHED * row + rest for size in later)
        assert all(size < jobs.TOUCHED * row + rest for size in grid.received[partition])


def test_node_that_lost_its_copy_is_sent_the_model_again(tmp_path: Any) -> None:
    app = jobs.make_client_app([sparse_mod(copies=tmp_path / "0")])
    wanted, _ = start(SparseFedAvg(sparse=SPARSE), LocalGrid(app, NODES), rounds=6)

    class Forgetful(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            # A folder that no process has seen before: all copies are gone.
            self.app = jobs.make_client_app([sparse_mod(copies=tmp_path / f"lost-{len(self.replies)}")])
            return super().push_messages(messages)

    grid = Forgetful(app, NODES)
    got, result = start(SparseFedAvg(sparse=SPARSE), grid, rounds=6)
    assert all(got[name].tobytes() == array.tobytes() for name, array in wanted.items())
    assert len(result.train_metrics_clientapp) == 6
    losses = [reply for reply in grid.replies if reply.has_error()]
    assert losses
    assert all("the whole model is needed" in reply.error.reason for reply in losses)
    # After some losses nobody asks any more: the model comes at once.
    assert len(losses) <= 3 * NODES


def test_stragglers_are_left_out_and_take_part_again(mod: Any, caplog: pytest.LogCaptureFixture) -> None:
    grid = LocalGrid(jobs.make_client_app([mod]), NODES, silent=[1, 3])
    caplog.set_level("INFO", "flwr")
    strategy = SparseFedAvg(sparse=SPARSE, fraction_evaluate=0.0)
    got, _ = start(strategy, grid, rounds=1, timeout=3)
    assert_close(got, expected([0, 2, 4, 5, 6, 7], rounds=1)[-1])
    assert "2 of 8 nodes have not replied within 3 s" in caplog.text
    assert "Received 6 results and 0 failures" in caplog.text


def test_sampled_clients_catch_up_on_rounds_that_they_missed(tmp_path: Any) -> None:
    """Each client has a machine of its own here, and so no copies but its own."""
    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])

    class Machines(LocalGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            message_ids = sorted(set(message_ids))[:1]
            if message_ids and message_ids[0] in self._waiting:
                partition = self._partition(self._waiting[message_ids[0]].metadata.dst_node_id)
                self.app = jobs.make_client_app([sparse_mod(copies=tmp_path / str(partition))])
            return super().pull_messages(message_ids)

    grid = Machines(app, NODES)
    strategy = SparseFedAvg(sparse=SPARSE, fraction_train=0.4, fraction_evaluate=1.0)
    got, result = start(strategy, grid, rounds=5)
    checksum = sum(float(array.astype(np.float64).sum()) for array in got.values())
    # Every client has evaluated the same model, made of its own copy.
    assert result.evaluate_metrics_clientapp[5]["checksum"] == pytest.approx(checksum, rel=1e-12)
    assert not any(reply.has_error() for reply in grid.replies)
    assert all(len(grid.sent[partition]) >= 5 for partition in range(NODES))


def test_clients_without_the_mod_are_merged_too(mod: Any) -> None:
    with_mod, without = jobs.make_client_app([mod]), jobs.make_client_app([])

    def app(message: Any, context: Any) -> Any:
        return (with_mod if context.node_config["partition-id"] % 2 else without)(message, context)

    got, _ = start(SparseFedAvg(sparse=SPARSE), LocalGrid(app, NODES))  # type: ignore[arg-type]
    assert_close(got, expected(range(NODES))[-1])


@pytest.mark.parametrize("sparse", [SPARSE, None])
def test_forgotten_mod_is_logged_once(mod: Any, sparse: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    start(SparseFedAvg(sparse=sparse), LocalGrid(jobs.make_client_app([]), NODES))
    assert caplog.text.count("replies without sparse_mod: whole arrays travel, both ways") == (sparse is not None)
    record = ArrayRecord({name: Array(array) for name, array in jobs.initial_model().items()})
    buffered = SparseFedBuff(sparse=sparse, concurrency=2, buffer=2)
    buffered.start(LocalGrid(jobs.make_client_app([]), NODES), record, num_versions=2)
    assert caplog.text.count("replies without sparse_mod") == 2 * (sparse is not None)
    caplog.clear()
    start(SparseFedAvg(sparse=sparse), LocalGrid(jobs.make_client_app([mod]), NODES))
    assert "sparse_mod" not in caplog.text


def test_mod_does_nothing_for_another_strategy(mod: Any) -> None:
    with_mod, _ = start(FedAvg(), LocalGrid(jobs.make_client_app([mod]), NODES))
    without, _ = start(FedAvg(), LocalGrid(jobs.make_client_app([]), NODES))
    assert all(with_mod[name].tobytes() == array.tobytes() for name, array in without.items())


def test_elements_of_a_wide_tensor(mod: Any) -> None:
    strategy = SparseFedAvg(elements=["embedding.*"], sparse=["dense.bias"])
    got, _ = start(strategy, LocalGrid(jobs.make_client_app([mod]), NODES))
    wanted = expected(range(NODES))[-1]
    np.testing.assert_allclose(got["embedding.weight"], wanted["embedding.weight"], rtol=0, atol=5e-7)
    np.testing.assert_allclose(got["dense.bias"], wanted["dense.bias"], rtol=0, atol=1e-15)


def squeezed(arrays: jobs.Arrays, partition: int) -> None:
    """What clients make of an array's shape on its way through another library: axes of length 1 come and go."""
    arrays["scale"] = arrays["scale"].reshape(1)
    arrays["dense.bias"] = arrays["dense.bias"].reshape(10) if partition % 2 else arrays["dense.bias"].reshape(1, 10, 1)
    arrays["embedding.weight"] = arrays["embedding.weight"][np.newaxis]


@pytest.mark.parametrize("use_mod", [True, False])
def test_axes_of_length_1_make_no_difference(mod: Any, use_mod: bool) -> None:
    mods = [mod] if use_mod else []
    got, _ = start(SparseFedAvg(sparse=SPARSE), LocalGrid(jobs.make_client_app([*mods, changing(squeezed)]), NODES))
    assert_close(got, expected(range(NODES))[-1])


def test_unknown_names_are_refused_before_anything_is_sent(mod: Any) -> None:
    grid = LocalGrid(jobs.make_client_app([mod]), 2)
    with pytest.raises(ValueError, match=r"sparse has 'embeding\.weight', which is no tensor of the model"):
        start(SparseFedAvg(sparse=["embeding.weight"]), grid)
    assert not any(grid.sent.values())


class SparseFedProx(SparseMixin, FedProx):
    """As the documentation says."""


def test_other_strategies_compose(mod: Any) -> None:
    seen = []
    inner = jobs.make_client_app([mod])

    def app(message: Any, context: Any) -> Any:
        seen.append(message.content["config"].get("proximal-mu"))
        return inner(message, context)

    strategy = SparseFedProx(proximal_mu=0.25, sparse=SPARSE, fraction_evaluate=0.0)
    got, _ = start(strategy, LocalGrid(app, NODES))  # type: ignore[arg-type]
    assert_close(got, expected(range(NODES))[-1])
    assert set(seen) == {0.25}


OPTIMIZERS = [
    (SparseFedAvgM, FedAvgM, {"server_learning_rate": 0.5, "server_momentum": 0.8}),
    (SparseFedAdagrad, FedAdagrad, {"eta": 0.05}),
    (SparseFedAdam, FedAdam, {"eta": 0.05}),
    (SparseFedYogi, FedYogi, {"eta": 0.05}),
]
FLOATS = ("embedding.weight", "dense.weight", "dense.bias", "scale")


@pytest.mark.parametrize(("ours", "flowers", "options"), OPTIMIZERS)
def test_dense_form_is_flowers_optimizer(mod: Any, ours: Any, flowers: Any, options: Any) -> None:
    wanted, _ = start(flowers(**options), LocalGrid(jobs.make_client_app([]), NODES), rounds=3)
    got, _ = start(ours(sparse=SPARSE, dense=True, **options), LocalGrid(jobs.make_client_app([mod]), NODES), rounds=3)
    composed = type("Composed", (SparseMixin, flowers), {})(sparse=SPARSE, **options)
    with_flowers_step, _ = start(composed, LocalGrid(jobs.make_client_app([mod]), NODES), rounds=3)
    for name in FLOATS:
        np.testing.assert_allclose(got[name], wanted[name], rtol=0, atol=2e-4, err_msg=name)
        np.testing.assert_allclose(with_flowers_step[name], wanted[name], rtol=0, atol=2e-4, err_msg=name)


@pytest.mark.parametrize(("ours", "flowers", "options"), OPTIMIZERS)
def test_sparse_form_moves_only_rows_that_clients_changed(mod: Any, ours: Any, flowers: Any, options: Any) -> None:
    grid = LocalGrid(jobs.make_client_app([mod]), NODES)
    got, _ = start(ours(sparse=SPARSE, **options), grid, rounds=3)
    before, models = jobs.initial_model()["embedding.weight"], expected(range(NODES), rounds=3)
    # Which rows clients touch depends on seeds alone.
    touched = np.zeros(jobs.VOCABULARY, bool)
    for earlier, later in zip(models, models[1:]):
        touched |= (earlier["embedding.weight"] != later["embedding.weight"]).any(axis=1)
    moved = (got["embedding.weight"] != before).any(axis=1)
    assert touched.sum() < jobs.VOCABULARY // 2
    np.testing.assert_array_equal(moved, touched)


@pytest.mark.parametrize(("names", "top_k"), [({"sparse": SPARSE}, 10), ({"elements": SPARSE}, 0.01)])
def test_top_k_sends_less_and_loses_nothing(tmp_path: Any, names: Any, top_k: Any) -> None:
    """What all rounds have sent, and what clients have left, add up to all that they changed."""
    app = jobs.make_client_app([sparse_mod(top_k=top_k, copies=tmp_path)])
    grid = LocalGrid(app, 2)
    got, _ = start(SparseFedAvg(fraction_evaluate=0.0, **names), grid, rounds=3)
    table = jobs.VOCABULARY * jobs.WIDTH
    sent = 10 * (jobs.WIDTH * 4 + 4) if top_k == 10 else int(top_k * table) * 8
    assert all(size < sent + 3000 for sizes in grid.received.values() for size in sizes)
    for context in grid.contexts.values():
        ((_, state),) = context.state.config_records.items()
        (residual,) = pickle.loads(state["top_k"]).residuals.values()
        assert np.count_nonzero(residual)
    moved = (got["embedding.weight"] != jobs.initial_model()["embedding.weight"]).any(axis=1)
    assert 10 < moved.sum() <= 3 * 2 * (10 if top_k == 10 else int(top_k * table))
    with pytest.raises(ValueError, match="fraction must be a number"):
        sparse_mod(top_k=1.5)


def test_tied_weights_are_sparse_by_every_name_and_dense_tensors_are_logged(
    mod: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = jobs.initial_model()
    zeros = np.zeros(30_000, np.float32)
    model.update({"head.weight": model["embedding.weight"], "moments": zeros, "other moments": zeros})

    def tie(arrays: jobs.Arrays, partition: int) -> None:
        arrays["head.weight"] = arrays["embedding.weight"]

    caplog.set_level("INFO", "flwr")
    grid = LocalGrid(jobs.make_client_app([mod, changing(tie)]), NODES)
    record = ArrayRecord({name: Array(array) for name, array in model.items()})
    strategy = SparseFedAvg(sparse=["embedding.weight", "moments"])
    result = strategy.start(grid, record, num_rounds=2, train_config=ConfigRecord({}))
    after = {name: array.numpy() for name, array in result.arrays.items()}
    assert np.array_equal(after["head.weight"], after["embedding.weight"])
    assert_close({name: after[name] for name in jobs.initial_model()}, expected(range(NODES))[-1])
    assert not after["moments"].any()
    whole = zeros.nbytes  # of "other moments", which holds one value throughout and is not taken for tied: a vector
    assert all(whole < replied[0] < 1.5 * whole for replied in grid.received.values())
    assert "Sparse tensors: 'embedding.weight', 'moments', 'head.weight'" in caplog.text
    size = len(record["other moments"].data)
    assert re.search(rf"Dense tensors, whole in each update: [\d,]+ bytes \('other moments' {size:,}, ", caplog.text)


@pytest.mark.parametrize("start_value", [0.0, 0.1])
def test_tied_table_that_starts_constant_stays_tied(
    start_value: float, mod: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = jobs.initial_model()
    model["embedding.weight"] = np.full_like(model["embedding.weight"], start_value)
    model["head.weight"] = model["embedding.weight"]

    def tie(arrays: jobs.Arrays, partition: int) -> None:
        arrays["head.weight"] = arrays["embedding.weight"]

    def tables(op: Any) -> tuple[Any, Any]:
        grid = LocalGrid(jobs.make_client_app([mod, changing(tie)]), NODES)
        record = ArrayRecord({name: Array(array) for name, array in model.items()})
        result = SparseFedAvg(sparse=SPARSE, op=op).start(grid, record, num_rounds=3, train_config=ConfigRecord({}))
        return result.arrays["embedding.weight"].numpy(), result.arrays["head.weight"].numpy()

    embedding, head = tables("mean")
    assert (embedding != start_value).any()
    assert (embedding != head).sum() == 0
    assert "tied weights" not in caplog.text
    tables("coordinate_mean")  # which is another result for a dense tensor
    assert "'head.weight' has the one value of 'embedding.weight' throughout, and is merged as a whole" in caplog.text
