"""When arrays in a GPU's memory are borrowed, and when they are given back."""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest
import sparseagg as sa
from every_client import digest, one
from fake_device import InterfaceArray, Library, TorchTensor, drop_released
from test_device_arrays import KEYS, ROWS
from test_engine import floats


def test_arrays_are_lent_for_the_engines_stream(library: Library) -> None:
    spec = one()
    aggregator = sa.Aggregator(spec, device="cuda")
    aggregator.add("a", (library.array(KEYS), library.array(ROWS)))
    stream = aggregator._engine.device_stream
    assert stream is not None
    assert stream[0] == 0
    assert stream[1] != 0
    assert library.streams == [stream[1]] * 2
    sa.aggregate([(library.array(KEYS), library.array(ROWS))], spec, device="cuda")
    assert library.streams == [stream[1]] * 4
    aggregator.finish()


@pytest.mark.parametrize("version", [None, 1])
def test_values_are_kept_until_they_are_merged_and_keys_until_they_are_added(
    version: int | None, library: Library
) -> None:
    library.version = version
    aggregator = sa.Aggregator(one(), device="cuda")
    expected = sa.Aggregator(one())
    for client in "abc":
        aggregator.add(client, (library.array(KEYS), library.array(ROWS)))
        expected.add(client, (KEYS, ROWS))
    drop_released()
    assert library.returned == [1, 0] * 3  # keys are copied, values borrowed
    assert digest(aggregator.finish()) == digest(expected.finish())
    assert library.returned == [1, 1] * 3


def test_arrays_are_given_back_on_threads_of_python_only(library: Library) -> None:
    aggregator = sa.Aggregator(one(), device="cuda", threads=4)

    def add(first: int) -> None:
        for client in range(first, first + 50):
            aggregator.add(client, (library.array(KEYS), library.array(ROWS)))

    threads = [threading.Thread(target=add, args=(1000 * i,)) for i in range(3)]
    known = {threading.get_ident()}
    for thread in threads:
        thread.start()
        known.add(thread.ident)
    for thread in threads:
        thread.join()
    assert aggregator.finish()["v"].values.tolist() == [300.0, 1350.0, 600.0]
    assert library.all_are_back
    assert library.threads <= known


@pytest.mark.parametrize("how", ["dropped", "withdrawn", "refused", "merged"])
def test_arrays_are_given_back_without_a_result(how: str, library: Library) -> None:
    aggregator = sa.Aggregator(one(), device="cuda")
    update = library.array(KEYS), library.array(ROWS)
    if how == "refused":
        with pytest.raises(sa.InvalidArgumentError, match="position 0: key 10 is not below"):
            aggregator.add("a", (library.array(KEYS + 5), library.array(ROWS)))
    elif how == "withdrawn":
        aggregator.add("a", update)
        assert aggregator.withdraw("a")
    elif how == "merged":
        other = sa.Aggregator(one(), device="cuda")
        aggregator.add("a", update)
        other.merge(aggregator)
        del aggregator
        assert library.returned == [1, 0]
        assert other.finish()["v"].values.tolist() == [2, 9, 4]
    else:
        aggregator.add("a", update)
        del aggregator
    assert library.lent == 2
    assert library.all_are_back, library.returned


def test_copied_updates_are_copied_on_the_device(library: Library) -> None:
    clones = []

    class Counted(TorchTensor):
        def clone(self) -> TorchTensor:
            clones.append(self)
            return super().clone()

    keys, rows = Counted(KEYS, library), Counted(ROWS, library)
    aggregator = sa.Aggregator(one(), device="cuda")
    aggregator.add("a", (keys, rows))
    assert clones == []
    aggregator.add("b", (keys, rows), copy=True)
    assert clones == [rows]
    module = types.SimpleNamespace(named_parameters=lambda: [("v", types.SimpleNamespace(grad=dense))])
    dense = Counted(floats(*range(10)), library)
    aggregator.add("c", module)
    assert clones == [rows, dense]
    text = refusal_of_copy(aggregator, InterfaceArray(floats(*range(10)), library))
    assert "fake_device.InterfaceArray has no method that copies it on its device; copy it before" in text
    assert aggregator.finish()["v"].values.tolist() == [0, 1, 6, 3, 4, 23, 6, 7, 8, 17]


def refusal_of_copy(aggregator: sa.Aggregator, update: Any) -> str:
    with pytest.raises(sa.InvalidArgumentError) as error:
        aggregator.add("me", update, copy=True)
    return str(error.value)
