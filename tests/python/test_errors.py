"""The classes of errors."""

from __future__ import annotations

import copy
import inspect
import pickle

import grpc
import pytest
import sparseagg as sa
from sparseagg import errors

CLASSES = [made for _, made in inspect.getmembers(errors, inspect.isclass) if issubclass(made, sa.SparseaggError)]
ERRORS = [
    *(made("what") for made in CLASSES if made not in (sa.RoundClosed, sa.RoundFailed)),
    sa.RoundClosed("what", "done"),
    sa.RoundFailed("what", "cancelled"),
    errors.error_of(grpc.StatusCode.DATA_LOSS, "what"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_error_is_the_same_in_another_process(error: sa.SparseaggError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert (str(other), other.code, vars(other)) == ("what", error.code, vars(error))


def test_package_has_every_class() -> None:
    assert {made.__name__ for made in CLASSES} <= set(sa.__all__)
