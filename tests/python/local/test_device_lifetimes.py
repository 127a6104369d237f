"""When arrays in a GPU's memory are borrowed and given back, and the partials that are made of them."""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest
import sparseagg as sa
from every_client import digest, one
from fake_device import (
    DlpackArray,
    ExchangeTensor,
    InterfaceArray,
    Library,
    TorchTensor,
    drop_released,
    taken,
)
from partial_rounds import SPECS, updates_of
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


@pytest.mark.parametrize(("version", "kind"), [(None, DlpackArray), (1, DlpackArray), (1, ExchangeTensor)])
def test_values_are_kept_until_they_are_merged_and_keys_until_they_are_added(
    version: int | None, kind: Any, library: Library
) -> None:
    library.version = version
    aggregator = sa.Aggregator(one(), device="cuda")
    expected = sa.Aggregator(one())
    for client in "abc":
        aggregator.add(client, (kind(KEYS, library), kind(ROWS, library)))
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


def on_device(update: dict[str, Any], library: Library) -> dict[str, Any]:
    """The same update, in the device's memory."""
    moved = {}
    for name, data in update.items():
        if isinstance(data, tuple):
            keys, rows = data
            moved[name] = library.array(keys), None if rows is None else library.array(rows)
        else:
            moved[name] = library.array(data)
    return moved


@pytest.mark.parametrize("name", SPECS)
def test_a_partial_of_device_arrays_has_the_bytes_of_the_cpu(name: str, library: Library) -> None:
    spec = SPECS[name]
    cpu, gpu = sa.Aggregator(spec, device="cpu"), sa.Aggregator(spec, device="cuda")
    expected = sa.Aggregator(spec, device="cpu")
    for at, (client, (update, weight)) in enumerate(updates_of(spec, 12, 7).items()):
        cpu.add(client, update, weight)
        expected.add(client, update, weight)
        gpu.add(client, update if at == 5 else on_device(update, library), weight)  # one of the host is among them
    partial = b"".join(gpu.export_partial())
    assert partial == b"".join(cpu.export_partial())
    assert b"".join(gpu.export_partial()) == partial
    tensor = spec.tensors[0].name
    cut = {"tensor": tensor, "keys": (20, 60)}
    assert b"".join(gpu.export_partial(**cut)) == b"".join(cpu.export_partial(**cut))
    # More may be added, to either of the two.
    (update, weight) = updates_of(spec, 1, 8)["c000"]
    gpu.add("one more", on_device(update, library), weight)
    expected.add("one more", update, weight)
    assert gpu.num_submissions == 13
    assert digest(gpu.finish()) == digest(expected.finish())
    assert library.host_copies == 0


@pytest.mark.parametrize("name", SPECS)
def test_partials_and_device_arrays_add_up_on_the_device(name: str, library: Library) -> None:
    spec = SPECS[name]
    updates = updates_of(spec, 30, 9)
    expected = digest(sa.aggregate(updates, spec, device="cpu"))
    leaves = [sa.Aggregator(spec, device=device) for device in ("cpu", "cuda")]
    root = sa.Aggregator(spec, device="cuda")
    for at, (client, (update, weight)) in enumerate(updates.items()):
        where = [leaves[0], leaves[1], root][at % 3]
        where.add(client, update if at % 3 == 0 else on_device(update, library), weight)
    for at, leaf in enumerate(leaves):
        root.add_partial(f"leaf {at}", leaf.export_partial())
    assert root.num_submissions == 30
    assert digest(root.finish()) == expected
    assert library.host_copies == 0


def test_a_result_on_the_device_of_partials_and_device_arrays(library: Library) -> None:
    spec = SPECS["integers"]
    updates = updates_of(spec, 20, 11)
    leaf, root = (sa.Aggregator(spec, device="cuda") for _ in range(2))
    for at, (client, (update, weight)) in enumerate(updates.items()):
        (leaf if at < 10 else root).add(client, on_device(update, library), weight)
    root.add_partial("leaf", leaf.export_partial())
    expected = sa.aggregate(updates, spec, device="cpu")
    for name, tensor in root.finish_on_device().items():
        assert taken(tensor.keys).tobytes() == expected[name].keys.tobytes()
        assert taken(tensor.values).tobytes() == expected[name].values.tobytes()
