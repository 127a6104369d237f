"""SparseFedAvg(dp=…): the model moves by the noisy mean of bounded differences, and stays at the end of the budget."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.app import Array, ArrayRecord
from local_grid import LocalGrid, start
from sparseagg.flower import SparseFedAvg, sparse_mod

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
NODES, TOUCHED = 12, 1900
SPARSE = ["embedding.weight"]
BOUND = 100.0  # beyond all differences
OPTIONS = {"clip": sa.ClipSpec(l2=BOUND, max_keys=2000), "max_submissions": 64, "fixed_divisor": NODES}


def private(noise_multiplier: float, **options: Any) -> SparseFedAvg:
    dp = sa.PrivacySpec(noise_multiplier=noise_multiplier, keys="public")
    return SparseFedAvg(sparse=SPARSE, dp=dp, options={**OPTIONS, **options.pop("options", {})}, **options)


def grid(tmp_path: Any, *mods: Any) -> LocalGrid:
    return LocalGrid(jobs.make_client_app([sparse_mod(copies=tmp_path), *mods], TOUCHED), NODES)


def test_almost_no_noise_is_almost_the_mean(tmp_path: Any) -> None:
    """Replies count alike, and all arrays are merged as differences: an unweighted FedAvg, but for the noise."""
    got, _ = start(private(2**-10), grid(tmp_path), rounds=1)
    before = jobs.initial_model()
    trained = [jobs.train_arrays(before, node, 1, TOUCHED)[0] for node in range(NODES)]
    deviation = BOUND * 2**-10 / NODES
    for name, array in before.items():
        mean = np.mean([after[name].astype(np.float64) for after in trained], axis=0)
        assert got[name].dtype == array.dtype
        if array.dtype.kind == "i":  # no index or count is moved by noise
            np.testing.assert_array_equal(got[name], array)
            continue
        np.testing.assert_allclose(got[name], mean, rtol=0, atol=6 * deviation)
    moved = np.abs(np.mean([after["embedding.weight"] for after in trained], axis=0) - before["embedding.weight"])
    assert np.median(moved) > 6 * deviation  # so that the comparison is one


def test_noise_has_the_deviation_of_the_spec(tmp_path: Any) -> None:
    noise_multiplier, l2 = 2.0, 0.5
    strategy = private(noise_multiplier, options={"clip": sa.ClipSpec(l2=l2, max_keys=2000)})
    got, _ = start(strategy, grid(tmp_path), rounds=1)
    moved = (got["embedding.weight"].astype(np.float64) - jobs.initial_model()["embedding.weight"]).ravel()
    moved = moved[moved != 0]
    assert len(moved) > 10_000
    # The bounded mean is below l2 in norm, and so adds nothing that shows.
    assert np.std(moved) == pytest.approx(noise_multiplier * l2 / NODES, rel=0.05)


def test_model_stays_when_the_budget_is_spent(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    dp = sa.PrivacySpec(noise_multiplier=1.0, key_noise_multiplier=1.0, delta=1e-6)
    ledger = sa.PrivacyLedger(epsilon=12.0, delta=1e-5)
    strategy = SparseFedAvg(sparse=SPARSE, dp=dp, ledger=ledger, options=OPTIONS)
    _, result = start(strategy, grid(tmp_path), rounds=4)
    assert set(result.train_metrics_clientapp) == {1, 2}
    assert ledger.num_mechanisms == 4  # values and keys of two rounds
    assert "the budget of epsilon 12 at delta 1e-05 does not cover this" in caplog.text


@pytest.mark.parametrize("name", ["bn.running_var", "bn.running_mean", "layer/moving_variance:0", "running_var"])
def test_statistics_of_batch_normalization_are_refused_before_anything_is_sent_or_paid(
    name: str, tmp_path: Any
) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    ledger = sa.PrivacyLedger(epsilon=8.0, delta=1e-5)
    strategy = private(1.0, ledger=ledger)
    clients = grid(tmp_path)
    record = ArrayRecord(
        {**{n: Array(a) for n, a in jobs.initial_model().items()}, name: Array(np.ones(8, np.float32))}
    )
    with pytest.raises(sa.InvalidArgumentError, match=f"dp: tensor '{name}' is a statistic of batch normalization"):
        strategy.start(clients, record, num_rounds=1)
    assert ledger.num_mechanisms == 0
    assert not any(clients.sent.values())
    plain, _ = start(SparseFedAvg(sparse=SPARSE), grid(tmp_path), rounds=1)  # without dp nothing is refused
    assert plain


@pytest.mark.parametrize("page", ["howto/flower.md", "privacy.md"])
def test_documented_budget_pays_for_the_documented_rounds(page: str) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    text = (DOCS / page).read_text(encoding="utf-8")
    rounds = int(re.search(r"[Tt]his budget pays for (\d+)", text)[1])  # type: ignore[index]
    (block,) = (each for each in re.findall(r"```py(?:thon)?\n(.*?)```", text, re.DOTALL) if "PrivacyLedger" in each)
    dp = eval(re.search(r"sa\.PrivacySpec\(.*\)", block)[0])  # type: ignore[index]
    ledger = eval(re.search(r"sa\.PrivacyLedger\(.*?\)", block)[0].replace(', path="ledger.json"', ""))  # type: ignore[index]
    tensor = sa.TensorSpec("embedding", "float32", shape=(2000, 8))
    options = {"op": "mean", "mean_divisor": "fixed"}
    spec = sa.RoundSpec([tensor], privacy=dp, **options, **OPTIONS)  # type: ignore[arg-type]
    for _ in range(rounds):
        ledger.spend(spec)
    with pytest.raises(sa.errors.ResourceExhaustedError):
        ledger.spend(spec)
    assert rounds >= 20


def test_bad_arguments_are_refused() -> None:
    dp = sa.PrivacySpec(noise_multiplier=1.0, keys="public")
    with pytest.raises(sa.InvalidArgumentError, match=r"ledger and noise_key are for dp"):
        SparseFedAvg(noise_key=b"0" * 32)
    with pytest.raises(sa.InvalidArgumentError, match=r"dp is not for server=…"):
        SparseFedAvg(dp=dp, server="localhost:8001")
