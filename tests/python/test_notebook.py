"""What specs, rounds and results show in a notebook, and the pictures of results."""

from __future__ import annotations

import re

import numpy as np
import pytest
import sparseagg as sa


def cells(html: str) -> list[list[str]]:
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]


@pytest.fixture
def spec() -> sa.RoundSpec:
    tensors = [
        sa.TensorSpec("embedding", "float32", shape=(1000, 2), return_counts=True, op="coordinate_mean"),
        sa.TensorSpec("<b>", "int64", num_rows=4, layout="dense"),
    ]
    return sa.RoundSpec(tensors, op="sum")


def merged(spec: sa.RoundSpec) -> sa.Result:
    with sa.Client(":memory:") as client:
        rnd = client.create_round(spec, round_id="one")
        assert cells(rnd._repr_html_())[1][:4] == ["rounds/one", "open ", "0", "0"]
        rows = np.ones((2, 2), np.float32)
        rnd.submit("a", {"embedding": ([3, 900], rows), "<b>": np.arange(4)})
        rnd.submit("b", {"embedding": ([3, 7], rows), "<b>": np.arange(4)})
        rnd.refresh()
        assert cells(rnd._repr_html_())[1][2] == "2"
        return rnd.finish()


def test_tables_of_a_notebook(spec: sa.RoundSpec) -> None:
    assert cells(spec._repr_html_())[1:] == [
        ["embedding", "sparse", "float32", "1000", "2", "coordinate_mean", "uniform", "canonical"],
        ["&lt;b&gt;", "dense", "int64", "4", "1", "sum", "uniform", "canonical"],
    ]
    assert cells(merged(spec)._repr_html_())[1:] == [
        ["embedding", "sparse", "float32", "3", "2", "0.003", "1 to 2, median 1"],
        ["&lt;b&gt;", "dense", "int64", "4", "1", "1", ""],
    ]


def test_unknown_tensor_is_named_with_those_that_are_there(spec: sa.RoundSpec) -> None:
    with pytest.raises(KeyError, match="no tensor 'embeding'; the result has 'embedding', '<b>'"):
        merged(spec)["embeding"]
    assert merged(spec).get("embeding") is None


def test_picture_has_places_and_counts_of_sparse_tensors(spec: sa.RoundSpec) -> None:
    pytest.importorskip("matplotlib")
    places, counts = merged(spec).plot().axes
    assert places.get_title() == "embedding"
    heights = places.patches[0].get_data().values
    assert np.flatnonzero(heights).tolist() == [0, 57]  # keys 3 and 7, and 900 of 1000, in 64 parts
    assert heights[0] == pytest.approx(2 / (1000 / 64))
    assert [bar.get_height() for bar in counts.patches] == [2, 1]
    dense = sa.aggregate([{"x": np.ones(3)}], sa.RoundSpec([sa.TensorSpec("x", "float64", shape=(3,), layout="dense")]))
    with pytest.raises(sa.errors.FailedPreconditionError, match="nothing to draw"):
        dense.plot()
