"""The public names and errors, for they are a promise: a new one needs a place in these lists, and a reason."""

from __future__ import annotations

import copy
import inspect
import pickle

import grpc
import pytest
import sparseagg as sa
import sparseagg.cluster
from sparseagg import errors

ROUND = [
    "cancel",
    "certificate",
    "delete",
    "finish",
    "from_handle",
    "handle",
    "info",
    "name",
    "refresh",
    "result",
    "seal",
    "spec",
    "start_merge",
    "submissions",
    "submit",
    "submit_batch",
    "wait",
    "withdraw",
]
MOST_NAMES = 36


def members(of: type) -> list[str]:
    """The public names of a class: also those of attributes that only its objects have."""
    annotated = (name for base in of.__mro__ for name in inspect.get_annotations(base))
    return sorted({name for name in (*dir(of), *annotated) if not name.startswith("_")})


def test_sparseagg_has_few_names_and_each_is_there() -> None:
    assert len(sa.__all__) <= MOST_NAMES
    assert [name for name in sa.__all__ if not hasattr(sa, name)] == []


@pytest.mark.parametrize("kind", [sa.Round, sa.aio.Round])
def test_members_of_a_round(kind: type) -> None:
    assert members(kind) == ROUND


def test_a_cluster_has_the_same_names_for_the_same() -> None:
    of_servers = {"from_handle"}  # opens the round of a cluster, too
    of_clusters = {"dataset", "home", "ranges", "save", "times"}
    # name and spec are attributes of the object, not of the class.
    assert {*members(sparseagg.cluster.ClusterRound), "name", "spec"} == {*ROUND} - of_servers | of_clusters


def test_blocking_and_asyncio_clients_have_the_same_methods() -> None:
    for name in ("Client", "Round", "Stream"):
        assert members(getattr(sa, name)) == members(getattr(sa.aio, name)), name


def test_nothing_public_speaks_of_messages() -> None:
    modules = (sa, sa.types, sa.errors, sa.aio, sparseagg.cluster)
    classes = [
        thing for module in modules for name in module.__all__ if inspect.isclass(thing := getattr(module, name))
    ]
    found = [f"{each.__name__}.{name}" for each in classes for name in members(each) if "proto" in name]
    assert found == []


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
