"""The engine has a protobuf of its own, which no other library of the process meets."""

from __future__ import annotations

import import_order
import pytest


@pytest.mark.parametrize("order", import_order.ORDERS[""], ids="-".join)
def test_engine_works_beside_protobuf_and_grpc(order):
    done = import_order.run(order)
    assert (done.returncode, done.stdout) == (0, "all used\n"), done.stderr


def test_engine_exports_no_symbol_of_protobuf():
    import sparseagg._engine as engine

    listed = import_order.exported_symbols(engine.__file__)
    assert "PyInit__engine" in listed
    assert [name for name in listed if "google8protobuf" in name] == []
