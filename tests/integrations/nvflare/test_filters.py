"""The filters of both ways, called as NVFlare's runners call them, without a network."""

import numpy as np
import pytest
import sparseagg as sa
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import ReservedHeaderKey
from sparseagg.nvflare import ReceiveChangedRows, SendChangedRows, SendSparseDiff
from sparseagg.nvflare.filters import VERSION

SEED = 11
KEYS, ROWS = "table:keys", "table:rows"


def first_model(kind):
    rng = np.random.default_rng(SEED)
    model = {"table": rng.standard_normal((100, 3), np.float32), "bias": rng.standard_normal(3, np.float32)}
    if kind == "numpy":
        return model
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    return {name: torch.from_numpy(array).to(dtype) for name, array in model.items()}


def copy_of(model):
    return {name: array.copy() if isinstance(array, np.ndarray) else array.clone() for name, array in model.items()}


def bits(array):
    return array.tobytes() if isinstance(array, np.ndarray) else array.view(torch.uint8).numpy().tobytes()


class Server:
    """A server's runner with the filter."""

    def __init__(self):
        self.filter = SendChangedRows(["table"])
        self.contexts = FLContextManager(engine=None, identity_name="server", job_id="1")

    def task(self, model, root_id, client):
        shareable = DXO(DataKind.WEIGHTS, model, {"note": 1}).to_shareable()
        shareable.set_header(ReservedHeaderKey.MSG_ROOT_ID, root_id)
        with self.contexts.new_context() as context:
            context.set_peer_context(client.contexts.new_context())
            return self.filter.process(shareable, context)


class Client:
    """A client's runner with the filter."""

    def __init__(self):
        self.filter = ReceiveChangedRows(["table"])
        self.contexts = FLContextManager(engine=None, identity_name="site-1", job_id="1")

    def receive(self, task):
        with self.contexts.new_context() as context:
            return from_shareable(self.filter.process(task, context))


@pytest.mark.parametrize("kind", ["numpy", "torch", "bfloat16"])
def test_clients_rebuild_the_model_from_what_changed_since_their_version(kind):
    rng = np.random.default_rng(SEED)
    model, server, often, rarely = first_model(kind), Server(), Client(), Client()
    for number in range(6):
        for client in (often, rarely) if number in (0, 3, 5) else (often,):
            task = server.task(copy_of(model), f"{number}{client is often}", client)
            sent = set(from_shareable(task).data)
            assert sent == ({"table", "bias"} if number == 0 else {KEYS, ROWS, "bias"})
            received = client.receive(task)
            assert received.meta == {"note": 1, "filter_history": ["SendChangedRows", "ReceiveChangedRows"]}
            assert {name: bits(array) for name, array in received.data.items()} == {
                name: bits(array) for name, array in model.items()
            }
            received.data["table"][...] = 0  # as training in place does
        model = copy_of(model)
        for key in rng.choice(100, 5, replace=False):
            model["table"][int(key)] += 1
        model["bias"] += 1


@pytest.mark.parametrize("kind", ["numpy", "torch", "bfloat16"])
@pytest.mark.parametrize("top_k", [None, 0.01])
def test_single_elements_go_both_ways(kind, top_k):
    model, server, client = first_model(kind), Server(), Client()
    server.filter, client.filter = SendChangedRows([], elements=["table"]), ReceiveChangedRows([], elements=["table"])
    send = SendSparseDiff([], top_k, elements=["table"])
    client.receive(server.task(copy_of(model), "a", client))
    model["table"][7, 1] += 1
    model["table"][99, 2] += 1
    task = server.task(copy_of(model), "b", client)
    assert from_shareable(task).data[KEYS].tolist() == [7 * 3 + 1, 99 * 3 + 2]
    received = client.receive(task).data
    assert bits(received["table"]) == bits(model["table"])
    delta = {"table": received["table"] * 0, "bias": received["bias"]}
    delta["table"][5, 2], delta["table"][6, 0] = 3, -4
    with client.contexts.new_context() as context:
        sent = from_shareable(send.process(DXO(DataKind.WEIGHT_DIFF, delta).to_shareable(), context)).data
    assert sorted((int(key), float(value)) for key, value in zip(sent[KEYS], sent[ROWS])) == [(17, 3), (18, -4)]
    assert sent[ROWS].dtype == delta["table"].dtype


def test_rows_that_did_not_change_are_not_sent():
    model, server, client = first_model("numpy"), Server(), Client()
    client.receive(server.task(copy_of(model), "a", client))
    model["table"][7, 1] = -0.0
    client.receive(server.task(copy_of(model), "b", client))
    model["table"][7, 1] = 0.0  # another value of equal size
    model["table"][9] += 1
    data = from_shareable(server.task(copy_of(model), "c", client)).data
    np.testing.assert_array_equal(data[KEYS], [7, 9])
    np.testing.assert_array_equal(data[ROWS], model["table"][[7, 9]])
    client.receive(server.task(copy_of(model), "c", client))
    assert len(from_shareable(server.task(copy_of(model), "d", client)).data[KEYS]) == 0


def test_whole_model_after_a_restart_of_either_and_when_most_rows_changed():
    model, server, client = first_model("numpy"), Server(), Client()
    client.receive(server.task(copy_of(model), "a", client))
    assert "table" in from_shareable(server.task(model, "b", Client())).data
    restarted = Server()
    for _ in range(3):  # its versions have numbers that the client knows, too
        task = restarted.task(copy_of(model), "c", client)
    assert "table" in from_shareable(task).data
    client.receive(task)
    stranger = Client()
    stranger.contexts.new_context().set_prop(VERSION, f"{restarted.filter._process}:x", private=False, sticky=True)
    assert "table" in from_shareable(restarted.task(copy_of(model), "d", stranger)).data
    model["table"][:50] += 1
    assert "table" in from_shareable(restarted.task(copy_of(model), "e", client)).data


def test_rows_for_another_version_are_refused_and_the_next_task_is_whole():
    model, server, client, other = first_model("numpy"), Server(), Client(), Client()
    client.receive(server.task(copy_of(model), "a", client))
    other.receive(server.task(copy_of(model), "a", other))
    model["table"][1] += 1
    other.receive(server.task(copy_of(model), "b", other))
    model["table"][2] += 1
    with pytest.raises(sa.errors.FailedPreconditionError, match="rows since version"):
        client.receive(server.task(copy_of(model), "c", other))
    task = server.task(copy_of(model), "c", client)
    assert "table" in from_shareable(task).data
    np.testing.assert_array_equal(client.receive(task).data["table"], model["table"])


def test_the_servers_task_is_not_changed():
    model, server, client = first_model("numpy"), Server(), Client()
    meta = {"filter_history": ["Other"]}
    for root_id in ("a", "b"):
        shareable = DXO(DataKind.WEIGHTS, model, meta).to_shareable()
        shareable.set_header(ReservedHeaderKey.MSG_ROOT_ID, root_id)
        with server.contexts.new_context() as context:
            context.set_peer_context(client.contexts.new_context())
            task = server.filter.process(shareable, context)
        assert VERSION in from_shareable(task).meta
        client.receive(task)
    assert set(model) == {"table", "bias"}
    assert meta == {"filter_history": ["Other"]}


@pytest.mark.parametrize("kind", ["numpy", "torch", "bfloat16"])
def test_top_k_sends_the_largest_rows_and_the_rest_later(kind):
    delta = first_model(kind)
    delta["table"][...] = 0
    for key in range(4):
        delta["table"][key] = 2.0**key
    send = SendSparseDiff(["table"], top_k=0.02)  # two rows of 100
    sent = []
    with FLContextManager(engine=None, identity_name="site-1", job_id="1").new_context() as context:
        for _ in range(2):
            shareable = DXO(DataKind.WEIGHT_DIFF, copy_of(delta)).to_shareable()
            data = from_shareable(send.process(shareable, context)).data
            assert data[ROWS].dtype == delta["table"].dtype
            sent.append({int(key): float(row[0]) for key, row in zip(data[KEYS], data[ROWS])})
            delta["table"][2:] = 0
    assert sent == [{2: 4.0, 3: 8.0}, {0: 2.0, 1: 4.0}]  # what was left of the first, and the second


def test_weights_in_the_place_of_differences_are_refused():
    shareable = DXO(DataKind.WEIGHTS, first_model("numpy")).to_shareable()
    with pytest.raises(sa.InvalidArgumentError, match=r"table.*params_transfer_type"):
        SendSparseDiff(["table"]).process(shareable, FLContextManager().new_context())


@pytest.mark.parametrize("sparse", ["table", [1], None])
def test_sparse_is_a_list_of_names(sparse):
    with pytest.raises(sa.InvalidArgumentError, match="list of names"):
        SendSparseDiff(sparse)
