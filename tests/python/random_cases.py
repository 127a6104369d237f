"""Random rounds and streams, with all that may happen to them, and what the reference expects of them.

One generator for every entrance and every auditor: see test_differential.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import reference
import sparseagg as sa
from random_clips import with_random_clips
from random_cuts import with_random_cuts
from random_rounds import (
    OPS,
    ORDER_OPS,
    SUMS,
    as_reference,
    error_of,
    random_pools,
    random_spec,
    random_update,
    random_weight,
)

__all__ = ["Case", "Counted", "Sent", "random_round", "random_stream"]


@dataclasses.dataclass(frozen=True)
class Sent:
    """A submission as a client sends it, and what is to become of it."""

    client_id: str
    submission_id: str
    update: dict[str, Any]
    weight: float | None
    base_version: int | None = None  # of a commit to a stream
    refusal: type[sa.SparseaggError] | None = None
    is_withdrawn: bool = False  # before anything else is sent


@dataclasses.dataclass(frozen=True)
class Counted:
    """The submissions that a round counts, or a version of a stream, by the ids that order them."""

    spec: sa.RoundSpec
    updates: dict[str, reference.Update]

    @property
    def fails(self) -> bool:
        """Whether the merge has no result."""
        return error_of(lambda: reference.merge(self.spec, self.updates, check=False)) is not None

    def differences(self, result: Mapping[str, sa.TensorResult]) -> list[str]:
        return reference.differences(self.spec, self.updates, result)


@dataclasses.dataclass(frozen=True)
class Case:
    """A round, or a stream if it has ``options``. ``sent``: in order of arrival."""

    spec: sa.RoundSpec
    sent: list[Sent]
    rounds: list[Counted]  # the round, or all versions
    factors: dict[str, float] | None = None  # of the close, by client
    options: dict[str, Any] | None = None  # of Client.create_stream

    @property
    def client_ids(self) -> list[str]:
        return [each.client_id for each in self.sent if each.refusal is None and not each.is_withdrawn]


def _random_spec(rng: np.random.Generator) -> sa.RoundSpec:
    spec = random_spec(rng, [*OPS, *ORDER_OPS])
    if rng.random() < 0.3:
        spec = with_random_clips(rng, spec) or spec
    return with_random_cuts(rng, spec) if rng.random() < 0.3 else spec


def _takes_factors(spec: sa.RoundSpec, *, in_stream: bool) -> bool:
    ops = (*SUMS, *ORDER_OPS)
    hows = [spec.aggregation_of(tensor) for tensor in spec.tensors]
    is_canonical = all(how.numerics == "canonical" for how in hows)
    return (
        all("float" in tensor.dtype for tensor in spec.tensors)
        and all(how.op in ops for how in hows)
        and (in_stream or is_canonical)
    )


def _refusal(spec: sa.RoundSpec, update: reference.Update) -> type[sa.SparseaggError] | None:
    return error_of(lambda: reference.check_update(spec, update))


def random_round(rng: np.random.Generator) -> Case:
    """A round: some of its submissions are withdrawn, and the close may multiply weights."""
    spec = _random_spec(rng)
    closes_with_factors, withdraws = rng.random() < 0.4, rng.random() < 0.4
    if closes_with_factors or withdraws:
        spec = dataclasses.replace(spec, keep_submissions=True)  # so that they can be taken out
    pools = random_pools(rng, spec)
    sent, updates = [], {}
    for number in rng.permutation(rng.integers(0, 12)):
        name = f"client-{number}"
        update, weight = random_update(rng, spec, pools), random_weight(rng, spec)
        expected = as_reference(spec, update, weight)
        refusal = _refusal(spec, expected)
        withdrawn = withdraws and refusal is None and rng.random() < 0.3
        sent.append(Sent(name, "s", update, weight, None, refusal, withdrawn))
        if refusal is None and not withdrawn:
            updates[name] = expected
    if not closes_with_factors or not updates:
        return Case(spec, sent, [Counted(spec, updates)])
    choices = [0.0, 1.0] if rng.random() < 0.3 or not _takes_factors(spec, in_stream=False) else [0.0, 0.1, 1.0, 2.5]
    factors = {name: float(rng.choice(choices)) for name in updates}
    counted = {name: update for name, update in updates.items() if factors[name] > 0}
    if all(factor in (0.0, 1.0) for factor in factors.values()):
        return Case(spec, sent, [Counted(spec, counted)], factors)
    counted = {name: reference.with_factor(spec, update, factors[name]) for name, update in counted.items()}
    return Case(spec, sent, [Counted(reference.multiplied(spec), counted)], factors)


def random_stream(rng: np.random.Generator) -> Case:
    """A stream: its versions are cut as it has K commits, and the last one by a call."""
    buffer = int(rng.integers(1, 6))
    spec = dataclasses.replace(_random_spec(rng), max_submissions=None, keep_submissions=True)
    one_per_client = any(spec.aggregation_of(tensor).min_contributors > 1 for tensor in spec.tensors)
    table = [1.0] * int(rng.integers(1, 4))
    if _takes_factors(spec, in_stream=True) and rng.random() < 0.7:
        table = [float(rng.choice([1.0, 0.5, rng.random(), 0.0])) for _ in table]
    has_factors = any(weight != 1.0 for weight in table)
    version_spec = of_version = dataclasses.replace(spec, max_submissions=buffer)
    if has_factors:
        of_version = reference.multiplied(version_spec)

    pools = random_pools(rng, spec)
    sent: list[Sent] = []
    versions: list[dict[str, reference.Update]] = [{}]
    for number in range(int(rng.integers(1, 15))):
        name = f"client-{number}" if one_per_client else f"client-{rng.integers(0, 3)}"
        update, weight = random_update(rng, spec, pools), random_weight(rng, spec)
        staleness = int(rng.integers(0, min(len(table), len(versions))))
        expected = as_reference(spec, update, weight)
        counted = reference.with_factor(version_spec, expected, table[staleness]) if has_factors else expected
        refusal = _refusal(of_version, counted)  # terms are checked with the weight that they get
        withdrawn = refusal is None and rng.random() < 0.1 and len(versions[-1]) + 1 < buffer
        sent.append(Sent(name, f"s{number}", update, weight, len(versions) - 1 - staleness, refusal, withdrawn))
        if refusal is not None or withdrawn:
            continue
        versions[-1][name if one_per_client else f"{name}\0{number:016x}"] = counted
        if len(versions[-1]) == buffer:
            versions.append({})
    if not versions[-1]:
        versions.pop()
    options = {"buffer": buffer, "staleness": table, "one_per_client": one_per_client}
    return Case(spec, sent, [Counted(of_version, updates) for updates in versions], options=options)
