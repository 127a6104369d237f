"""SparseAggregator, called as NVFlare's controllers call it, without a network."""

import contextlib
import copy
import functools
import pickle
import threading

import jobs
import numpy as np
import pytest
import sparseagg as sa
import torch
from guarded_server import GuardedServer
from jobs import as_numpy, result_of
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from sparseagg.cluster import Cluster
from sparseagg.nvflare import MergedRows, SparseAggregator, sparse_diff

SEED = 7
aggregator_of = functools.partial(jobs.aggregator_of, sparse=["table"])


def arrays(kind="numpy"):
    rng = np.random.default_rng(SEED)
    model = {
        "table": rng.standard_normal((50, 4), np.float32),
        "bias": rng.standard_normal(4, np.float32),
        "half": rng.standard_normal((3, 2)).astype(np.float16),
        "scalar": np.array(1, np.float32),
        "batches": np.array(5),
        "nothing": np.zeros((0, 3), np.float32),
    }
    return model if kind == "numpy" else {name: torch.from_numpy(array) for name, array in model.items()}


def trained(model, site):
    rng = np.random.default_rng([SEED, site])
    after = {name: array.copy() if isinstance(array, np.ndarray) else array.clone() for name, array in model.items()}
    for key in rng.choice(50, 5, replace=False):
        after["table"][key] += float(rng.standard_normal())
    for name in ("bias", "half", "scalar"):
        after[name][...] += float(rng.standard_normal())
    after["batches"][...] += site + site // 3  # no whole number in the mean
    return after


def merged(model, sites, form, **options):
    """The model after one round, in which sites of these numbers send their results in this order."""
    aggregator = aggregator_of(model, **options)
    for site in sites:
        after = trained(model, site)
        params = sparse_diff(model, after, ["table"]) if form == "DIFF" else after
        assert aggregator.accept_model(result_of(f"site-{site}", params, steps=site, params_type=form))
    return FLModelUtils.update_model(FLModel(params=dict(model)), aggregator.aggregate_model()).params


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_weights_are_the_mean_in_float64_rounded_once(kind):
    model = arrays(kind)
    found = as_numpy(merged(model, [3, 1, 2], "FULL"))
    sites = [as_numpy(trained(model, site)) for site in (1, 2, 3)]
    for name, array in as_numpy(model).items():
        total = sum(weight * site[name].astype(np.float64) for weight, site in zip((1, 2, 3), sites)) / 6.0
        wanted = np.rint(total) if name == "batches" else total
        np.testing.assert_array_equal(found[name], np.asarray(wanted).astype(array.dtype), err_msg=name)
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_rows_are_added_in_place_and_other_rows_keep_their_bits(kind):
    model = arrays(kind)
    before = as_numpy({name: trained(model, 0)[name] * 0 + model[name] for name in ("table",)})["table"].copy()
    deltas = [as_numpy(sparse_diff(model, trained(model, site), [])) for site in (1, 2)]
    found = merged(model, [2, 1], "DIFF")
    assert found["table"] is model["table"]
    mean = ((deltas[0]["table"].astype(np.float64) + 2.0 * deltas[1]["table"]) / 3.0).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(found["table"]), before + mean)
    untouched = (deltas[0]["table"] == 0).all(1) & (deltas[1]["table"] == 0).all(1)
    assert untouched.sum() >= 40
    assert np.asarray(found["table"])[untouched].tobytes() == before[untouched].tobytes()


def test_read_only_model_is_copied():
    model = arrays()
    model["table"].flags.writeable = False
    found = merged(model, [1], "DIFF")
    assert found["table"] is not model["table"]
    np.testing.assert_array_equal(found["table"], trained(model, 1)["table"])


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("form", ["FULL", "DIFF"])
def test_memory_of_dense_tensors_does_not_grow_with_sites(form, kind):
    values = 200_000
    model = {f"layer-{i}": np.zeros(values, np.float32) for i in range(10)}
    if kind == "torch":
        model = {name: torch.from_numpy(array) for name, array in model.items()}
    aggregator = aggregator_of({**model, "table": arrays(kind)["table"]})
    held = []
    for site in range(40):
        params = {name: array + site for name, array in model.items()}
        assert aggregator.accept_model(result_of(f"site-{site}", params, params_type=form))
        held.append(sum(part.memory_bytes for part in aggregator._merges[form]._parts.values()))
    assert max(held) < 10 * values * 17 + (64 << 20) + (16 << 20)  # of 40 results: 320 MB
    assert all(np.asarray(array).max() == 19.5 for array in aggregator.aggregate_model().params.values())


@pytest.mark.parametrize("servers", [0, 1, 3])
@pytest.mark.parametrize("form", ["FULL", "DIFF"])
def test_sites_that_send_other_tensors_merge_to_the_bits_of_one_sum(form, servers):
    model = {**arrays(), "mask": np.array([-np.inf, 1, 1], np.float32)}
    left_out = {1: ["bias"], 2: [], 3: ["half", "mask"], 4: ["bias", "scalar"], 5: [], 6: ["table"], 7: list(model)[1:]}

    def sent(site):
        after = trained(model, site)
        params = sparse_diff(model, after, ["table"]) if form == "DIFF" else after
        return {name: array for name, array in params.items() if name.partition(":")[0] not in left_out[site]}

    found = []
    with Cluster(servers) if servers else contextlib.nullcontext() as cluster:
        for sites in (list(left_out), list(left_out)[::-1]):
            aggregator = aggregator_of(model, server=",".join(cluster.addresses) if cluster else None)
            for site in sites:
                assert aggregator.accept_model(result_of(f"site-{site}", sent(site), steps=site, params_type=form))
            copies = {name: array.copy() for name, array in model.items()}
            found.append(FLModelUtils.update_model(FLModel(params=copies), aggregator.aggregate_model()).params)
    for name, array in model.items():
        assert found[0][name].tobytes() == found[1][name].tobytes()
        if name == "table" and form == "DIFF":
            continue
        sites = [site for site in left_out if name not in left_out[site]]
        with np.errstate(invalid="ignore"):  # -inf - -inf
            total = sum(site * sent(site)[name].astype(np.float64) for site in sites) / sum(sites)
        wanted = np.asarray(np.rint(total) if name == "batches" else total).astype(array.dtype)
        np.testing.assert_array_equal(found[0][name], wanted if form == "FULL" else array + wanted, err_msg=name)


@pytest.mark.parametrize("op", ["mean", "coordinate_mean"])
def test_absent_tensor_leaves_the_denominator(op):
    aggregator = aggregator_of(arrays(), op=op)
    one = np.ones(4, np.float32)
    aggregator.accept_model(result_of("a", {"bias": one, "table:keys": [], "table:rows": []}, 1, params_type="DIFF"))
    aggregator.accept_model(result_of("b", {"table:keys": [3], "table:rows": [one]}, 7, params_type="DIFF"))
    params = aggregator.aggregate_model().params
    np.testing.assert_array_equal(params["bias"], one)  # of a alone
    assert set(params) == {"bias", "table"}
    np.testing.assert_array_equal(params["table"].rows.keys, [3])
    np.testing.assert_array_equal(params["table"].rows.values, [one * 7 / 8 if op == "mean" else one])


ORDER = {
    "median": (None, lambda values: np.median(values, axis=0)),
    "trimmed_mean": ({"trim_fraction": 0.2}, lambda values: np.sort(values, axis=0)[1:-1].mean(axis=0)),
}


@pytest.mark.parametrize("form", ["FULL", "DIFF"])
@pytest.mark.parametrize("op", ORDER)
def test_order_statistics_are_of_all_tensors_without_weights(op, form):
    options, statistic = ORDER[op]
    model = arrays()
    found = merged(model, [5, 1, 4, 2, 3], form, op=op, options=options)
    sites = [trained(model, site) for site in range(1, 6)]
    for name in model:
        wanted = statistic(np.stack([site[name].astype(np.float64) for site in sites]))
        wanted = np.rint(wanted) if name == "batches" else wanted
        atol = 2e-3 if name == "half" else 1e-6
        np.testing.assert_allclose(found[name].astype(np.float64), wanted, rtol=1e-6, atol=atol, err_msg=name)


def krum_scores(sites, f):
    """Of whole models, by the definition: sums of the n - f - 2 smallest squared distances to others."""
    flat = [np.concatenate([array.astype(np.float64).ravel() for array in site.values()]) for site in sites]
    distances = [sorted(((a - b) ** 2).sum() for b in flat if b is not a) for a in flat]
    return [sum(row[: len(flat) - f - 2]) for row in distances]


@pytest.mark.parametrize("form", ["FULL", "DIFF"])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("on_server", [False, True])
def test_krum_chooses_whole_results(form, m, on_server):
    model, numbers = arrays(), [4, 7, 1, 6, 2, 5, 3]
    sites = {number: trained(model, number) for number in numbers}
    scores = krum_scores(sites.values(), 1)
    chosen = [number for _, number in sorted(zip(scores, numbers))[:m]]
    rule = {"name": "krum", "f": 1} if m == 1 else {"name": "multi_krum", "f": 1, "m": m}
    with sa.Server() if on_server else contextlib.nullcontext() as server:
        aggregator = aggregator_of(model, rule=rule, server=server.address if server else None)
        for number, after in sites.items():
            params = sparse_diff(model, after, ["table"]) if form == "DIFF" else after
            result = result_of(f"site-{number}", params, steps=number, params_type=form)
            result.metrics = {"loss": float(number)}
            assert aggregator.accept_model(result)
        merged_model = aggregator.aggregate_model()
    assert merged_model.meta["nr_aggregated"] == m
    total = sum(chosen)
    assert merged_model.metrics["loss"] == pytest.approx(sum(number**2 for number in chosen) / total)
    found = FLModelUtils.update_model(FLModel(params=dict(arrays())), merged_model).params
    for name in model:
        wanted = sum(number * sites[number][name].astype(np.float64) for number in chosen) / total
        wanted = np.rint(wanted) if name == "batches" else wanted
        atol = 2e-3 if name == "half" else 1e-6
        np.testing.assert_allclose(found[name].astype(np.float64), wanted, rtol=1e-6, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("krum", "rule must be"),
        ({"name": "bulyan"}, 'rule must be {"name": "krum", …} or {"name": "multi_krum", …}, got'),
        ({"name": "krum"}, "rule 'krum': missing a required argument: 'f'"),
        ({"name": "krum", "f": 1, "m": 3}, "rule 'krum': got an unexpected keyword argument 'm'"),
    ],
)
def test_unknown_rules_are_refused(rule, problem):
    with pytest.raises(sa.InvalidArgumentError) as refusal:
        SparseAggregator(rule=rule)
    assert problem in str(refusal.value)


def test_dense_results_for_server_optimisers():
    aggregator = aggregator_of(arrays(), rows=False)
    rows = np.ones((1, 4), np.float32)
    aggregator.accept_model(result_of("a", {"table:keys": [3], "table:rows": rows}, params_type="DIFF"))
    table = aggregator.aggregate_model().params["table"]
    assert isinstance(table, np.ndarray)
    assert table.shape == (50, 4)
    assert table.sum() == 4


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_rows_say_what_gives_arrays_to_whoever_computes_with_them(kind):
    aggregator = aggregator_of(arrays())
    aggregator.accept_model(result_of("a", {"table:keys": [3], "table:rows": ROW}, params_type="DIFF"))
    rows, model = aggregator.aggregate_model().params["table"], arrays(kind)["table"]
    steps = [lambda: rows * 0.5, lambda: 0.5 * rows, lambda: -rows, lambda: rows + rows, lambda: model - rows]
    for step in [*steps, lambda: rows / 2, lambda: rows[3]]:
        with pytest.raises(TypeError, match=r"SparseAggregator\(rows=False\) gives arrays"):
            step()
    for same in (copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        assert np.flatnonzero(np.asarray(same).any(axis=1)).tolist() == [3]
    assert ((model + rows) != arrays(kind)["table"]).any(1).sum() == 1


def refusals(caplog):
    return [record for record in caplog.records if "does not count" in record.getMessage()]


def test_late_and_second_results_do_not_count(caplog):
    aggregator = aggregator_of(arrays())
    params = {"bias": np.ones(4, np.float32)}
    assert aggregator.accept_model(result_of("a", params, params_type="DIFF"))
    assert aggregator.accept_model(result_of("a", {"bias": params["bias"] * 9}, params_type="DIFF")) is False
    assert aggregator.aggregate_model().params["bias"].tolist() == [1] * 4
    assert aggregator.accept_model(result_of("b", params, params_type="DIFF")) is False
    aggregator.reset_stats()
    assert aggregator.accept_model(result_of("b", params, params_type="DIFF"))
    assert len(refusals(caplog)) == 2
    assert "Traceback" not in caplog.text


NAN = np.full((1, 4), np.nan, np.float32)
ROW = np.ones((1, 4), np.float32)


@pytest.mark.parametrize(
    ("params", "form", "words"),
    [
        ({"table:keys": [50], "table:rows": ROW}, "DIFF", "50"),
        ({"table:keys": [1], "table:rows": NAN}, "DIFF", "nan"),
        ({"bias": ROW[0], "table:keys": [1], "table:rows": ROW[:, :3]}, "DIFF", "table"),
        ({"bias": NAN[0], "table:keys": [1], "table:rows": 9 * ROW}, "DIFF", "tensor 'bias'"),
        ({"table:keys": [1], "table:rows": ROW}, "FULL", "rows are differences"),
        ({"bias:keys": [1], "bias:rows": [2.0]}, "DIFF", "sparse=['table']"),
        ({"bias": ROW[:, :3]}, "DIFF", "tensor 'bias' has shape (1, 3)"),
        ({"table": np.ones((1, 4), np.float32)}, "DIFF", "tensor 'table' has shape (1, 4)"),
        ({"half": np.array([["x"] * 2] * 3)}, "DIFF", "tensor 'half'"),
        ({"bias": [1, [2, 3]]}, "DIFF", "tensor 'bias'"),
        ({"bias": object()}, "DIFF", "tensor 'bias'"),
        ({3: ROW}, "DIFF", "3"),
        ({"table:keys": [0.5], "table:rows": ROW}, "DIFF", "tensor 'table'"),
        ({"other": ROW}, "DIFF", "unknown tensor 'other'"),
        ({}, "DIFF", "no params"),
    ],
)
def test_bad_result_is_refused_whole_and_the_round_goes_on(params, form, words):
    aggregator = aggregator_of(arrays())
    with pytest.raises(sa.InvalidArgumentError, match=r"^client 'a': ") as error:
        aggregator.accept_model(result_of("a", params, params_type=form))
    assert words in str(error.value)
    good = {"table:keys": [2], "table:rows": ROW}
    assert aggregator.accept_model(result_of("b", good, params_type="DIFF"))
    with contextlib.suppress(sa.InvalidArgumentError):
        aggregator.accept_model(result_of("c", params, params_type=form))
    result = aggregator.aggregate_model()
    assert result.meta["nr_aggregated"] == 1
    np.testing.assert_array_equal(result.params["table"].rows.values, ROW)
    assert "bias" not in result.params


@pytest.mark.parametrize("first", [0, 1, 2])
def test_params_type_of_most_clients_counts_whoever_is_first(first, caplog):
    aggregator = aggregator_of(arrays())
    results = [
        result_of("a", {"bias": ROW[0]}, params_type="DIFF"),
        result_of("b", {"bias": 3 * ROW[0]}, params_type="DIFF"),
        result_of("odd", {"bias": 100 * ROW[0]}, params_type="FULL"),
    ]
    for result in results[first:] + results[:first]:
        assert aggregator.accept_model(result)
    result = aggregator.aggregate_model()
    assert result.params_type == "DIFF"
    assert result.params["bias"].tolist() == [2] * 4
    assert result.meta["nr_aggregated"] == 2
    (line,) = refusals(caplog)
    assert "'odd'" in line.getMessage()
    assert "params_type FULL" in line.getMessage()


def errors(caplog):
    """Without NVFlare's own, that a component without an engine fires no event."""
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    return [line for line in lines if "the model stays" in line]


def assert_model_stays(aggregator):
    model = arrays()
    found = FLModelUtils.update_model(FLModel(params=arrays()), aggregator.aggregate_model()).params
    assert all(found[name].tobytes() == array.tobytes() for name, array in model.items())


@pytest.mark.parametrize("name", ["krum", "multi_krum"])
@pytest.mark.parametrize("on_server", [False, True])
def test_rule_with_too_few_results_leaves_the_model_and_the_job_goes_on(name, on_server, caplog):
    rule = {"name": name, "f": 1, **({"m": 2} if name == "multi_krum" else {})}
    with sa.Server() if on_server else contextlib.nullcontext() as server:
        aggregator = aggregator_of(arrays(), rule=rule, server=server.address if server else None)
        for site in range(4):
            assert aggregator.accept_model(result_of(f"site-{site}", {"bias": ROW[0]}, params_type="DIFF"))
        with pytest.raises(sa.InvalidArgumentError):
            aggregator.accept_model(result_of("site-4", {"bias": NAN[0]}, params_type="DIFF"))
        assert_model_stays(aggregator)
        (line,) = errors(caplog)
        assert f"{name} with f=1 needs 2·f + 3 = 5 submissions or more, got 4; client 'site-4': " in line
        aggregator.reset_stats()  # the next round
        for site in range(5):
            assert aggregator.accept_model(result_of(f"site-{site}", {"bias": ROW[0]}, params_type="DIFF"))
        assert aggregator.aggregate_model().params["bias"].tolist() == [1] * 4
    assert len(errors(caplog)) == 1


@pytest.mark.parametrize("form", ["DIFF", "FULL"])
def test_site_of_factor_0_does_not_count(form):
    aggregator = aggregator_of(arrays(), aggregation_weights={"odd": 0})
    for site, value in (("a", 1.0), ("odd", 100.0), ("b", 3.0)):
        result = result_of(site, {"bias": value * ROW[0]}, params_type=form)
        result.metrics = {"loss": value, **({"other": 1.0} if site == "odd" else {})}
        assert aggregator.accept_model(result)
    result = aggregator.aggregate_model()
    assert result.params["bias"].tolist() == [2] * 4
    assert result.metrics == {"loss": 2.0}


@pytest.mark.parametrize("op", ["mean", "coordinate_mean", "sum"])
def test_site_of_factor_0_changes_no_row_and_no_tensor_that_it_alone_has(op):
    aggregator = aggregator_of(arrays(), op=op, aggregation_weights={"odd": 0})
    own = {"table:keys": np.array([7]), "table:rows": ROW, "half": np.ones((3, 2), np.float16)}
    assert aggregator.accept_model(result_of("odd", own, params_type="DIFF"))
    assert aggregator.accept_model(result_of("a", {"table:keys": [2], "table:rows": ROW}, params_type="DIFF"))
    model = arrays()
    found = FLModelUtils.update_model(FLModel(params=arrays()), aggregator.aggregate_model()).params
    np.testing.assert_array_equal(found["half"], model["half"])
    changed = (found["table"] != model["table"]).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [2]


def test_sites_that_are_all_of_factor_0_leave_the_model(caplog):
    aggregator = aggregator_of(arrays(), aggregation_weights={"a": 0, "b": 0.0})
    for site in ("a", "b"):
        result = result_of(site, {"bias": ROW[0], "table:keys": [1], "table:rows": ROW}, params_type="DIFF")
        result.metrics = {"loss": 1.0}
        assert aggregator.accept_model(result)
    assert_model_stays(aggregator)
    (line,) = errors(caplog)
    assert "weights" in line


@pytest.mark.parametrize("factor", [-1, float("nan"), float("inf"), "1"])
def test_factors_that_are_no_numbers_from_0_on_are_refused(factor):
    with pytest.raises(sa.InvalidArgumentError, match="aggregation_weights of client 'a' must be a number from 0 on"):
        SparseAggregator(aggregation_weights={"a": factor})


def test_round_of_refused_results_has_an_error_that_names_all(caplog):
    aggregator = aggregator_of(arrays())
    aggregator._round = 3
    for site in ("a", "b"):
        with pytest.raises(sa.InvalidArgumentError):
            aggregator.accept_model(result_of(site, {"bias": NAN[0]}, params_type="DIFF"))
    assert aggregator.accept(shareable_of("c", {"other": ROW}, 3), FLContext()) is False
    assert_model_stays(aggregator)
    (line,) = errors(caplog)
    assert "round 3: the model stays: no result counts; client 'a': " in line
    assert "tensor 'bias'" in line
    assert "client 'b': " in line
    assert "unknown tensor 'other'" in line


@pytest.mark.parametrize("form", ["DIFF", "FULL"])
def test_site_that_sends_sparse_tensors_whole_is_logged_once(form, caplog):
    aggregator = aggregator_of(arrays())
    for _ in range(2):
        for site in ("a", "b"):
            assert aggregator.accept_model(result_of(site, {"table": arrays()["table"]}, params_type=form))
        aggregator.aggregate_model()
        aggregator.reset_stats()
    lines = [record.getMessage() for record in caplog.records if "all rows of the sparse tensor" in record.getMessage()]
    assert len(lines) == 1
    assert "client 'a' sends all rows of the sparse tensor 'table'" in lines[0]


def test_metrics_are_weighted_and_absent_ones_void_them():
    aggregator = aggregator_of(arrays())
    params = {"bias": np.ones(4, np.float32)}
    aggregator.accept_model(result_of("b", params, 3, params_type="DIFF", metrics={"loss": 1.0, "name": "x"}))
    aggregator.accept_model(result_of("a", params, 1, params_type="DIFF", metrics={"loss": 5.0}))
    assert aggregator.aggregate_model().metrics == {"loss": 2.0}
    aggregator.reset_stats()
    aggregator.accept_model(result_of("b", params, 3, params_type="DIFF", metrics={"loss": 1.0}))
    aggregator.accept_model(result_of("a", params, 1, params_type="DIFF"))
    assert aggregator.aggregate_model().metrics is None


class Lazy:
    """A reference to an array, as NVFlare's offload of tensors to disk makes it."""

    def __init__(self, array):
        self.array = array

    def materialize(self):
        return self.array


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_dense_tensors_are_logged_with_their_bytes_and_tied_weights_with_a_warning(kind, caplog):
    model = arrays(kind)
    model["head"] = model["table"] + 0
    model["other"] = model["table"] + 1
    caplog.set_level("INFO")
    aggregator = aggregator_of(model)
    aggregator.set_model(model)  # of the next round
    lines = [record.getMessage() for record in caplog.records]
    (sizes,) = [line for line in lines if "dense tensors, whole in each update" in line]
    assert "1,640 bytes ('head' 800, 'other' 800, 'bias' 16, 'half' 12, 'batches' 8, …)" in sizes
    (warning,) = [line for line in lines if "tied weights" in line]
    assert "tensor 'head' has the values of 'table'" in warning


def test_lazy_references_are_read():
    aggregator = aggregator_of(arrays())
    params = {"bias": Lazy(ROW[0]), "table:keys": Lazy(np.array([4])), "table:rows": Lazy(ROW)}
    aggregator.accept_model(result_of("a", params, params_type="DIFF"))
    found = aggregator.aggregate_model().params
    np.testing.assert_array_equal(found["bias"], ROW[0])
    np.testing.assert_array_equal(found["table"].rows.values, ROW)


def test_weights_and_exclusions_of_the_recipe():
    aggregator = aggregator_of(arrays(), aggregation_weights={"a": 3.0}, exclude_vars="^half$")
    half = np.ones((3, 2), np.float16)
    aggregator.accept_model(result_of("a", {"bias": ROW[0], "half": half}, 1, params_type="DIFF"))
    aggregator.accept_model(result_of("b", {"bias": 5 * ROW[0], "half": half}, 1, params_type="DIFF"))
    params = aggregator.aggregate_model().params
    assert params["bias"].tolist() == [2.0] * 4
    assert "half" not in params


def context_of_round(number):
    context = FLContext()
    context.set_prop(AppConstants.CURRENT_ROUND, number, private=True, sticky=False)
    return context


def shareable_of(site, params, number):
    shareable = DXO(DataKind.WEIGHT_DIFF, params, {"NUM_STEPS_CURRENT_ROUND": 1}).to_shareable()
    shareable.set_peer_props({ReservedKey.IDENTITY_NAME: site})
    shareable.add_cookie(AppConstants.CONTRIBUTION_ROUND, number)
    return shareable


def test_scatter_and_gather_gets_false_and_a_line(caplog):
    aggregator, context = aggregator_of(arrays()), context_of_round(4)
    aggregator.handle_event(AppEventType.ROUND_STARTED, context)
    context.set_prop(AppConstants.TRAIN_SHAREABLE, DXO(DataKind.WEIGHTS, arrays()).to_shareable())
    aggregator.handle_event(AppEventType.BEFORE_TRAIN_TASK, context)
    good = {"table:keys": np.array([1]), "table:rows": ROW}
    assert aggregator.accept(shareable_of("a", good, 4), context)
    assert not refusals(caplog)
    assert aggregator.accept(shareable_of("a", good, 4), context) is False
    assert aggregator.accept(shareable_of("b", good, 3), context) is False  # of the round before
    assert aggregator.accept(shareable_of("c", {"table:keys": [99], "table:rows": ROW}, 4), context) is False
    no_dxo = shareable_of("d", good, 4)
    no_dxo.set_header(ReservedHeaderKey.CONTENT_TYPE, "other")
    assert aggregator.accept(no_dxo, context) is False
    assert len(refusals(caplog)) == 4
    assert "Traceback" not in caplog.text
    result = FLModelUtils.from_shareable(aggregator.aggregate(context))
    assert isinstance(result.params["table"], MergedRows)
    aggregator.reset(context)


@pytest.mark.parametrize("where", ["arguments", "environment"])
def test_server_with_tls_and_tokens_killed_in_the_middle_merges_to_the_same_bits(where, tmp_path, monkeypatch):
    for name in ("TOKEN", "TLS_CA", "TLS_CERTIFICATE", "TLS_KEY"):
        monkeypatch.delenv(f"SPARSEAGG_{name}", raising=False)
    with GuardedServer(tmp_path, clients=0) as server:
        credentials = {"tls": str(server.ca), "token": server.coordinator}
        if where == "environment":
            monkeypatch.setenv("SPARSEAGG_TLS_CA", credentials["tls"])
            monkeypatch.setenv("SPARSEAGG_TOKEN", credentials["token"])
            credentials = {}
        model = arrays()
        aggregator = aggregator_of(model, server=server.address, **credentials)
        for site in (2, 1, 3):
            if site == 1:
                server.kill()
                again = threading.Thread(target=server.restart)
                again.start()  # while the result is submitted
            params = sparse_diff(model, trained(model, site), ["table"])
            assert aggregator.accept_model(result_of(f"site-{site}", params, steps=site, params_type="DIFF"))
        again.join()
        found = FLModelUtils.update_model(FLModel(params=dict(model)), aggregator.aggregate_model()).params
    wanted = merged(arrays(), [1, 2, 3], "DIFF")
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in wanted.items()
    }


@pytest.mark.parametrize("form", ["DIFF", "FULL"])
def test_cluster_merges_to_the_same_bits(form):
    wanted = merged(arrays(), [1, 2, 3], form)
    with Cluster(3) as cluster:
        found = merged(arrays(), [2, 1, 3], form, server=",".join(cluster.addresses))
        aggregator = aggregator_of(arrays(), server=",".join(cluster.addresses))
        aggregator.accept_model(result_of("a", {"bias": ROW[0]}, params_type="DIFF"))
        aggregator.reset_stats()  # an aborted round is cancelled on all servers
        states = [sorted(rnd.refresh().state for rnd in client.list_rounds()) for client in cluster._clients]
    assert states == [["cancelled"] * 2] * 3  # of the rows, and of bias; those of the merge are deleted
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in wanted.items()
    }
