"""The ledger of rounds with privacy, and the bound that adapts."""

from __future__ import annotations

import collections
import copy
import errno
import math
import multiprocessing
import os
import re

import pytest
import sparseagg as sa
from private_rounds import private_spec

accounting = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")


def _public(multiplier):
    return private_spec(sa.PrivacySpec(noise_multiplier=multiplier, keys="public"))


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
    selecting = private_spec(sa.PrivacySpec(noise_multiplier=1.0, key_noise_multiplier=1.0, delta=1e-6))
    assert keys.spend(selecting) > plain.spend(_public(1.0))
    assert keys.num_mechanisms == 2  # one tensor is dense
    # Two mechanisms of multiplier 1 are one of 1/√2, at what is left of delta.
    left = sa.PrivacyLedger(50.0, 1e-5 - 1e-6)
    assert math.isclose(left.spend(_public(1 / math.sqrt(2))), keys.spent_epsilon, rel_tol=1e-6)


def test_deltas_of_selections_take_the_budget():
    ledger = sa.PrivacyLedger(1000.0, 1e-5)
    spec = private_spec(sa.PrivacySpec(noise_multiplier=100.0, key_noise_multiplier=32.0, delta=4e-6))
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
    before = first.spent_epsilon
    assert again.spend(_public(2.0)) > before
    with pytest.raises(sa.InvalidArgumentError, match="is a ledger of epsilon 8"):
        sa.PrivacyLedger(9.0, 1e-5, path=path)
    path.write_text("nonsense")
    with pytest.raises(sa.InvalidArgumentError, match="is no ledger"):
        sa.PrivacyLedger(8.0, 1e-5, path=path)


NO_MULTIPLIERS = (math.nan, math.inf, -1.0, 0.0, 1e300, 1e-300, "1", None, True)


@pytest.mark.parametrize("wrong", NO_MULTIPLIERS, ids=str)
def test_noise_that_is_no_number_in_range_is_not_spent(wrong):
    selecting = sa.PrivacySpec(noise_multiplier=1.0, key_noise_multiplier=1.0, delta=1e-6)
    ledger = sa.PrivacyLedger(5.0, 1e-5)
    for option in ("noise_multiplier", "key_noise_multiplier", "delta"):
        spec = private_spec(copy.copy(selecting))
        object.__setattr__(spec.privacy, option, wrong)  # a spec does not check the ranges of numbers
        with pytest.raises(sa.InvalidArgumentError, match=f"{option} must be .* got {re.escape(repr(wrong))}"):
            ledger.spend(spec)
    with pytest.raises(sa.InvalidArgumentError, match="noise_multiplier must be"):
        ledger.spend_gaussian(wrong)
    assert ledger.num_mechanisms == 0


@pytest.mark.parametrize("field", ["noise_multipliers", "deltas", "epsilon", "delta"])
@pytest.mark.parametrize("wrong", ["NaN", "Infinity", "-1", '"9999"', "null", "true", "1e999"])
def test_a_file_of_other_numbers_is_no_ledger(tmp_path, field, wrong):
    path = tmp_path / "ledger.json"
    fields = {"epsilon": "8", "delta": "1e-5", "noise_multipliers": "[2]", "deltas": "[1e-6]"}
    is_list = field in ("noise_multipliers", "deltas")
    for text in (f"[{wrong}]", wrong) if is_list else (wrong,):
        path.write_text("{" + ", ".join(f'"{k}": {text if k == field else v}' for k, v in fields.items()) + "}")
        with pytest.raises(sa.InvalidArgumentError, match=f"is no ledger.*{field}"):
            sa.PrivacyLedger(8.0, 1e-5, path=path)


def test_ledgers_of_one_file_share_its_budget(tmp_path):
    path = tmp_path / "ledger.json"
    (tmp_path / "link.json").symlink_to(path)
    ledgers = [sa.PrivacyLedger(10.0, 1e-5, path=name) for name in (path, path, tmp_path / "link.json")]
    alone = sa.PrivacyLedger(10.0, 1e-5)
    fits = 0
    while alone.epsilon_with(_public(1.0)) <= 10.0:
        alone.spend(_public(1.0))
        fits += 1
    for i in range(fits):
        ledgers[i % 3].spend(_public(1.0))
    for ledger in ledgers:
        with pytest.raises(sa.errors.ResourceExhaustedError):
            ledger.spend(_public(1.0))
        assert ledger.num_mechanisms == fits
        assert ledger.spent_epsilon == alone.spent_epsilon
    assert (tmp_path / "link.json").is_symlink()


def _spend_some(path, barrier, times):
    ledger = sa.PrivacyLedger(1e6, 1e-5, path=path)
    barrier.wait()
    for _ in range(times):
        ledger.spend_gaussian(3.0)


def test_processes_lose_no_spend_of_each_other(tmp_path):
    path = tmp_path / "ledger.json"
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    writers = [context.Process(target=_spend_some, args=(path, barrier, 20)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert sa.PrivacyLedger(1e6, 1e-5, path=path).num_mechanisms == 60


def test_a_file_that_has_forgotten_spends_is_refused(tmp_path):
    path = tmp_path / "ledger.json"
    ledger = sa.PrivacyLedger(100.0, 1e-5, path=path)
    ledger.spend(_public(1.0))
    before = path.read_bytes()
    ledger.spend(_public(2.0))
    path.write_bytes(before)  # as of a backup
    with pytest.raises(sa.InvalidArgumentError, match="has lost what was spent"):
        ledger.spend(_public(1.0))
    path.unlink()
    with pytest.raises(sa.InvalidArgumentError, match="has lost what was spent"):
        ledger.spend(_public(1.0))


def test_a_spend_that_cannot_be_written_is_not_spent(tmp_path, monkeypatch):
    path = tmp_path / "ledger.json"
    ledger = sa.PrivacyLedger(100.0, 1e-5, path=path)
    ledger.spend(_public(1.0))
    before = path.read_bytes()
    synced = []

    def no_space(descriptor):
        synced.append(descriptor)
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="no space"):
            ledger.spend(_public(1.0))
    assert synced  # before the file was replaced
    assert path.read_bytes() == before
    assert ledger.num_mechanisms == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == [".ledger.json.lock", "ledger.json"]


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
