"""Rounds with privacy in this process: noise on the lattice, selected keys, and all that is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import sparseagg as sa
from private_rounds import KEY, check_noise, crowd, private_spec


def test_little_noise_gives_the_sums_of_popular_keys():
    updates = crowd(60)
    updates["z"] = {"v": (np.array([5, 6]), np.full((2, 2), 0.5)), "bias": np.zeros((4, 1))}
    result = sa.aggregate(updates, private_spec(), noise_key=KEY)
    assert result["v"].keys.tolist() == [3, 70]
    np.testing.assert_allclose(result["v"].values, 60 * 0.125, atol=0.01)
    np.testing.assert_allclose(result["bias"].dense().ravel(), 15, atol=0.01)
    # On the lattice of 2^-s, s = min(62 − 10 − 0, 24 + 10).
    units = np.ldexp(np.concatenate([result["v"].values.ravel(), result["bias"].dense().ravel()]), 34)
    assert np.array_equal(units, np.rint(units))


def test_noise_has_the_deviation_that_is_asked_for():
    spec = sa.RoundSpec(
        [sa.TensorSpec("v", "float32", num_rows=20_000, row_width=1)],
        op="mean",
        mean_divisor="fixed",
        fixed_divisor=10,
        max_submissions=10,
        weighting="by_weight",
        clip=sa.ClipSpec(l2=0.5),
        privacy=sa.PrivacySpec(noise_multiplier=1.5, keys="public", weight_bound=4),
    )
    result = sa.aggregate([({"v": ([7], [[100.0]])}, 4.0)], spec, noise_key=KEY)["v"]
    assert result.keys.size == 20_000
    assert result.values.dtype == np.float32
    # z · W · C / divisor, and one submission of weight 4 that was cut down to 0.5.
    assert abs(np.std(result.values) / (1.5 * 4 * 0.5 / 10) - 1) < 6.2 / np.sqrt(2 * 20_000)


def test_same_inputs_same_noise_and_other_inputs_other_noise():
    spec = private_spec(sa.PrivacySpec(noise_multiplier=1.0, keys="public"))

    def noise(updates, key=KEY, threads=2, release_id=bytes(16)):
        result = sa.aggregate(updates, spec, noise_key=key, threads=threads, release_id=release_id)
        assert result.info.release_id == release_id
        return result["v"].values.tobytes()

    updates = crowd(3)
    assert noise(updates) == noise(dict(reversed(list(updates.items()))), threads=1)
    assert noise(updates) != noise(updates, key=bytes([1] * 32))
    assert noise(updates) != noise(updates, release_id=bytes([1] * 16))
    assert noise(updates) != noise(crowd(4))


def _released(updates, spec):
    """Two results of the same updates and key, by all that is local."""
    aggregator = sa.Aggregator(spec, noise_key=KEY)
    for name, update in updates.items():
        aggregator.add(name, update)
    return sa.aggregate(updates, spec, noise_key=KEY), sa.aggregate(updates, spec, noise_key=KEY), aggregator.finish()


def test_results_of_one_key_share_no_noise():
    # If they did, readers of two results would see whether a client is in one of them: without, the noise is equal.
    updates = crowd(3)
    results = _released(updates, private_spec(sa.PrivacySpec(noise_multiplier=1.0, keys="public")))
    for tensor in ("v", "bias"):
        values = [result[tensor].dense().ravel() for result in results]
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert np.mean(values[one] == values[other]) < 0.05
    assert len({result.info.release_id for result in results}) == 3
    assert sa.aggregate(updates, sa.RoundSpec(private_spec().tensors)).info.release_id == b""


def test_noise_can_be_computed_again():
    privacy = sa.PrivacySpec(noise_multiplier=1.0, keys="public", public_keys={"v": [3, 70]})
    result = sa.aggregate(crowd(2), private_spec(privacy), noise_key=KEY)
    check_noise(result, 2)


def test_release_id_has_16_bytes_and_needs_privacy():
    for wrong in (b"", bytes(15), bytes(17), "i" * 16):
        with pytest.raises(sa.InvalidArgumentError, match="release_id must be 16 bytes, got"):
            sa.aggregate({}, private_spec(), noise_key=KEY, release_id=wrong)
    with pytest.raises(sa.InvalidArgumentError, match="release_id has no effect"):
        sa.aggregate({}, sa.RoundSpec(private_spec().tensors), release_id=bytes(16))


def test_aggregator_and_memory_client_make_private_rounds():
    aggregator = sa.Aggregator(private_spec(), noise_key=KEY)
    for name, update in crowd(60).items():
        aggregator.add(name, update)
    with pytest.raises(sa.errors.FailedPreconditionError, match="privacy refuses withdrawals"):
        aggregator.withdraw("c0")
    assert aggregator.finish()["v"].keys.tolist() == [3, 70]
    with sa.Client(":memory:") as client:
        opened = client.create_round(private_spec())
        assert opened.spec == private_spec()
        for name, update in crowd(60).items():
            opened.submit(name, update)
        assert opened.finish()["v"].keys.tolist() == [3, 70]


def test_noisy_counts():
    spec = private_spec(
        sa.PrivacySpec(noise_multiplier=2**-10, keys="count_gaussian", key_noise_multiplier=1.0, delta=1e-6),
    )
    spec = dataclasses.replace(
        spec, tensors=(spec.tensors[0].with_options(op="coordinate_mean", return_counts=True), spec.tensors[1])
    )
    result = sa.aggregate(crowd(200), spec, noise_key=KEY)["v"]
    assert result.keys.tolist() == [3, 70]
    assert all(abs(int(count) - 200) < 2 * 6.2 for count in result.counts)
    np.testing.assert_allclose(result.values, (200 * 0.125 / result.counts)[:, None] * np.ones(2), atol=1e-3)


def test_public_keys_may_be_listed():
    privacy = sa.PrivacySpec(noise_multiplier=2**-10, keys="public", public_keys={"v": [2, 3, 99]})
    result = sa.aggregate(crowd(4), private_spec(privacy), noise_key=KEY)["v"]
    assert result.keys.tolist() == [2, 3, 99]
    np.testing.assert_allclose(result.values, [[0, 0], [0.5, 0.5], [0, 0]], atol=0.01)


def test_no_submissions_are_noise_and_no_error():
    result = sa.aggregate({}, private_spec(), noise_key=KEY)
    assert result["v"].keys.size == 0
    assert np.all(result["bias"].dense() != 0)


def test_spec_survives_its_message():
    privacy = sa.PrivacySpec(noise_multiplier=1.0, keys="public", public_keys={"v": [2, 3]})
    for spec in (private_spec(), private_spec(privacy)):
        assert sa.RoundSpec._from_proto(spec._to_proto()) == spec
        assert hash(spec.privacy) == hash(sa.RoundSpec._from_proto(spec._to_proto()).privacy)


def union():
    spec = private_spec(sa.PrivacySpec(noise_multiplier=1.0, keys="public"), clip=sa.ClipSpec(l2=1.0))
    return dataclasses.replace(spec, tensors=(spec.tensors[0].with_options(op="union"), spec.tensors[1]))


# Each rule is tested where it stands, in C++: of those that ResolvePrivacy has, some.
REFUSALS = {
    "min": (lambda: private_spec(op="min"), "not min"),
    "union": (union, "not union"),
    "unknown": (lambda: private_spec(sa.PrivacySpec(noise_multiplier=1.0, keys="all")), "unknown privacy.keys"),
    "order": (
        lambda: private_spec(sa.PrivacySpec(noise_multiplier=1.0, keys="public", public_keys={"v": [2, 1]})),
        "do not ascend",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_would_tell_too_much_is_refused(name):
    make, text = REFUSALS[name]
    with pytest.raises(sa.InvalidArgumentError, match=text):
        sa.aggregate({}, make(), noise_key=KEY)


def test_noise_key_is_needed_and_has_32_bytes():
    with pytest.raises(sa.errors.FailedPreconditionError, match="privacy needs a noise key"):
        sa.aggregate({}, private_spec())
    with pytest.raises(sa.InvalidArgumentError, match="has 31 bytes; it needs at least 32"):
        sa.aggregate({}, private_spec(), noise_key=bytes(31))
    with pytest.raises(sa.InvalidArgumentError, match="noise_key must be bytes, got str"):
        sa.aggregate({}, private_spec(), noise_key="k" * 32)
    plain = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=3)])
    with pytest.raises(sa.InvalidArgumentError, match="noise_key has no effect"):
        sa.aggregate({}, plain, noise_key=KEY)


def test_weights_beyond_their_bound_are_refused():
    privacy = sa.PrivacySpec(noise_multiplier=1.0, keys="public", weight_bound=2.0)
    spec = private_spec(privacy, weighting="by_weight")
    with pytest.raises(sa.InvalidArgumentError, match=r"beyond privacy\.weight_bound 2"):
        sa.aggregate([(crowd(1)["c0"], 3.0)], spec, noise_key=KEY)
