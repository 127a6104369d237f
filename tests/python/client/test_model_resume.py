"""Server and coordinator are killed and started again: the model has the bits of a run that nobody has interrupted."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from sparseagg.optimizers import FedAdam, FedYogi

SEED = 61
VERSIONS, NUM_ROWS = 12, 60
TENSORS = {
    "emb": sa.Rows(3, num_rows=NUM_ROWS, init=sa.init.normal(0.1, seed=4), expire_after=4),
    "head": np.linspace(-1, 1, 20),
}


def update_of(version: int) -> dict:
    rng = np.random.default_rng([SEED, version])
    keys = np.sort(rng.permutation(NUM_ROWS)[:20])
    return {"emb": (keys, rng.normal(size=(20, 3)).astype(np.float32)), "head": rng.normal(size=20)}


def rows_of(model) -> list[bytes]:
    return [array.tobytes() for array in model.read({"emb": ..., "head": ...})]


class Coordinator:
    """One that knows nothing but the name of its model; all else it learns from the server."""

    def __init__(self, address: str, optimizer) -> None:
        self.client = sa.Client(address)
        self.model = self.client.model("job", tensors=TENSORS, optimizer=optimizer)

    def steps(self, version: int):
        """Makes a version in several calls, and stops after each."""
        spec = self.model.round_spec("sum")
        rnd = self.client.create_round(spec, f"job-{version}")
        yield
        rnd.submit("client", update_of(version), submission_id="only")
        yield
        rnd.start_merge()
        rnd.wait()
        yield
        self.model.apply(rnd, base_version=version - 1)
        yield
        rnd.delete()


@pytest.mark.parametrize("optimizer", [FedAdam(learning_rate=0.1), FedYogi(beta_1=0.5)], ids=["adam", "yogi"])
def test_interrupted_run_has_the_bits_of_an_undisturbed_one(start_server, tmp_path, optimizer):
    undisturbed = Coordinator(start_server().address, optimizer)
    for version in range(1, VERSIONS + 1):
        for _ in undisturbed.steps(version):
            pass
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    flags = ("--data-dir", str(tmp_path / "data"))
    server = start_server(*flags)
    mine = Coordinator(server.address, optimizer)
    kills = 0
    while mine.model.refresh().version < VERSIONS:
        steps, stop = mine.steps(mine.model.info.version + 1), int(rng.integers(0, 6))
        for at, _ in enumerate(steps):
            if at == stop:
                mine.client.close()
                server.kill()
                server, kills = start_server(*flags), kills + 1
                mine = Coordinator(server.address, optimizer)  # reads the version that was reached
                break
    assert kills > 2
    assert rows_of(mine.model) == rows_of(undisturbed.model)
    assert mine.model.info.tensors["emb"].num_touched == undisturbed.model.refresh().tensors["emb"].num_touched
    for each in (mine, undisturbed):
        each.client.close()
