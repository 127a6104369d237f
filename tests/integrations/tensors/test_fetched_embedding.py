"""FetchedEmbedding: trains as torch's Embedding does, on the rows that were fetched."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import sparseagg as sa

torch = pytest.importorskip("torch")
FetchedEmbedding = pytest.importorskip("sparseagg.torch").FetchedEmbedding

SEED = 61
NAMES = (f"torch-{at}" for at in itertools.count())
TABLE = np.random.default_rng(SEED).normal(size=(50, 4)).astype(np.float32)


def train(embedding: torch.nn.Module, ids: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        (embedding(ids) ** 2).sum().backward()
        optimizer.step()


@pytest.fixture
def client():
    with sa.Client(":local:") as client:
        yield client


@pytest.mark.parametrize("pad", [False, True])
def test_rows_are_those_that_an_embedding_of_all_rows_would_have(client, pad):
    model = client.model(next(NAMES), tensors={"emb": TABLE})
    ids = torch.tensor([[7, 3, 7], [41, 3, 0]])
    whole = torch.nn.Embedding.from_pretrained(torch.from_numpy(TABLE.copy()), freeze=False)
    mine = FetchedEmbedding(model, "emb", pad=pad)
    assert mine.fetch(ids) == mine.version == 0
    assert (mine.keys.tolist(), tuple(mine.weight.shape)) == ([0, 3, 7, 41], (4, 4))
    assert torch.equal(mine(ids), whole(ids))
    train(whole, ids)
    train(mine, ids)
    assert torch.equal(mine(ids), whole(ids))
    keys, rows = mine.update()
    assert keys.tolist() == [0, 3, 7, 41]
    rnd = model.create_round("sum")
    rnd.submit("c", {"emb": (keys, rows)})
    rnd.finish()
    model.apply(rnd, base_version=0)
    np.testing.assert_allclose(model.read({"emb": ...})[0], whole.weight.detach().numpy(), rtol=1e-6, atol=1e-7)
    assert mine.fetch([5], version=0) == 0
    assert mine(torch.tensor([5])).tolist() == [TABLE[5].tolist()]
    assert len(mine.update()[0]) == 0


def test_hashed_ids_keep_their_bits(client):
    model = client.model(next(NAMES), tensors={"emb": sa.Rows(2, init=sa.init.uniform(0.5, seed=1))})
    mine = FetchedEmbedding(model, "emb")
    ids = torch.tensor([-1, 5, 2**62])
    mine.fetch(ids)
    (wanted,) = model.read({"emb": ids.numpy().view(np.uint64)})
    assert mine(ids).detach().numpy().tolist() == wanted.tolist()
    train(mine, ids)
    keys, _ = mine.update()
    assert keys.tolist() == [2**64 - 1, 5, 2**62]


def test_id_that_was_not_fetched_is_named(client):
    mine = FetchedEmbedding(client.model(next(NAMES), tensors={"emb": TABLE}), "emb")
    with pytest.raises(KeyError, match="id 4 was not fetched"):
        mine(torch.tensor([4]))
    mine.fetch([1, 2])
    for ids in ([2, 9], [[1], [9]], [9]):
        with pytest.raises(KeyError, match="id 9 was not fetched"):
            mine(torch.tensor(ids))
    with pytest.raises(sa.InvalidArgumentError, match="key 50 is not in"):
        mine.fetch([50])
    assert mine.keys.tolist() == [1, 2]
