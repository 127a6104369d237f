"""TensorFlow brings a protobuf, too: the engine works beside it, whichever of the two is imported first."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))

import import_order

pytest.importorskip("tensorflow")


@pytest.mark.parametrize("order", import_order.ORDERS["tensorflow"], ids="-".join)
def test_engine_works_beside_tensorflow(order):
    done = import_order.run(order)
    assert (done.returncode, done.stdout) == (0, "all used\n"), done.stderr
