"""What one site sends costs the others nothing: shapes, ops that FULL weights ignore, values that are not finite."""

import re

import numpy as np
import pytest
import sparseagg as sa
import torch
from jobs import aggregator_of, as_numpy, result_of
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContextManager
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.client.utils import numerical_params_diff
from sparseagg.nvflare import SendSparseDiff, SparseAggregator, sparse_diff

KINDS = ["numpy", "torch"]


def of_kind(kind, arrays):
    return arrays if kind == "numpy" else {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def next_model(model, aggregator):
    copies = {name: array.copy() if isinstance(array, np.ndarray) else array.clone() for name, array in model.items()}
    return as_numpy(FLModelUtils.update_model(FLModel(params=copies), aggregator.aggregate_model()).params)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 3), (3,), (4, 1), (2, 3), (8, 3), ()])
def test_sparse_diff_broadcasts_nothing_and_names_the_tensor(kind, shape):
    before, after = of_kind(kind, {"lora_A": np.ones((4, 3))}), of_kind(kind, {"lora_A": np.ones(shape)})
    for sparse in ([], ["lora_A"]) if shape not in [(1, 3), (2, 3)] else ([],):  # which are the first rows
        words = f"tensor 'lora_A' has shape {shape} after training; the received model's has (4, 3)"
        with pytest.raises(sa.InvalidArgumentError, match=re.escape(words)):
            sparse_diff(before, after, sparse)


@pytest.mark.parametrize("kind", KINDS)
def test_axes_of_length_1_make_no_difference(kind):
    model = of_kind(kind, {"scale": np.array(1.5, np.float32), "rows": np.ones((5, 1, 2), np.float32)})
    after = of_kind(kind, {"scale": np.array([2.5], np.float32), "rows": np.full((1, 5, 2), 3, np.float32)})
    for sparse in ([], ["rows"]):
        diff = sparse_diff(model, after, sparse)
        assert diff["scale"].shape == ()
        for form, params in (("DIFF", diff), ("FULL", after)):
            aggregator = aggregator_of(model, sparse=sparse)
            assert aggregator.accept_model(result_of("a", params, params_type=form))
            found = next_model(model, aggregator)
            np.testing.assert_array_equal(found["scale"], np.float32(2.5))
            np.testing.assert_array_equal(found["rows"], np.full((5, 1, 2), 3))


@pytest.mark.parametrize("op", ["coordinate_mean", "sum"])
def test_weights_are_refused_where_the_op_is_of_differences(op):
    model = {"table": np.ones((5, 2), np.float32), "bias": np.ones(2, np.float32)}
    aggregator = aggregator_of(model, sparse=["table"], op=op)
    with pytest.raises(
        sa.InvalidArgumentError, match=rf"client 'a': tensor 'table': op={op!r} is of differences"
    ) as error:
        aggregator.accept_model(result_of("a", model, params_type="FULL"))
    assert "TransferType.DIFF" in str(error.value)
    assert aggregator.accept_model(result_of("b", {"bias": model["bias"]}, params_type="FULL"))
    assert aggregator_of(model, sparse=["table"]).accept_model(result_of("a", model, params_type="FULL"))


@pytest.mark.parametrize("kind", KINDS)
def test_elements_are_sent_and_merged(kind):
    model = of_kind(kind, {"weight": np.ones((50, 8), np.float32), "bias": np.zeros(2, np.float32)})
    after = of_kind(kind, as_numpy(model))
    after["weight"] = after["weight"].copy() if kind == "numpy" else after["weight"].clone()
    after["weight"][7, 3] += 2
    params = sparse_diff(model, after, [], elements=["weight"])
    assert [int(key) for key in params["weight:keys"]] == [7 * 8 + 3]
    assert [float(value) for value in params["weight:rows"]] == [2]
    aggregator = aggregator_of(model, elements=["weight"], op="coordinate_mean")
    aggregator.accept_model(result_of("a", params, params_type="DIFF"))
    other = of_kind(kind, {"weight:keys": np.array([3, 59]), "weight:rows": np.array([1.0, 4.0], np.float32)})
    aggregator.accept_model(result_of("b", other, params_type="DIFF"))
    found = next_model(model, aggregator)["weight"]
    wanted = np.ones((50, 8))
    wanted[7, 3], wanted[0, 3] = 4, 2  # (2 + 4) / 2 more, and 1 more
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(sa.InvalidArgumentError, match="'weight' is among sparse and among elements"):
        SparseAggregator(sparse=["weight"], elements=["weight"])
    with pytest.raises(sa.InvalidArgumentError, match="'weight' is among sparse and among elements"):
        sparse_diff(model, after, ["weight"], elements=["weight"])


def nonfinite_model():
    model = {
        "table": np.ones((20, 2), np.float32),
        "mask": np.triu(np.full((4, 4), -np.inf, np.float32), 1),
        "least": np.array([np.inf, np.inf, 1], np.float32),
        "half": np.array([-np.inf, 1], np.float16),
        "flags": np.array([True, False]),
        "small": np.array([3, 250], np.uint8),
    }
    model["table"][7] = np.nan
    model["table"][3, 1] = -np.inf
    return model


def nonfinite_trained(site):
    after = {name: array.copy() for name, array in nonfinite_model().items()}
    after["table"][3, 0] = site
    after["mask"][3, 0] = site
    after["half"][1] = site
    after["small"] = np.array([1, 255 - site], np.uint8)
    return after


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["FULL", "sparse_diff", "NVFlare's own difference", "filter"])
def test_values_that_no_site_changed_stay(kind, way):
    model = of_kind(kind, nonfinite_model())
    if way in ("NVFlare's own difference", "filter"):
        del model["flags"]  # of bools, NVFlare makes no difference
    aggregator = aggregator_of(model, sparse=["table"])
    for site in (1, 3):
        after = of_kind(kind, {name: array for name, array in nonfinite_trained(site).items() if name in model})
        if way == "FULL":
            after["least"][0] = site  # every site has found a minimum
            params = after
        elif way == "sparse_diff":
            params = sparse_diff(model, after, ["table"])
        else:
            params = numerical_params_diff(model, after)  # −inf − −inf is NaN
        if way == "filter":
            shareable = DXO(DataKind.WEIGHT_DIFF, params).to_shareable()
            with FLContextManager(engine=None, identity_name="site-1", job_id="1").new_context() as context:
                params = from_shareable(SendSparseDiff(["table"]).process(shareable, context)).data
            assert "table:keys" in params
        form = "FULL" if way == "FULL" else "DIFF"
        assert aggregator.accept_model(result_of(f"site-{site}", params, params_type=form))
    found, wanted = next_model(model, aggregator), nonfinite_model()
    wanted["table"][3, 0] = wanted["mask"][3, 0] = wanted["half"][1] = 2
    wanted["small"] = np.array([1, 253], np.uint8)
    if way == "FULL":
        wanted["least"][0] = 2  # the mean of what all have found
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)
        assert array.dtype == wanted[name].dtype, name


@pytest.mark.parametrize("form", ["FULL", "DIFF"])
@pytest.mark.parametrize("name", ["mask", "table"])
def test_values_that_become_nonfinite_are_refused(form, name):
    model = nonfinite_model()
    aggregator = aggregator_of(model, sparse=["table"])
    after = nonfinite_trained(1)
    after[name][2, 0] = np.nan
    params = sparse_diff(model, after, ["table"]) if form == "DIFF" else after
    with pytest.raises(sa.InvalidArgumentError, match=rf"client 'a': tensor '{name}'.* nan"):
        aggregator.accept_model(result_of("a", params, params_type=form))
    assert aggregator.accept_model(
        result_of("b", nonfinite_trained(1) if form == "FULL" else {"mask": np.zeros((4, 4))}, params_type=form)
    )


def test_on_nonfinite_of_single_tensors():
    model = {"stats": np.ones(2, np.float32), "bias": np.ones(2, np.float32)}
    aggregator = aggregator_of(model, options={"on_nonfinite": {"st*": "propagate"}})
    aggregator.accept_model(result_of("a", {"stats": np.array([np.inf, 1]), "bias": np.ones(2)}, params_type="FULL"))
    with pytest.raises(sa.InvalidArgumentError, match="tensor 'bias'"):
        aggregator.accept_model(result_of("b", {"bias": np.array([np.inf, 1])}, params_type="FULL"))
    assert aggregator.aggregate_model().params["stats"].tolist() == [np.inf, 1]
    aggregator = aggregator_of(model, options={"on_nonfinite": {"static": "propagate"}})
    with pytest.raises(sa.InvalidArgumentError, match="on_nonfinite has 'static', which is no tensor of the model"):
        aggregator.accept_model(result_of("a", model, params_type="FULL"))


def test_bools_that_change_have_no_difference():
    before, after = {"flags": np.array([True, False])}, {"flags": np.array([False, False])}
    with pytest.raises(sa.InvalidArgumentError, match=r"tensor 'flags' .*bool"):
        sparse_diff(before, after, [])


def test_metrics_of_other_shapes_are_left_out_and_named(caplog):
    aggregator = aggregator_of({"bias": np.ones(2, np.float32)})
    for site, values in (("a", 1.0), ("b", np.array([1.0, 2.0])), ("c", np.array([1.0, 2.0, 3.0])), ("d", 3.0)):
        metrics = {"loss": values, "steps": 1.0}
        aggregator.accept_model(result_of(site, {"bias": np.ones(2)}, params_type="FULL", metrics=metrics))
    metrics = aggregator.aggregate_model().metrics
    assert metrics["steps"] == 1.0
    assert any("'loss'" in record.getMessage() and "'c'" in record.getMessage() for record in caplog.records)


def test_any_error_of_one_result_is_that_sites_own():
    class Broken:
        def materialize(self):
            raise KeyError("gone")

    aggregator = aggregator_of({"bias": np.ones(2, np.float32)})
    with pytest.raises(sa.InvalidArgumentError, match=r"client 'a': tensor 'bias': .*gone"):
        aggregator.accept_model(result_of("a", {"bias": Broken()}, params_type="FULL"))
    assert aggregator.accept_model(result_of("b", {"bias": np.ones(2)}, params_type="FULL"))


@pytest.mark.parametrize("kind", KINDS)
def test_factors_of_their_own_shape(kind):
    """Sites of rank 2 and 4 in a model of rank 4: a row of A, or a column of B, is averaged over those that have it."""
    model = of_kind(kind, {"lora_A": np.zeros((4, 3), np.float32), "lora_B": np.zeros((5, 4), np.float32)})
    names = {"sparse": ["lora_A"], "elements": ["lora_B"]}
    aggregator = aggregator_of(model, **names, op="coordinate_mean")
    for rank in (2, 4):
        own = {"lora_A": np.full((rank, 3), rank, np.float32), "lora_B": np.full((5, rank), rank, np.float32)}
        diff = sparse_diff(model, of_kind(kind, own), **names)
        aggregator.accept_model(result_of(f"rank-{rank}", diff, params_type="DIFF"))
    found = next_model(model, aggregator)
    np.testing.assert_array_equal(found["lora_A"], np.repeat([[3], [3], [4], [4]], 3, axis=1))
    np.testing.assert_array_equal(found["lora_B"], np.repeat([[3, 3, 4, 4]], 5, axis=0))
