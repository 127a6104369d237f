"""Published models: whatever is published, removed or read late, clients end with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from every_client import Settled
from sparseagg._internal.client import async_model

SEED = 26
NAMES = iter(range(10**6))
INVALID = sa.InvalidArgumentError


@pytest.fixture(scope="module", params=["memory", "address"])
def address(request, server) -> str:
    return {"memory": ":memory:", "address": server.address}[request.param]


@pytest.fixture(scope="module")
def any_client(connect, address) -> Settled:
    return connect(address)


def published(client, name: str, **options):
    """The model; all calls of an asyncio client's have ended when they return."""
    return Settled(client._inner.model(name, **options), client._loop)


def new_name() -> str:
    return f"model-{next(NAMES)}"


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Any bits: with NaN of all kinds, -0.0 and denormals among them; True and False for bools."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    itemsize = np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * itemsize), dtype).reshape(shape).copy()


def new_arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {
        "rows": ((200, 16), "float32"),
        "odd": ((50, 3), "float16"),
        "deep": ((20, 3, 5), "float64"),
        "flags": ((77,), "bool"),
        "steps": ((), "int64"),
        "bias": ((9,), "int8"),
    }
    return {name: random_bits(rng, *shape) for name, shape in shapes.items()}


def bits(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def change(rng: np.random.Generator, arrays: dict[str, np.ndarray]) -> dict[str, object]:
    """Changes the arrays, and says how."""
    changes = {}
    for name, array in arrays.items():
        kind = rng.integers(0, 4)
        if array.shape == () or kind == 0:
            array[...] = random_bits(rng, array.shape, array.dtype.name)
            changes[name] = array.copy()
        elif kind < 3:
            keys = rng.permutation(len(array))[: rng.integers(0, 1 + len(array) // 5)]
            array[keys] = random_bits(rng, (len(keys), *array.shape[1:]), array.dtype.name)
            changes[name] = keys, array[keys]
    return changes


@pytest.mark.parametrize("keep_bytes", [None, 0, 1 << 30])
@pytest.mark.parametrize("gives_model", [True, False])
def test_clients_have_the_bits_of_the_coordinator(any_client, keep_bytes, gives_model):
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    name = new_name()
    options = {} if keep_bytes is None else {"keep_bytes": keep_bytes}
    model = published(any_client, name, **options)
    arrays = new_arrays(rng)
    model.publish(3, arrays, whole=True)
    clients = [({each: np.zeros_like(array) for each, array in arrays.items()}, None) for _ in range(3)]
    clients.append(({"rows": np.zeros((200, 16), np.float32)}, None))
    begun = {each: array.copy() for each, array in arrays.items()}
    clients.append((begun, 3))
    for version in range(4, 40):
        changes = change(rng, arrays)
        if version == 20:  # another process goes on
            model = published(any_client, name, **options)
        if version % 13 == 0:
            model.publish(version, arrays, whole=True)
        else:
            model.publish(version, changes, model=arrays if gives_model else None)
            model.publish(version, changes)  # again
        for at, (mine, since) in enumerate(clients):
            if rng.random() < (0.7, 0.2, 0.05, 0.3, 0.1)[at]:
                reached = published(any_client, name).catch_up(mine, since)
                assert reached == version
                assert bits(mine) == {each: array.tobytes() for each, array in arrays.items() if each in mine}
                clients[at] = mine, reached
    assert model.version() == 39
    for mine, since in clients:
        assert model.catch_up(mine, since=since) == 39
        assert model.catch_up(mine, since=39) == 39
        assert bits(mine) == {each: array.tobytes() for each, array in arrays.items() if each in mine}
    kept = {each.name for each in any_client.list_rounds() if each.name.startswith(f"rounds/{name}-")}
    assert len([each for each in kept if "-w" in each]) <= 1
    if keep_bytes == 0:
        assert len(kept) < 36
    model.delete()
    assert not [each for each in any_client.list_rounds() if each.name.startswith(f"rounds/{name}-")]
    with pytest.raises(sa.errors.NotFoundError, match="the server has no whole model"):
        model.catch_up({}, since=39)


def test_range_of_rows_leaves_the_others(any_client):
    model = published(any_client, new_name())
    arrays = {"a": np.arange(20.0).reshape(10, 2), "b": np.arange(5)}
    model.publish(0, arrays, whole=True)
    mine = {"a": np.full((10, 2), -1.0)}
    assert model.catch_up(mine, keys=(2, 5)) == 0
    expected = np.full((10, 2), -1.0)
    expected[2:5] = arrays["a"][2:5]
    assert mine["a"].tolist() == expected.tolist()
    arrays["a"][[1, 4, 9]] = 100.0
    model.publish(1, {"a": ([9, 1, 4], arrays["a"][[9, 1, 4]])})
    assert model.catch_up(mine, since=0, keys=(4, None)) == 1
    expected[[4, 9]] = 100.0
    assert mine["a"].tolist() == expected.tolist()


def test_version_that_is_removed_during_the_reading_is_no_error(any_client, monkeypatch):
    rng = np.random.default_rng(SEED)
    name, arrays = new_name(), new_arrays(rng)
    model = published(any_client, name, keep_bytes=0)
    model.publish(0, arrays, whole=True)
    for version in (1, 2):
        model.publish(version, change(rng, arrays))
    mine = {each: np.zeros_like(array) for each, array in arrays.items()}
    real, raced = async_model.PublishedModel._write, []

    async def write(self, round_id, rows, keys):
        if not raced:  # the publisher goes on, and removes what this call is about to read
            raced.append(round_id)
            inner = model._inner if isinstance(model._inner, async_model.PublishedModel) else model._inner._inner
            arrays["rows"][...] = 5.0
            await inner.publish(3, arrays, whole=True)
        return await real(self, round_id, rows, keys)

    monkeypatch.setattr(async_model.PublishedModel, "_write", write)
    assert published(any_client, name).catch_up(mine, since=0) == 3
    assert raced == [f"{name}-v{1:018}"]
    assert bits(mine) == bits(arrays)


def test_torch_tensors_are_written_in_place(client):
    torch = pytest.importorskip("torch")
    model = client.model(new_name())
    module = torch.nn.Embedding(10, 4)
    half = torch.arange(6.0).to(torch.bfloat16)
    model.publish(0, {**module.state_dict(), "half": half}, whole=True)
    other = torch.nn.Embedding(10, 4)
    mine = {"weight": other.weight, "half": torch.zeros(6, dtype=torch.bfloat16)}
    assert model.catch_up(mine) == 0
    assert torch.equal(other.weight, module.weight)
    assert torch.equal(mine["half"], half)


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (lambda m: m.publish(1, {"a": ([0], np.zeros((1, 2)))}), INVALID, "has no tensors yet"),
        (lambda m: m.publish(-1, {}), INVALID, "a version must be an integer from 0 on, got -1"),
        (lambda m: m.publish(1, [1]), INVALID, "changes must be a mapping"),
        (lambda m: m.publish(1, {"a": 5}, model={"a": [1]}), INVALID, "must be int64 of shape"),
        (lambda m: m.catch_up([1]), INVALID, r"a model must be a mapping from names to arrays, got \[1\]"),
        (lambda m: m.catch_up({"a": [1]}), INVALID, "must be an array of NumPy or torch, which is written in place"),
        (lambda m: m.catch_up({}), sa.errors.NotFoundError, "the server has no whole model"),
        (lambda m: m.catch_up({}, since="1"), INVALID, "since must be a version or None, got '1'"),
    ],
    ids=range(8),
)
def test_what_is_wrong_with_a_new_model_is_refused(any_client, use, error, text):
    with pytest.raises(error, match=text):
        use(published(any_client, new_name()))


def read_only() -> np.ndarray:
    array = np.zeros((4, 2))
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (lambda m: m.publish(3, {}), INVALID, "is at version 1; the next must be 2, got 3"),
        (lambda m: m.publish(0, {}), INVALID, "is at version 1; the next must be 2, got 0"),
        (lambda m: m.publish(1, {"a": ([1], np.ones((1, 2)))}), sa.errors.AlreadyExistsError, "other content"),
        (lambda m: m.publish(2, {"b": ([1], [1.0])}), INVALID, "unknown tensor 'b'; model .* has 'a'"),
        (lambda m: m.publish(2, {"a": ([1], [1.0])}), INVALID, r"1 rows of float64 and shape \(2,\)"),
        (lambda m: m.publish(2, {"a": ([1], np.ones((1, 2), "f4"))}), INVALID, "got float32 of shape"),
        (lambda m: m.publish(2, {"a": ([1, 1], np.ones((2, 2)))}), INVALID, "key 1 has two rows"),
        (lambda m: m.publish(2, {"a": ([4], np.ones((1, 2)))}), INVALID, "key 4"),
        (lambda m: m.publish(2, {"a": ([-1], np.ones((1, 2)))}), INVALID, "key -1"),
        (lambda m: m.publish(2, {"a": np.ones((2, 4))}), INVALID, r"got float64 of shape \(2, 4\)"),
        (lambda m: m.publish(2, {"a": np.zeros((0, 2))}), INVALID, "'a': must have shape .4, 2.*empty"),
        (lambda m: m.publish(2, {"a": ([1], 5.0)}), INVALID, "1 rows of float64"),
        (lambda m: m.publish(2, {"a": ([1], [[1.0], [1.0, 2.0]])}), INVALID, "cannot read rows of"),
        (lambda m: m.publish(2, {"a": ([1], [1.0])}, whole=True), INVALID, "without .keys, rows."),
        (lambda m: m.catch_up({"a": np.zeros((4, 2), "f4")}), INVALID, "no tensor 'a' of float32"),
        (lambda m: m.catch_up({"b": np.zeros((4, 2))}), INVALID, "no tensor 'b' of float64"),
        (lambda m: m.catch_up({"a": read_only()}), INVALID, "the array is read-only"),
        (lambda m: m.catch_up({"a": np.zeros((4, 2))}, keys=(2, 1)), INVALID, "the key range ends at 1"),
    ],
    ids=range(18),
)
def test_what_is_wrong_is_refused_and_the_model_unharmed(any_client, use, error, text):
    name, arrays = new_name(), {"a": np.zeros((4, 2))}
    model = published(any_client, name)
    model.publish(0, arrays, whole=True)
    model.publish(1, {"a": ([2], np.full((1, 2), 7.0))})
    with pytest.raises(error, match=text):
        use(model)
    for at in (model, published(any_client, name)):
        assert at.catch_up(arrays, since=0) == 1
        assert arrays["a"].tolist() == [[0, 0], [0, 0], [7, 7], [0, 0]]
    model.publish(2, {"a": ([0], np.full((1, 2), 9.0))})
    assert model.catch_up(arrays, since=1) == 2


def test_a_model_that_changes_its_tensors_is_published_whole(any_client):
    name, old, new = new_name(), {"w": np.zeros((100, 4)), "b": np.ones(3)}, {"w": np.ones((120, 4))}
    model = published(any_client, name)
    model.publish(0, old, whole=True)
    model.publish(1, {"w": ([3], new["w"][3:4])}, model=new)
    mine = {"w": np.zeros((120, 4))}
    assert published(any_client, name).catch_up(mine) == 1
    assert bits(mine) == bits(new)


def test_a_publisher_goes_on_after_a_failed_start(any_client, monkeypatch):
    name, arrays = new_name(), {"w": np.zeros((100, 4))}
    published(any_client, name).publish(0, arrays, whole=True)
    model, real, failed = published(any_client, name), async_model.model_tensors, []

    def model_tensors(tensors):
        if not failed:
            failed.append(True)
            raise sa.errors.UnavailableError("the connection is lost")
        return real(tensors)

    monkeypatch.setattr(async_model, "model_tensors", model_tensors)
    with pytest.raises(sa.errors.UnavailableError):
        model.publish(1, {"w": ([1], np.ones((1, 4)))})
    model.publish(1, {"w": ([1], np.ones((1, 4)))})


def test_names_and_budgets_are_checked(any_client):
    for arguments, text in (
        (("a b", {}), "a model's name 'a b' is not 1 to 128 of"),
        (("..", {}), "a model's name '..' is not 1 to 128 of"),
        (("x" * 101, {}), "a model's name must have at most 100 bytes"),
        (("a", {"keep_bytes": -1}), "keep_bytes must be a number of bytes"),
    ):
        with pytest.raises(INVALID, match=text):
            any_client._inner.model(arguments[0], **arguments[1])


def test_nobody_else_gets_into_a_version(server, monkeypatch):
    """A version is a round that is open for a moment, in which a client may submit, too."""
    name, arrays = new_name(), {"rows": np.arange(12, dtype=np.float32).reshape(4, 3)}
    submit = async_model.Round.submit
    states = []

    async def late(opened, client_id, words, **options):
        with sa.Client(server.address) as intruder:
            other = {each: np.array(rows) + 1 if isinstance(rows, np.ndarray) else rows for each, rows in words.items()}
            rnd = intruder.get_round(opened.name)
            rnd.submit("intruder", other)
            states.append(rnd.refresh().state)
        return await submit(opened, client_id, words, **options)

    monkeypatch.setattr(async_model.Round, "submit", late)
    with sa.Client(server.address) as client:
        model = client.model(name)
        model.publish(0, arrays, whole=True)
        assert states == ["open"]
        mine = {"rows": np.zeros((4, 3), np.float32)}
        assert model.catch_up(mine) == 0
        assert bits(mine) == bits(arrays)
        model.delete()
