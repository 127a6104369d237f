"""Rounds of ":memory:" that merge on a GPU, and take arrays in its memory."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from every_client import digest, one
from fake_device import Library, TorchCoo
from random_rounds import here_and_there, random_spec
from sparseagg._internal.local import cuda_plugin
from test_device_arrays import KEYS, ROWS
from test_engine import floats

MEMORY = ":memory:"


def outcome(client: sa.Client, spec: sa.RoundSpec, updates: dict[str, Any], *, in_one_call: bool) -> Any:
    """What a round comes to: everything about its result, or its error."""
    try:
        if in_one_call:
            result = client.aggregate(updates, spec)
        else:
            rnd = client.create_round(spec)
            for client_id, (update, weight) in updates.items():
                rnd.submit(client_id, update, weight)
            result = rnd.finish()
    except sa.SparseaggError as error:
        return type(error)
    return digest(result)


@pytest.mark.parametrize("seed", range(40))
def test_random_rounds_on_a_device_end_as_on_the_cpu(seed: int, library: Library) -> None:
    print("seed", seed)
    rng = np.random.default_rng([20261129, seed])
    spec = random_spec(rng)
    print(spec)

    def moved(tensor: str, data: Any) -> Any:
        """The same tensor, on the device two times in three."""
        dtype = spec.tensor(tensor).dtype
        if rng.random() < 0.3:
            return data
        keys, rows = data if isinstance(data, tuple) else (None, data)
        rows = None if rows is None else library.tensor(rows.view(np.uint16) if dtype == "bfloat16" else rows)
        return rows if keys is None else (library.tensor(keys), rows)

    here, there = here_and_there(rng, spec, moved)
    in_one_call = bool(rng.random() < 0.3)
    with sa.Client(MEMORY) as cpu, sa.Client(MEMORY, device="cuda") as gpu:
        expected = outcome(cpu, spec, here, in_one_call=in_one_call)
        assert outcome(gpu, spec, there, in_one_call=in_one_call) == expected
    assert library.host_copies == 0


@pytest.mark.parametrize("seed", range(8))
def test_arrays_may_change_once_they_are_submitted(seed: int, library: Library) -> None:
    rng = np.random.default_rng(seed)
    spec = one(num_rows=100)
    with sa.Client(MEMORY, device="cuda") as client:
        rnd = client.create_round(spec)
        expected = np.zeros(100, np.float32)
        for i in range(5):
            keys, rows = np.unique(rng.integers(0, 100, 40)), None
            rows = np.ones(len(keys), np.float32) * (i + 1)
            on_device = library.tensor(keys), library.tensor(rows)
            expected[keys] += rows
            receipt = rnd.submit(f"client-{i}", on_device)
            assert (receipt.num_tuples, receipt.num_bytes) == (len(keys), 8 * len(keys))
            rows[...] = np.nan
            keys[...] = 0
        result = rnd.finish()["v"]
        touched = np.flatnonzero(expected)
        assert result.keys.tolist() == touched.tolist()
        assert result.values.tolist() == expected[touched].tolist()
        assert client.server_info().engine == "cuda"
    assert (library.host_copies, library.device_copies) == (0, 5)  # the engine copies keys by itself


def test_a_round_gives_arrays_back(library: Library) -> None:
    with sa.Client(MEMORY, device="cuda") as client:
        rnd = client.create_round(one())
        update = library.tensor(KEYS), library.tensor(ROWS)
        rnd.submit("a", update)
        rnd.submit("b", update)
        assert rnd.withdraw("a")
        with pytest.raises(sa.InvalidArgumentError, match="position 0: key 10 is not below"):
            rnd.submit("c", (library.tensor(KEYS + 5), library.tensor(ROWS)))
        assert rnd.finish()["v"].values.tolist() == [2.0, 9.0, 4.0]
        rnd.delete()
    client = sa.Client(MEMORY, device="cuda")
    client.create_round(one()).submit("a", update)
    client.close()
    gc.collect()  # `library` sees that all of them are back


def test_submissions_on_a_device_are_not_compared(library: Library) -> None:
    update = library.tensor(KEYS), library.tensor(ROWS)
    with sa.Client(MEMORY, device="cuda") as client:
        rnd = client.create_round(one())
        rnd.submit("a", update, submission_id="1")
        with pytest.raises(sa.errors.AlreadyExistsError, match="'a' has committed submission '1' with other content"):
            rnd.submit("a", update, submission_id="1")
        rnd.submit("b", (KEYS, ROWS), submission_id="1")
        assert rnd.submit("b", (KEYS, ROWS), submission_id="1").duplicate
        assert rnd.finish()["v"].values.tolist() == [4.0, 18.0, 8.0]


def test_a_sealed_round_on_a_device_can_be_inspected(library: Library) -> None:
    with sa.Client(MEMORY, device="cuda") as client:
        rnd = client.create_round(one())
        rnd.submit("a", (library.tensor(KEYS), library.tensor(ROWS)))
        rnd.submit("b", (np.array([2, 9]), floats(10, 1)))
        rnd.seal()
        assert sa.robust.inspect(rnd).gram.tolist() == [[2.0**2 + 9.0**2 + 4.0**2, 24.0], [24.0, 101.0]]


def test_what_a_round_on_a_device_refuses(library: Library) -> None:
    update = library.tensor(KEYS), library.tensor(ROWS)
    with sa.Client(MEMORY, device="cuda") as client:
        rnd = client.create_round(one())
        with pytest.raises(
            sa.InvalidArgumentError, match="client 'a': tensor 'v': value_encoding rounds values in host"
        ):
            rnd.submit("a", update, value_encoding="float16")
        with pytest.raises(sa.InvalidArgumentError, match="keys are in host memory and rows on CUDA device 0"):
            rnd.submit("a", (KEYS, update[1]))
        with pytest.raises(sa.InvalidArgumentError, match="has no method that copies it on its device"):
            rnd.submit("a", (library.array(KEYS), library.array(ROWS)))
        coo = TorchCoo([[5, 2]], floats(1, 2), (10,), library)
        assert rnd.submit("a", coo).num_tuples == 2
    with sa.Client(MEMORY) as client:
        rnd = client.create_round(one())
        rnd.submit("a", update)  # torch's arrays are copied to the host
        assert rnd.finish()["v"].values.tolist() == [2.0, 9.0, 4.0]
    assert library.host_copies == 2


@pytest.mark.parametrize("address", ["localhost:1", ":local:"])
def test_a_device_is_for_rounds_in_this_process(address: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=f'^a client of "{address}" takes no device'):
        sa.Client(address, device="cuda")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(sa.InvalidArgumentError, match="device must be 'cpu', 'cuda' or None, got 'gpu'"):
        sa.Client(MEMORY, device="gpu")


def test_without_the_engine_a_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_plugin, "find", lambda: None)
    with pytest.raises(sa.errors.EngineMissingError, match=r"make cuda-wheel"):
        sa.Client(MEMORY, device="cuda")
