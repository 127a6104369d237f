"""The initial values of rows that nobody has touched, for ``sparseagg.Rows``.

They are a function of seed, tensor, key and column, which ``proto/sparseagg/v1/models.proto`` defines: the same bits on
every machine, without any memory on the server.

    client.model("ads", tensors={"emb": sa.Rows(64, init=sa.init.uniform(0.05, seed=1))}, …)
"""

from __future__ import annotations

import dataclasses
from typing import SupportsFloat, SupportsIndex

from sparseagg._internal.base.arguments import checked_integer, checked_number

__all__ = ["Init", "normal", "uniform", "zeros"]


@dataclasses.dataclass(frozen=True)
class Init:
    """An initial value: made by ``zeros``, ``uniform`` and ``normal``."""

    kind: str
    scale: float = 0.0
    seed: int = 0


def zeros() -> Init:
    """Returns the initial value 0."""
    return Init("zeros")


def uniform(scale: SupportsFloat, *, seed: SupportsIndex) -> Init:
    """Returns initial values spread evenly over (−scale, scale).

    Args:
        scale: 2^-126 to 2^100.
        seed: 0 to 2^64 − 1; required, so that a model can be made again.

    Raises:
        InvalidArgumentError: an argument is out of range.
    """
    return _random("uniform", scale, seed)


def normal(scale: SupportsFloat, *, seed: SupportsIndex) -> Init:
    """Returns normal initial values of mean 0 and standard deviation ``scale``, within 6·scale. Otherwise as
    ``uniform``. They are sums of 12 uniform integers, since ``log`` and ``cos`` differ between C libraries."""
    return _random("normal", scale, seed)


def _random(kind: str, scale: SupportsFloat, seed: SupportsIndex) -> Init:
    number = checked_number(f"the scale of {kind} must be from 2^-126 to 2^100", scale, 2.0**-126, 2.0**100)
    return Init(kind, number, checked_integer("a seed must be from 0 to 2^64 - 1", seed, 0, 2**64 - 1))
