"""examples/keras_embedding.py: training with each coordinator, in memory and on a server."""

from __future__ import annotations

import keras_embedding
import pytest


@pytest.mark.parametrize("name", keras_embedding.OPTIMIZERS)
def test_training_learns_from_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_embedding, "ROUNDS", 6)
    figures = keras_embedding.train(keras_embedding.OPTIMIZERS[name](), seed=2)
    assert figures["after"] < figures["before"] - 0.02, figures
    assert 0 < figures["rows_sent"] < figures["rows_of_dense_updates"] / 40, figures
    assert (figures["rows_moved_untouched"] > 0) == (name == "keras Adam"), figures
