"""The ledger of rounds with privacy, and the bound that adapts."""

from __future__ import annotations

import collections
import math

import pytest
import sparseagg as sa
from private_rounds import private_spec
from sparseagg._internal.spec.privacy_ledger import discrete_gaussian

accounting = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")


def _public(multiplier):
    return private_spec(sa.DP(noise_multiplier=multiplier, keys="public"))


def test_rounds_add_up_until_the_budget_refuses():
    ledger = sa.PrivacyLedger(epsilon=10.0, delta=1e-5)
    spent = [ledger.spend(_public(1.0))]
    # A Gaussian mechanism of multiplier 1 at 1e-5 is (4.377, 1e-5)-private at best; the Rényi bound is a bit above.
    assert 4.37 < spent[0] < 5.4
    while ledger.epsilon_with(_public(1.0)) <= 10.0:
        assert ledger.epsilon_with(_public(1.0)) > spent[-1]
        spent.append(ledger.spend(_public(1.0)))
    with pytest.raises(sa.errors.ResourceExhaustedError, match="the budget of epsilon 10 at delta 1e-05"):
        ledger.spend(_public(1.0))
    assert 2 <= len(spent) <= 5
    assert ledger.num_mechanisms == len(spent)  # what was refused is not spent
    assert ledger.spent_epsilon == spent[-1] <= 10.0
    ledger.spend(_public(100.0))  # which still fits


def test_selections_of_keys_are_paid_too():
    plain = sa.PrivacyLedger(50.0, 1e-5)
    keys = sa.PrivacyLedger(50.0, 1e-5)
    selecting = private_spec(sa.DP(noise_multiplier=1.0, key_noise_multiplier=1.0, delta=1e-6))
    assert keys.spend(selecting) > plain.spend(_public(1.0))
    assert keys.num_mechanisms == 2  # one tensor is dense
    # Two mechanisms of multiplier 1 are one of 1/√2, at what is left of delta.
    left = sa.PrivacyLedger(50.0, 1e-5 - 1e-6)
    assert math.isclose(left.spend(_public(1 / math.sqrt(2))), keys.spent_epsilon, rel_tol=1e-6)
    geometric = private_spec(sa.DP(1.0, "truncated_geometric", key_epsilon=1.0, delta=1e-6))
    assert math.isclose(sa.PrivacyLedger(50.0, 1e-5).spend(geometric), keys.spent_epsilon, rel_tol=1e-6)


def test_deltas_of_selections_take_the_budget():
    ledger = sa.PrivacyLedger(1000.0, 1e-5)
    spec = private_spec(sa.DP(noise_multiplier=100.0, key_noise_multiplier=32.0, delta=4e-6))
    ledger.spend(spec)
    ledger.spend(spec)
    with pytest.raises(sa.errors.ResourceExhaustedError, match="inf"):
        ledger.spend(spec)


def test_a_file_keeps_what_was_spent(tmp_path):
    path = tmp_path / "ledger.json"
    first = sa.PrivacyLedger(8.0, 1e-5, path=path)
    first.spend(_public(2.0))
    again = sa.PrivacyLedger(8.0, 1e-5, path=path)
    assert again.spent_epsilon == first.spent_epsilon > 0
    assert again.spend(_public(2.0)) > first.spent_epsilon
    with pytest.raises(sa.InvalidArgumentError, match="is a ledger of epsilon 8"):
        sa.PrivacyLedger(9.0, 1e-5, path=path)
    path.write_text("nonsense")
    with pytest.raises(sa.InvalidArgumentError, match="is no ledger"):
        sa.PrivacyLedger(8.0, 1e-5, path=path)


def test_what_has_no_privacy_is_refused():
    ledger = sa.PrivacyLedger(1.0, 1e-5)
    with pytest.raises(sa.InvalidArgumentError, match="the spec has no privacy"):
        ledger.spend(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3)]))
    with pytest.raises(sa.InvalidArgumentError, match="must be a RoundSpec"):
        ledger.spend("spec")
    for epsilon, delta in ((0, 1e-5), (1, 0), (1, 1), (math.inf, 0.1)):
        with pytest.raises(sa.InvalidArgumentError):
            sa.PrivacyLedger(epsilon, delta)


Clip = collections.namedtuple("Clip", "num_l2")
Info = collections.namedtuple("Info", "num_submissions clip")


def test_bound_follows_the_quantile_of_the_norms():
    ledger = sa.PrivacyLedger(1e6, 1e-5)
    clip = sa.AdaptiveClip(64.0, expected_submissions=1000, count_noise=10, rate=0.5)
    norms = [0.001 * i for i in range(1, 1001)]  # their median is 0.5
    for _ in range(60):
        clipped = sum(norm > clip.l2 for norm in norms)
        clip.update(Info(1000, Clip(clipped)), ledger)
    assert abs(clip.l2 - 0.5) < 0.1
    assert ledger.num_mechanisms == 60


def test_bound_stays_at_the_end_of_the_budget():
    clip = sa.AdaptiveClip(1.0, expected_submissions=10, count_noise=1)
    with pytest.raises(sa.errors.ResourceExhaustedError):
        clip.update(Info(10, Clip(0)), sa.PrivacyLedger(0.1, 1e-5))
    assert clip.l2 == 1.0
    with pytest.raises(sa.InvalidArgumentError, match="has no clip"):
        clip.update(Info(10, None), sa.PrivacyLedger(100.0, 1e-5))


def test_integer_noise_of_the_count_has_its_deviation():
    # Of the system's randomness: no seed; six deviations of the estimates.
    samples = [discrete_gaussian(5) for _ in range(5_000)]
    assert abs(sum(samples) / 5_000) < 6.2 * 5 / math.sqrt(5_000)
    variance = sum(sample**2 for sample in samples) / 5_000
    assert abs(variance / 25 - 1) < 6.2 * math.sqrt(2 / 5_000)
