"""A recommender of a million items that 200 clients train asynchronously, each with the rows of its own items.

The item embedding, 10⁶ × 64, lives on a server. Whenever a client is ready, it reads the rows of the items that it has
seen, at the version that it knows, trains on them, and submits what it has changed. Every 20 updates make a version, in
which older ones count less, and FedAdam moves the rows on the server. A client's taste is the mean of the rows that it
liked; the score of an item is its product with that.

The run is made three times. Each version gets the same updates, which arrive in another order: the models have the same
bits. Needs NumPy, and matplotlib for --plot.

    python examples/model_recommender.py [--server HOST:PORT] [--versions 50] [--plot FILE]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import time
import uuid

import numpy as np
import sparseagg as sa
from sparseagg.optimizers import FedAdam

NUM_ITEMS, WIDTH = 1_000_000, 64
NUM_CLIENTS, BUFFER, MAX_STALENESS = 200, 20, 4
NUM_GROUPS, GROUP_ITEMS = 20, 500  # tastes, and the items that one is about
LIKED, OTHERS, HELD_OUT = 60, 120, 20
SEED, STEPS, RATE = 7, 4, 1.0


@dataclasses.dataclass
class Data:
    """What one client has seen: item ids, and whether it liked them."""

    items: np.ndarray
    liked: np.ndarray
    held_items: np.ndarray
    held_liked: np.ndarray


def make_data(client: int, groups: np.ndarray) -> Data:
    """Items of the client's group are liked; others, of all groups and of the whole catalogue, are not."""
    rng = np.random.default_rng([SEED, client])
    group = client % NUM_GROUPS
    popularity = 1 / np.arange(1, GROUP_ITEMS + 1) ** 0.7
    liked = rng.choice(groups[group], LIKED + HELD_OUT, replace=False, p=popularity / popularity.sum())
    known = np.setdiff1d(groups, groups[group])
    others = np.concatenate([rng.choice(known, OTHERS // 2 + HELD_OUT), rng.integers(0, NUM_ITEMS, OTHERS // 2)])
    held = np.concatenate([liked[LIKED:], others[:HELD_OUT]])
    seen = np.concatenate([liked[:LIKED], others[HELD_OUT:]])
    return Data(
        seen,
        np.arange(len(seen)) < LIKED,
        held,
        np.arange(len(held)) < HELD_OUT,
    )


def losses(scores: np.ndarray, liked: np.ndarray) -> np.ndarray:
    """The logistic loss of each score."""
    return np.logaddexp(0, np.where(liked, -scores, scores))


class Client:
    """One client and its data."""

    def __init__(self, number: int, groups: np.ndarray) -> None:
        self.name = f"client-{number:03d}"
        self.data = make_data(number, groups)
        self.keys, self.at = np.unique(self.data.items, return_inverse=True)

    def train(self, rows: np.ndarray) -> np.ndarray:
        """A few steps on its rows; returns their differences."""
        new = rows.astype(np.float64)
        liked = self.at[self.data.liked]
        for _ in range(STEPS):
            taste = new[liked].mean(axis=0)
            errors = 1 / (1 + np.exp(-new[self.at] @ taste)) - self.data.liked
            gradient = np.zeros_like(new)
            np.add.at(gradient, self.at, errors[:, None] * taste)
            np.add.at(gradient, liked, errors @ new[self.at] / len(liked))
            new -= RATE * gradient
        return (new - rows).astype(np.float32)


@dataclasses.dataclass
class Run:
    """What one run has shown."""

    seconds: list[float]
    losses: list[float]
    bytes_down: int
    bytes_up: int
    digest: str


def run(server: sa.Client, versions: int, order: int) -> Run:
    """Trains one model; ``order`` is the seed of the order in which the updates of a version arrive."""
    groups = np.random.default_rng(SEED).choice(NUM_ITEMS, (NUM_GROUPS, GROUP_ITEMS), replace=False)
    clients = [Client(number, groups) for number in range(NUM_CLIENTS)]
    spec = sa.RoundSpec([sa.TensorSpec("items", "float32", num_rows=NUM_ITEMS, row_width=WIDTH)], op="coordinate_mean")
    name = f"recommender-{uuid.uuid4().hex[:8]}"
    stream = server.create_stream(
        spec, buffer=BUFFER, staleness=sa.staleness.polynomial(0.5), max_staleness=MAX_STALENESS, stream_id=name
    )
    items = sa.Rows(WIDTH, num_rows=NUM_ITEMS, init=sa.init.uniform(0.1, seed=SEED))
    model = server.model(name, tensors={"items": items}, stream=stream, optimizer=FedAdam(learning_rate=0.03))
    found = Run([0.0], [held_out_loss(model, clients)], 0, 0, "")
    schedule, arrival = np.random.default_rng([SEED, 2]), np.random.default_rng(order)
    evaluation, begun = 0.0, time.monotonic()

    def take_part(client: Client, base: int) -> None:
        (rows,) = model.read({"items": client.keys}, version=base)
        change = client.train(rows)
        stream.submit(client.name, {"items": (client.keys, change)}, base_version=base)
        found.bytes_down += rows.nbytes
        found.bytes_up += change.nbytes + 4 * len(client.keys)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for version in range(versions):
            ready = schedule.choice(NUM_CLIENTS, BUFFER, replace=False)
            lags = schedule.integers(0, MAX_STALENESS + 1, BUFFER)  # how long ago each client has begun
            todo = [(clients[c], max(0, version - lag)) for c, lag in zip(ready, lags.tolist())]
            list(pool.map(lambda each: take_part(*each), [todo[i] for i in arrival.permutation(BUFFER)]))
            while model.info.version <= version:
                model.wait(version)
            paused = time.monotonic()
            found.losses.append(held_out_loss(model, clients))
            evaluation += time.monotonic() - paused
            found.seconds.append(time.monotonic() - begun - evaluation)
    keys, rows = model.changes(0)[1]["items"]
    found.digest = hashlib.sha256(keys.tobytes() + rows.tobytes()).hexdigest()[:16]
    model.delete()
    stream.delete()
    return found


def held_out_loss(model: sa.Model, clients: list[Client]) -> float:
    """The mean loss of all clients on what they have not trained on."""
    wanted = [np.concatenate([each.data.items[each.data.liked], each.data.held_items]) for each in clients]
    (rows,) = model.read({"items": np.concatenate(wanted)})
    each = [
        losses(part[LIKED:] @ part[:LIKED].mean(axis=0), client.data.held_liked).mean()
        for client, part in zip(clients, np.split(rows.astype(np.float64), len(clients)))
    ]
    return float(np.mean(each))


def plot(found: Run, file: str) -> None:
    """Writes loss against time, and the bytes of a client beside those of whole models."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2))
    left.plot(found.seconds, found.losses)
    left.set(xlabel="seconds", ylabel="held-out loss", title="200 clients, 10⁶ × 64, asynchronously")
    parts = (len(found.losses) - 1) * BUFFER
    names = ["down", "up", "down, whole", "up, whole"]
    whole = NUM_ITEMS * WIDTH * 4 / 1e6
    values = [found.bytes_down / parts / 1e6, found.bytes_up / parts / 1e6, whole, whole]
    right.barh(names[::-1], values[::-1])
    right.set(xscale="log", xlabel="MB each time that a client takes part", title="bytes")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    """Runs three orders of arrival, and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", default=":local:", help="host:port; by default one is started")
    parser.add_argument("--versions", type=int, default=50)
    parser.add_argument("--plot", help="file for the plot")
    options = parser.parse_args()
    with sa.Client(options.server) as server:
        runs = [run(server, options.versions, order) for order in range(3)]
    parts, whole = options.versions * BUFFER, NUM_ITEMS * WIDTH * 4
    first = runs[0]
    print(f"held-out loss  {first.losses[0]:.4f} → {first.losses[-1]:.4f} in {first.seconds[-1]:.1f} s")
    print(f"down, up       {first.bytes_down / parts / 1e3:.0f} and {first.bytes_up / parts / 1e3:.0f} KB for a client")
    print(f"whole models   {whole / 1e3:.0f} and {whole / 1e3:.0f} KB")
    print(f"three orders   {' '.join(each.digest for each in runs)}")
    if options.plot:
        plot(first, options.plot)
    print(json.dumps({"digests": [each.digest for each in runs], "loss": first.losses[-1]}))


if __name__ == "__main__":
    main()
