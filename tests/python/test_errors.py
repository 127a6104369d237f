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
    *(
        made("what")
        for made in CLASSES
        if made not in (errors._StateError, sa.RoundClosedError, sa.RoundFailedError, errors.StaleError)
    ),
    errors.StaleError("what", 21),
    sa.RoundClosedError("what", "done"),
    sa.RoundFailedError("what", "cancelled"),
    errors.error_of(grpc.StatusCode.DATA_LOSS, "what"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_error_is_the_same_in_another_process(error: sa.SparseaggError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert (str(other), other.code, vars(other)) == ("what", error.code, vars(error))


def test_every_class_is_public_and_ends_in_error() -> None:
    assert {made.__name__ for made in CLASSES} == set(errors.__all__) | {"_StateError"}
    assert all(made.__name__.endswith("Error") for made in CLASSES)


def test_missing_names_tell_what_does_not_have_them_and_where_they_are() -> None:
    with pytest.raises(AttributeError, match=r"^module 'sparseagg' has no attribute 'Unknown'$"):
        _ = sa.Unknown
    for module in (errors, sa.types):
        for name in set(module.__all__) - set(sa.__all__):
            with pytest.raises(ImportError, match=f"'{name}' is not in sparseagg itself, but in {module.__name__}"):
                getattr(sa, name)
    with sa.Client(":memory:") as client:
        rnd = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1)], op="sum"))
        for thing, kind in ((client, "Client"), (rnd, "Round"), (rnd._inner, "Round")):
            with pytest.raises(AttributeError, match=f"^'{kind}' object has no attribute 'shape'$"):
                _ = thing.shape
