"""Servers for clusters of up to three."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sparseagg.cluster import Cluster


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    with Cluster(3) as cluster:
        yield cluster.addresses
