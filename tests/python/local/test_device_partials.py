"""Partials of aggregators that merge on a GPU, and of updates in its memory: the bytes of the CPU's."""

from __future__ import annotations

from typing import Any

import pytest
import sparseagg as sa
from every_client import digest
from fake_device import Library, taken
from partial_rounds import SPECS, updates_of


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
    spec = SPECS["mean"]
    updates = updates_of(spec, 20, 11)
    leaf, root = (sa.Aggregator(spec, device="cuda") for _ in range(2))
    for at, (client, (update, weight)) in enumerate(updates.items()):
        (leaf if at < 10 else root).add(client, on_device(update, library), weight)
    root.add_partial("leaf", leaf.export_partial())
    expected = sa.aggregate(updates, spec, device="cpu")
    for name, tensor in root.finish_on_device().items():
        assert taken(tensor.keys).tobytes() == expected[name].keys.tobytes()
        assert taken(tensor.values).tobytes() == expected[name].values.tobytes()
