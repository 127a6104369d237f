"""The public names, for they are a promise: a new one needs a place in these lists, and a reason."""

from __future__ import annotations

import inspect

import pytest
import sparseagg as sa
import sparseagg.cluster

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
    return [name for name in dir(of) if not name.startswith("_")]


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
