"""Beside OpenDP: the noise of a round against its discrete Gaussian, and what PrivacyLedger claims against its map."""

from __future__ import annotations

import math
import time

import numpy as np
import opendp.prelude as dp
import pytest
import scipy.stats
import sparseagg as sa

dp.enable_features("contrib")

SEED_KEY = bytes(range(32))
ROWS, DELTA = 50_000, 1e-5


def spec_of(noise_multiplier: float) -> sa.RoundSpec:
    """A round of which nothing but noise comes out: all rows are public, and nobody submits."""
    return sa.RoundSpec(
        [sa.TensorSpec("t", "float64", num_rows=ROWS)],
        op="sum",
        max_submissions=10,
        clip=sa.ClipSpec(l2=1.0, max_keys=ROWS),
        privacy=sa.PrivacySpec(noise_multiplier=noise_multiplier, keys="public"),
    )


@pytest.mark.parametrize("noise_multiplier", [0.5, 3.0])
def test_noise_of_a_round_has_the_distribution_of_opendps(noise_multiplier: float) -> None:
    started = time.perf_counter()
    ours = sa.aggregate({}, spec_of(noise_multiplier), noise_key=SEED_KEY, release_id=bytes(16))["t"].dense()
    between = time.perf_counter()
    # On a lattice as fine as that of the round, whose deviation is about 2^24 units.
    units = 2**24
    measurement = dp.m.make_gaussian(
        dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=int), scale=noise_multiplier * units
    )
    theirs = np.array(measurement([0] * ROWS)) / units
    ended = time.perf_counter()
    print(
        f"noise_key {SEED_KEY.hex()}; ns a sample: {(between - started) / ROWS * 1e9:.0f} in a round, "
        f"{(ended - between) / ROWS * 1e9:.0f} by OpenDP"
    )
    assert scipy.stats.ks_2samp(ours, theirs).pvalue > 1e-9
    for samples in (ours, theirs):  # the variance of a variance estimate is 2·σ⁴/n
        assert np.var(samples) == pytest.approx(noise_multiplier**2, rel=6 * math.sqrt(2 / ROWS))


def opendps_epsilon(noise_multiplier: float, rounds: int) -> float:
    """ε of so many discrete Gaussians, which add up as zero-concentrated differential privacy."""
    scale = 1000.0
    one = dp.m.make_gaussian(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=noise_multiplier * scale)
    all_rounds = one if rounds == 1 else dp.c.make_composition([one] * rounds)
    return float(dp.c.make_zCDP_to_approxDP(all_rounds).map(int(scale)).epsilon(DELTA))


@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 2.0, 8.0])
@pytest.mark.parametrize("rounds", [1, 10])
def test_ledger_claims_what_opendp_claims(noise_multiplier: float, rounds: int) -> None:
    """Both bound Rényi divergences of Gaussians, and convert them; the conversions differ."""
    ledger = sa.PrivacyLedger(epsilon=1e6, delta=DELTA)
    for _ in range(rounds):
        ledger.spend(spec_of(noise_multiplier))
    theirs = opendps_epsilon(noise_multiplier, rounds)
    print(
        f"noise multiplier {noise_multiplier}, {rounds} rounds: ledger {ledger.spent_epsilon:.4f}, OpenDP {theirs:.4f}"
    )
    assert ledger.spent_epsilon == pytest.approx(theirs, rel=0.003)
