"""Models through the client: whatever is read, padded, caught up or read late, the rows are those of one version."""

from __future__ import annotations

import contextlib
import copy
import threading

import numpy as np
import pytest
import sparseagg as sa
from every_client import SHELLS, Settled, settled
from guarded_server import make_token
from sparseagg._internal.base import extension
from sparseagg._internal.client import model_reader
from sparseagg.optimizers import SGD, Assign, FedAdam

SEED = 61
NAMES = iter(range(10**6))
INVALID, REFUSED = sa.InvalidArgumentError, sa.errors.FailedPreconditionError
NUM_ROWS = 300


@pytest.fixture(scope="module", params=["memory", "address"])
def any_client(connect, request, server) -> Settled:
    return connect({"memory": ":memory:", "address": server.address}[request.param])


def new_name() -> str:
    return f"model-{next(NAMES)}"


def model_of(client, name: str | None = None, **options):
    return client.model(name or new_name(), **options)


def applied(client, model, update, base: int, op: str = "sum"):
    """Makes a version of one update, and deletes its round."""
    rnd = client.create_round(model.round_spec(op))
    rnd.submit("client", update)
    rnd.finish()
    made = model.apply(rnd.name, base_version=base)
    rnd.delete()
    return made


class Oracle:
    """The tensors of every version, whole; rows of `hashed` by key."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.versions = [(arrays, {})]

    def add(self, update: dict) -> None:
        arrays, hashed = copy.deepcopy(self.versions[-1])
        for name, (keys, rows) in update.items():
            for key, row in zip(keys.tolist(), rows):
                if name == "hashed":
                    old = hashed.get(key, np.zeros(2, np.float32))
                    hashed[key] = (old.astype(np.float64) + row).astype(np.float32)
                else:
                    arrays[name][key] = (arrays[name][key].astype(np.float64) + row).astype(arrays[name].dtype)
        self.versions.append((arrays, hashed))


def random_update(rng: np.random.Generator, head: np.ndarray) -> dict:
    keys = rng.permutation(NUM_ROWS)[: rng.integers(0, 80)]
    hashed = np.unique(rng.integers(0, 50, rng.integers(1, 20), np.uint64) << np.uint64(58))
    update = {
        "emb": (keys, rng.normal(size=(len(keys), 4)).astype(np.float32)),
        "hashed": (hashed, rng.normal(size=(len(hashed), 2)).astype(np.float32)),
    }
    if rng.random() < 0.5:
        update["head"] = np.arange(len(head)), rng.normal(size=head.shape)
    return update


@pytest.mark.parametrize("reads", ["keys", "blocks", "whole"])
def test_all_ways_to_read_give_the_rows_of_one_version(any_client, reads, monkeypatch):
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    monkeypatch.setattr(model_reader, "_MOST_KEYS", 64)  # so that reads take several calls
    head = rng.normal(size=(30, 2, 3))
    tensors = {
        "emb": sa.Rows(4, num_rows=NUM_ROWS, init=sa.init.uniform(0.5, seed=3)),
        "head": head,
        "hashed": sa.Rows(2),
    }
    if reads == "blocks":
        del tensors["hashed"]  # has no blocks
    model = model_of(any_client, tensors=tensors, keep_versions=3, reads=reads)
    (emb,) = model.read({"emb": ...})
    assert len(np.unique(emb)) > NUM_ROWS
    assert np.abs(emb).max() < 0.5
    oracle = Oracle({"emb": emb, "head": head.copy()})
    mine = [({name: np.zeros_like(array) for name, array in oracle.versions[0][0].items()}, None) for _ in range(3)]
    for version in range(1, 25):
        update = {name: part for name, part in random_update(rng, head).items() if name in tensors}
        made = applied(any_client, model, update, version - 1)
        assert (made.version, made) == (version, model.info.versions[-1])
        assert model.info == any_client.model(model.name).info
        oracle.add(update)
        at = int(rng.integers(max(0, version - 3), version + 1))
        arrays, hashed = oracle.versions[at]
        keys = rng.integers(0, NUM_ROWS, rng.integers(0, 200))
        rows = model.read({"emb": keys, "head": ...}, version=at)
        assert rows.version == at
        np.testing.assert_array_equal(rows[0], arrays["emb"][keys])
        np.testing.assert_array_equal(rows[1], arrays["head"])
        (padded,) = model.read({"emb": keys}, version=at, pad=True)
        np.testing.assert_array_equal(padded, arrays["emb"][keys])
        if "hashed" in tensors:
            wanted = rng.integers(0, 50, 20, np.uint64) << np.uint64(58)
            (found,) = model.read({"hashed": wanted}, version=at)
            np.testing.assert_array_equal(found, [hashed.get(key, np.zeros(2)) for key in wanted.tolist()])
        since = int(rng.integers(0, version))
        newest, changes = model.changes(since, {"emb": None, "head": keys[keys < 30]})
        assert newest == version
        before, after = oracle.versions[since][0], oracle.versions[version][0]
        assert (np.diff(changes["emb"][0]) > 0).all()
        np.testing.assert_array_equal(changes["emb"][1], after["emb"][changes["emb"][0]])
        moved = np.flatnonzero((before["emb"] != after["emb"]).any(axis=1))
        assert np.isin(moved, changes["emb"][0]).all()
        np.testing.assert_array_equal(changes["head"][1], after["head"][changes["head"][0]])
        for position, (copies, reached) in enumerate(mine):
            if rng.random() < (1.0, 0.3, 0.1)[position]:
                reached = model.catch_up(copies, reached)
                assert reached == version
                for name, array in copies.items():
                    np.testing.assert_array_equal(array, after[name])
                mine[position] = copies, reached
    with pytest.raises(REFUSED, match="version 3 is not kept any more; the oldest version is 21"):
        model.read({"emb": [0]}, version=3)
    assert model.info.reads == reads
    model.delete()
    with pytest.raises(sa.errors.NotFoundError):
        model.refresh()


ARRAYS = {
    "table": np.arange(12, dtype=np.float32).reshape(4, 3),
    "steps": np.int64(2**60),
    "mask": np.array([0.0, -np.inf, np.nan], np.float16),
    "ids": np.arange(5, dtype=np.uint32),
}


def test_arrays_are_uploaded_once_and_assigned(any_client):
    name = new_name()
    model = model_of(any_client, name, tensors=ARRAYS, optimizer=Assign())
    for found, wanted in zip(model.read(dict.fromkeys(ARRAYS, ...)), ARRAYS.values()):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found, wanted)
    new = {"table": ([2, 0], np.full((2, 3), 7, np.float32)), "steps": np.int64(5), "mask": np.zeros(3, np.float16)}
    made = model.assign(new, base_version=0)
    assert (made.version, made.num_rows) == (1, 6)
    assert model.assign(new, base_version=0) == made  # an answer was lost
    with pytest.raises(REFUSED, match=r"version 1 was made of rounds/.*, not of rounds/"):
        model.assign({"steps": np.int64(6)}, base_version=0)
    again = model_of(any_client, name, tensors={**ARRAYS, "table": np.zeros((4, 3), np.float32)}, optimizer=Assign())
    table, steps, ids = again.read({"table": ..., "steps": ..., "ids": [4, 4]})
    assert table.tolist() == [[7, 7, 7], [3, 4, 5], [7, 7, 7], [9, 10, 11]]
    assert (int(steps), ids.tolist()) == (5, [4, 4])
    assert not [each.name for each in any_client.list_rounds() if name in each.name]
    with pytest.raises(sa.errors.AlreadyExistsError):
        any_client.model(name, tensors={"table": np.zeros((5, 3), np.float32)})
    assert f"models/{name}" in [each.name for each in any_client.list_models()]


def test_optimizer_of_a_model_steps_floats_and_others_are_assigned(any_client):
    tensors = {"a": np.ones(3, np.float32), "steps": np.int64(4), "half": np.ones(2, np.float16)}
    model = model_of(any_client, tensors=tensors, optimizer=FedAdam(learning_rate=0.25))
    assert {name: each.learning_rate for name, each in model.info.tensors.items()} == {"a": 0.25, "steps": 0, "half": 0}
    model.assign({"steps": np.int64(5)}, base_version=0)
    assert int(model.read({"steps": ...})[0]) == 5


def test_torch_tensors_are_read_and_written_in_place(any_client):
    torch = pytest.importorskip("torch")
    module = torch.nn.Embedding(10, 4)
    half = torch.arange(6.0).to(torch.bfloat16)
    model = model_of(any_client, tensors={**module.state_dict(), "half": half})
    other = torch.nn.Embedding(10, 4)
    mine = {"weight": other.weight, "half": torch.zeros(6, dtype=torch.bfloat16)}
    assert model.catch_up(mine) == 0
    assert torch.equal(other.weight, module.weight)
    assert torch.equal(mine["half"], half)
    assert model.read({"half": [5, 1]})[0].astype(np.float32).tolist() == [5.0, 1.0]


def test_values_may_travel_narrow(any_client):
    rows = np.random.default_rng(SEED).normal(size=(100, 64)).astype(np.float32)
    model = model_of(any_client, tensors={"a": rows})
    for encoding, bound in (("float16", 2e-3), ("bfloat16", 2e-2), ("int8_scaled", 3e-2)):
        (found,) = model.read({"a": np.arange(100)}, value_encoding=encoding)
        assert found.dtype == np.float32
        assert 0 < np.abs(found - rows).max() < bound * np.abs(rows).max()


def test_without_the_engine_the_server_computes_initial_rows(any_client, monkeypatch):
    tensors = {"emb": sa.Rows(4, num_rows=50, init=sa.init.normal(0.1, seed=9)), "other": sa.Rows(4, num_rows=50)}
    model = model_of(any_client, tensors=tensors)
    applied(any_client, model, {"emb": ([3], np.ones((1, 4)))}, 0)
    wanted = model.read({"emb": ..., "other": ...})
    real = model_reader.initial_rows

    def of_zeros(spec, position, keys):
        assert position == 1
        return real(spec, position, keys)

    monkeypatch.setattr(extension, "find", lambda: None)
    monkeypatch.setattr(model_reader, "initial_rows", of_zeros)
    found = model.read({"emb": ..., "other": ...})
    assert all(np.array_equal(*pair) for pair in zip(found, wanted))
    np.testing.assert_array_equal(model.read({"emb": [7, 3, 7]})[0], wanted[0][[7, 3, 7]])


def test_version_that_goes_while_it_is_read_is_never_mixed(server, client, monkeypatch):
    tensors = {name: sa.Rows(1, num_rows=100) for name in ("a", "b")}
    model = client.model(new_name(), tensors=tensors, keep_versions=1)
    real, to_come = model_reader.ModelReader._read, []

    async def read(self, request):
        page = await real(self, request)
        while to_come:  # between this page and the next one
            applied(coordinator, model, {name: np.ones(100) for name in tensors}, to_come.pop(0))
        return page

    with sa.Client(server.address) as coordinator:
        monkeypatch.setattr(model_reader.ModelReader, "_read", read)
        to_come += [0, 1]
        with pytest.raises(REFUSED, match="version 0 is not kept any more; the oldest version is 1"):
            model.read({"a": ..., "b": ...})
        mine = {name: np.zeros((100, 1), np.float32) for name in tensors}
        to_come += [2, 3]
        assert model.catch_up(mine, since=0) == 4  # began at 2
        assert all((array == 4).all() for array in mine.values())


def test_rows_expire_and_catch_up_reads_all_where_that_is_forgotten(any_client):
    model = model_of(any_client, tensors={"a": sa.Rows(1, num_rows=200_000, expire_after=1)})
    many = np.arange(100_000)
    mine, forgetful = ({"a": np.zeros((200_000, 1), np.float32)} for _ in range(2))
    for version, keys in enumerate((many, *([key] for key in range(150_000, 150_005))), 1):
        applied(any_client, model, {"a": (keys, np.ones((len(keys), 1)))}, version - 1)
        if version == 1:
            assert model.catch_up(forgetful) == 1
        if version == 2:
            assert model.catch_up(mine, since=1) == 2
    assert model.refresh().tensors["a"].num_removed == 100_003
    assert model.info.tensors["a"].oldest_since > 1
    with pytest.raises(REFUSED, match="are forgotten; read the whole tensor"):
        model.changes(1)
    assert model.catch_up(forgetful, since=1) == 6
    assert np.flatnonzero(forgetful["a"]).tolist() == [150_003, 150_004]
    version, changed = model.changes(5)
    assert (version, changed["a"][0].tolist(), changed["a"][1].tolist()) == (6, [150_002, 150_004], [[0.0], [1.0]])


@SHELLS
def test_waits_end_at_the_next_version(server, shell):
    name = new_name()
    with sa.Client(server.address) as coordinator, settled(shell, server.address) as client:
        model = coordinator.model(name, tensors={"a": sa.Rows(1)})
        mine = client.model(name)
        assert mine.wait(timeout=0.05) is None
        assert mine.wait(after=0, timeout=0) is None

        def apply() -> None:
            rnd = coordinator.create_round(model.round_spec())
            rnd.submit("c", {"a": ([5], [1.0])})
            rnd.finish()
            model.apply(rnd, base_version=model.info.version)

        thread = threading.Thread(target=apply)
        thread.start()
        assert mine.wait() == 1
        thread.join()
        assert mine.info.tensors["a"].num_touched == 1
        versions = model.versions()
        assert next(versions) == 1
        apply()
        apply()
        assert next(versions) == 3  # 2 is passed over
        assert next(model.versions(after=2)) == 3


def test_handle_opens_the_model_elsewhere(server, client):
    model = client.model(new_name(), tensors={"a": np.ones(3)})
    with sa.Model.from_handle(model.handle) as other:
        assert other.read({"a": ...})[0].tolist() == [1, 1, 1]
    with pytest.raises(REFUSED, match="this client is closed"):
        other.refresh()
    with pytest.raises(sa.errors.NotFoundError):
        sa.Model.from_handle(model.handle + "x")
    with pytest.raises(INVALID, match=r"must be \"sparseagg://host:port/models/ID\", as of Model.handle"):
        sa.Model.from_handle(f"sparseagg://{server.address}/rounds/r")


def test_stream_makes_the_versions(any_client):
    spec = sa.RoundSpec([sa.TensorSpec("a", "float32", num_rows=10)], op="sum")
    stream = any_client.create_stream(spec, buffer=2, stream_id=new_name())
    model = model_of(any_client, stream=stream.name, tensors={"a": sa.Rows(1, num_rows=10)})
    for client in range(4):
        stream.submit(f"c{client}", {"a": ([client], [1.0])}, base_version=0)
    while model.wait(after=0) != 2:
        pass
    assert model.read({"a": ...})[0].reshape(-1).tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert (model.info.stream, model.info.versions[-1].round) == (stream.name, f"rounds/{stream.name[8:]}.v2")
    with pytest.raises(REFUSED, match="the model's versions are made by streams/"):
        model.apply("some", base_version=2)


def test_clients_read_and_only_coordinators_of_the_tenant_change(start_server, tmp_path):
    table = tmp_path / "tokens"
    tokens = {
        "ours": make_token(table, "coordinator"),
        "client": make_token(table, "client"),
        "theirs": make_token(table, "coordinator", "--tenant", "other"),
    }
    server = start_server("--tokens-file", str(table))
    with contextlib.ExitStack() as stack:
        at = {name: stack.enter_context(sa.Client(server.address, token=token)) for name, token in tokens.items()}
        model = at["ours"].model("m", tensors={"a": np.ones(3)})
        mine = at["client"].model("m")
        assert mine.read({"a": ...})[0].tolist() == [1, 1, 1]
        assert [each.name for each in at["client"].list_models()] == ["models/m"]
        for use in (
            lambda: at["client"].model("n", tensors={"a": sa.Rows(1)}),
            lambda: mine.apply(None, base_version=0),
            mine.delete,
        ):
            with pytest.raises(sa.errors.PermissionDeniedError):
                use()
        with pytest.raises(sa.errors.NotFoundError):
            at["theirs"].model("m")
        assert not list(at["theirs"].list_models())
        assert model.refresh().version == 0


def test_read_of_a_million_keys_takes_several_calls(client):
    model = client.model(new_name(), tensors={"a": sa.Rows(1, num_rows=1 << 20)})
    applied(client, model, {"a": ([5, 1_000_000], np.ones((2, 1)))}, 0)
    keys = np.arange(1 << 20)[::-1]
    (rows,) = model.read({"a": keys})
    assert keys[np.flatnonzero(rows)].tolist() == [1_000_000, 5]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tensors": {}}, "tensors must be a mapping from names to Rows or arrays"),
        ({"tensors": {"a": "text"}}, "tensor 'a': it is text or raw bytes"),
        ({"tensors": {"a": np.zeros(3, bool)}}, "tensor 'a': unknown dtype"),
        ({"tensors": {"a": np.zeros((0, 3))}}, "has no values"),
        ({"tensors": {"a": sa.Rows(1)}, "optimizer": "adam"}, "optimizer must be one of sparseagg.optimizers"),
        ({"tensors": {"a": sa.Rows(1)}, "reads": "some"}, "unknown reads 'some'; known: keys, blocks, whole"),
        ({"tensors": {"a": sa.Rows(1)}, "keep_versions": 0}, "keep_versions must be from 1 to 65535, got 0"),
        ({"tensors": {"a": sa.Rows(1)}, "expire_after": -1}, "expire_after must be a number of versions"),
        ({"optimizer": SGD()}, "tensors must be given for a new model"),
        ({"tensors": {"a": sa.Rows(1, dtype="int32")}, "optimizer": FedAdam(dense=True)}, "moves touched rows only"),
    ],
    ids=range(10),
)
def test_wrong_model_is_refused(any_client, options, text):
    with pytest.raises(INVALID, match=text):
        any_client.model(new_name(), **options)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: sa.Rows(0), "width must be a number of values from 1 on, got 0"),
        (lambda: sa.Rows(1, num_rows=-1), "num_rows must be from 0 to"),
        (lambda: sa.Rows(1, init="zeros"), r"init must be one of sparseagg.init, such as zeros\(\)"),
        (lambda: sa.Rows(1, dtype="complex64"), "unknown dtype"),
        (lambda: sa.init.uniform(0.0, seed=1), r"the scale of uniform must be from 2\^-126 to 2\^100, got 0.0"),
        (lambda: sa.init.normal(1.0, seed=-1), r"a seed must be from 0 to 2\^64 - 1, got -1"),
    ],
    ids=range(6),
)
def test_wrong_rows_are_refused(make, text):
    with pytest.raises(INVALID, match=text):
        make()


def read_only() -> np.ndarray:
    array = np.zeros((4, 2))
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (lambda m: m.read({"b": [0]}), INVALID, r"has no tensor 'b'; it has 'a', 'hashed'"),
        (lambda m: m.read([0]), INVALID, "rows must be a mapping from tensor names"),
        (lambda m: m.read({"a": [4]}), INVALID, r"tensor 'a': key 4 is not in \[0, 4\)"),
        (lambda m: m.read({"a": [-1]}), INVALID, r"tensor 'a': key -1 is not in \[0, 4\)"),
        (lambda m: m.read({"a": [0.5]}), INVALID, "tensor 'a': keys must be integers on one axis"),
        (lambda m: m.read({"hashed": ...}), INVALID, "tensor 'hashed' has no num_rows"),
        (lambda m: m.read({"hashed": [1]}, pad=True), INVALID, "tensor 'hashed' has no num_rows"),
        (lambda m: m.read({"hashed": [-1]}), INVALID, "signed 64-bit ids keep their bits as uint64"),
        (lambda m: m.read({"a": [0]}, version=7), INVALID, "version 7 does not exist yet; the newest is 0"),
        (lambda m: m.read({"a": [0]}, value_encoding="int4"), INVALID, "unknown value_encoding 'int4'"),
        (lambda m: m.changes(5), INVALID, "version 5 does not exist yet; the newest is 0"),
        (lambda m: m.catch_up([1]), INVALID, "arrays must be a mapping from tensor names"),
        (lambda m: m.catch_up({"a": [1]}), INVALID, "must be an array of NumPy or torch, which is written in place"),
        (lambda m: m.catch_up({"a": np.zeros((4, 3))}), INVALID, r"must be float64 of shape \(4, 2\) as in the model"),
        (lambda m: m.catch_up({"a": np.zeros((4, 2), "f")}), INVALID, "as in the model, got float32"),
        (lambda m: m.catch_up({"a": read_only()}), INVALID, "is not writable: give a copy"),
        (lambda m: m.catch_up({"a": np.zeros((2, 4)).T}), INVALID, "is not C-contiguous: give a copy"),
        (lambda m: m.catch_up({}, since="1"), INVALID, "since must be from 0 to"),
        (lambda m: m.apply("none", base_version=0), sa.errors.NotFoundError, "none"),
        (lambda m: m.apply(None, base_version=0, learning_rate=-1), INVALID, "learning_rate must be a number, 0 or"),
        (lambda m: m.assign({"a": np.zeros((4, 2))}, base_version=0), INVALID, "its optimizer adds, and assign is for"),
    ],
    ids=range(21),
)
def test_wrong_use_changes_nothing(any_client, use, error, text):
    model = model_of(any_client, tensors={"a": np.ones((4, 2)), "hashed": sa.Rows(1)})
    with pytest.raises(error, match=text):
        use(model)
    assert model.refresh().version == 0
    assert model.read({"a": ...})[0].tolist() == np.ones((4, 2)).tolist()


def test_pad_asks_for_a_power_of_two_or_all_keys(client, monkeypatch):
    asked, real = [], model_reader.ModelReader._read

    async def read(self, request):
        asked.append(request.keys.num_keys)
        return await real(self, request)

    monkeypatch.setattr(model_reader.ModelReader, "_read", read)
    model = client.model(new_name(), tensors={"a": sa.Rows(1, num_rows=1000), "b": sa.Rows(1, num_rows=6)})
    for count in (1, 2, 3, 100, 512, 513, 1000):
        (rows,) = model.read({"a": np.arange(count)}, pad=True)
        assert len(rows) == count
    model.read({"b": [5, 0, 1, 3, 3, 4]}, pad=True)
    assert asked == [1, 2, 4, 128, 512, 1000, 1000, 6]
