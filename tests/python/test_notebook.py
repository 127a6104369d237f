"""What specs, rounds and results show in a notebook, and the pictures of results."""

from __future__ import annotations

import re

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.client.transport import BlockingTransport


def cells(html: str) -> list[list[str]]:
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]


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
        ["embedding", "sparse", "float32", "3", "2", "0.3%", "1 to 2, median 1"],
        ["&lt;b&gt;", "dense", "int64", "4", "1", "100%", ""],
    ]


def test_first_rows_of_a_tensor_are_a_table_with_keys(spec: sa.RoundSpec) -> None:
    embedding = merged(spec)["embedding"]
    assert cells(embedding._repr_html_()) == [
        ["key", "clients", "0", "1"],
        ["3", "2", "1.0", "1.0"],
        ["7", "1", "1.0", "1.0"],
        ["900", "1", "1.0", "1.0"],
    ]
    assert embedding._repr_html_().count("text-align: right") == 16, "all columns are numbers"
    assert "text-align: left" in merged(spec)._repr_html_()
    wide = sa.aggregate([{"w": (np.arange(100), np.ones((100, 30), np.float32))}])["w"]._repr_html_()
    assert "; the first 10, 8 of 30 values of each</p>" in wide
    assert (len(cells(wide)), cells(wide)[10]) == (11, ["9", *["1.0"] * 8])
    assert cells(sa.aggregate([{"u": ([5], None)}], op="union")["u"]._repr_html_()) == [["key", "clients"], ["5", "1"]]
    assert cells(spec.tensor("embedding")._repr_html_()) == [
        ["tensor", "layout", "dtype", "rows", "values of a row", "shape", "op", "return_counts"],
        ["embedding", "sparse", "float32", "1000", "2", "(1000, 2)", "coordinate_mean", "True"],
    ]


def test_interrupted_wait_is_one_line(monkeypatch: pytest.MonkeyPatch, spec: sa.RoundSpec) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with sa.Client(":memory:") as client:
        rnd = client.create_round(spec)
        monkeypatch.setattr(BlockingTransport, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt, match=r"^Round\.wait was interrupted") as raised:
            rnd.wait()
    assert len(raised.traceback) == 2, "the caller's line and one of the package"
    assert raised.value._render_traceback_() == [f"KeyboardInterrupt: {raised.value}"]


def test_unknown_tensor_is_named_with_those_that_are_there(spec: sa.RoundSpec) -> None:
    with pytest.raises(KeyError, match="no tensor 'embeding'; the result has 'embedding', '<b>'"):
        merged(spec)["embeding"]
    assert merged(spec).get("embeding") is None


def test_picture_has_places_and_counts_of_sparse_tensors(spec: sa.RoundSpec) -> None:
    pytest.importorskip("matplotlib")
    places, counts, of_all, without_counts = merged(spec).plot().axes
    assert places.get_title() == "embedding"
    heights = places.patches[0].get_data().values
    assert np.flatnonzero(heights).tolist() == [0, 57]  # keys 3 and 7, and 900 of 1000, in 64 parts
    assert heights[0] == pytest.approx(2 / (1000 / 64))
    assert [bar.get_height() for bar in counts.patches] == [2, 1]
    counts.figure.canvas.draw()
    assert [float(tick).is_integer() for tick in counts.get_xticks()] == [True] * len(counts.get_xticks())
    assert (of_all.get_title(), set(of_all.patches[0].get_data().values)) == ("<b>", {1.0})
    assert [text.get_text()[:9] for text in without_counts.texts] == ["no counts"]
