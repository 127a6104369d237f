"""A recommender of a million items that 200 clients train asynchronously, each with the rows of its own items.

The item embedding, 10⁶ × 64, lives on a server. Whenever a client is ready, it reads the rows of the items that it has
seen, at the version that it knows, trains on them, and submits what it has changed. Every 20 updates make a version, in
which older ones count less, and FedAdam moves the rows on the server. A client's taste is the mean of the rows that it
liked; the score of an item is its product with that.

40 clients train at any time. Some are slow: their speeds are log-normal, and a simulated clock says who is ready when.
Beside it, synchronous rounds of 40 clients wait for the slowest one of each.

The asynchronous run is made three times. Each version gets the same updates, which arrive in another order: the models
have the same bits. Needs NumPy, and matplotlib for --plot.

    python examples/model_recommender.py [--server HOST:PORT] [--versions 50] [--plot FILE]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import heapq
import json
import time
import uuid

import numpy as np
import sparseagg as sa
from sparseagg.optimizers import FedAdam

NUM_ITEMS, WIDTH = 1_000_000, 64
NUM_CLIENTS, CONCURRENCY, BUFFER, MAX_STALENESS = 200, 40, 20, 20
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
class Version:
    """What a version is made of, and when it is there."""

    time: float  # simulated; 1 is what a client of median speed takes
    parts: list[tuple[int, int]]  # a client, and the version that it trains on


def training_times() -> np.ndarray:
    """How long each client trains: one in 20 takes 3.6 or more, the slowest 8.1."""
    return np.random.default_rng([SEED, 1]).lognormal(sigma=0.75, size=NUM_CLIENTS)


def asynchronous(num_versions: int) -> list[Version]:
    """Each client that is ready is followed by another one at once."""
    rng, times = np.random.default_rng([SEED, 2]), training_times()
    idle, busy, now = list(range(NUM_CLIENTS)), [], 0.0
    versions: list[Version] = []
    while len(versions) < num_versions:
        parts: list[tuple[int, int]] = []
        while len(parts) < BUFFER:
            while len(busy) < CONCURRENCY:
                client = idle.pop(rng.integers(len(idle)))
                heapq.heappush(busy, (now + times[client], client, len(versions)))
            now, client, base = heapq.heappop(busy)
            parts.append((client, base))
        idle += [client for client, _ in parts]  # in a version once, whose order of updates then changes no bit
        versions.append(Version(now, parts))
    return versions


def synchronous(num_rounds: int) -> list[Version]:
    """Each round begins when the last client of the round before is ready."""
    rng, times = np.random.default_rng([SEED, 2]), training_times()
    rounds: list[Version] = []
    for number in range(num_rounds):
        clients = rng.choice(NUM_CLIENTS, CONCURRENCY, replace=False).tolist()
        begun = rounds[-1].time if rounds else 0.0
        rounds.append(Version(begun + times[clients].max(), [(client, number) for client in clients]))
    return rounds


@dataclasses.dataclass
class Run:
    """What one run has shown."""

    times: list[float]
    losses: list[float]
    seconds: float = 0.0  # of the machine, without evaluation
    bytes_down: int = 0
    bytes_up: int = 0
    digest: str = ""


def run(server: sa.Client, versions: list[Version], order: int) -> Run:
    """Trains one model; ``order`` is the seed of the order in which the updates of a version arrive."""
    groups = np.random.default_rng(SEED).choice(NUM_ITEMS, (NUM_GROUPS, GROUP_ITEMS), replace=False)
    clients = [Client(number, groups) for number in range(NUM_CLIENTS)]
    spec = sa.RoundSpec([sa.TensorSpec("items", "float32", num_rows=NUM_ITEMS, row_width=WIDTH)], op="coordinate_mean")
    name = f"recommender-{uuid.uuid4().hex[:8]}"
    stream = server.create_stream(
        spec,
        buffer=len(versions[0].parts),
        staleness=sa.staleness.polynomial(0.5),
        max_staleness=MAX_STALENESS,
        stream_id=name,
    )
    items = sa.Rows(WIDTH, num_rows=NUM_ITEMS, init=sa.init.uniform(0.1, seed=SEED))
    model = server.model(name, tensors={"items": items}, stream=stream, optimizer=FedAdam(learning_rate=0.03))
    found, arrival = Run([0.0], [held_out_loss(model, clients)]), np.random.default_rng(order)

    def take_part(client: Client, base: int) -> None:
        (rows,) = model.read({"items": client.keys}, version=base)
        change = client.train(rows)
        stream.submit(client.name, {"items": (client.keys, change)}, base_version=base)
        found.bytes_down += rows.nbytes
        found.bytes_up += change.nbytes + 4 * len(client.keys)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for number, version in enumerate(versions):
            begun = time.monotonic()
            parts = [version.parts[i] for i in arrival.permutation(len(version.parts))]
            list(pool.map(lambda part: take_part(clients[part[0]], part[1]), parts))
            while model.info.version <= number:
                model.wait(number)
            found.seconds += time.monotonic() - begun
            found.times.append(version.time)
            found.losses.append(held_out_loss(model, clients))
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


def plot(found: Run, rounds: Run, num_updates: int, file: str) -> None:
    """Writes loss against time, and the bytes of a client beside those of whole models."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2))
    left.plot(found.times, found.losses, label="a stream")
    left.plot(rounds.times, rounds.losses, label="synchronous rounds")
    left.set(xlabel="time (1: a client of median speed trains)", ylabel="held-out loss", title=f"{num_updates} updates")
    left.legend()
    names = ["down", "up", "down, whole", "up, whole"]
    whole = NUM_ITEMS * WIDTH * 4 / 1e6
    values = [found.bytes_down / num_updates / 1e6, found.bytes_up / num_updates / 1e6, whole, whole]
    right.barh(names[::-1], values[::-1])
    right.set(xscale="log", xlabel="MB each time that a client takes part", title="bytes")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    """Runs three orders of arrival and synchronous rounds, and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", default=":local:", help="host:port; by default one is started")
    parser.add_argument("--versions", type=int, default=50, help="of 20 updates; there are half as many rounds of 40")
    parser.add_argument("--plot", help="file for the plot")
    options = parser.parse_args()
    with sa.Client(options.server) as server:
        runs = [run(server, asynchronous(options.versions), order) for order in range(3)]
        rounds = run(server, synchronous(options.versions * BUFFER // CONCURRENCY), 0)
    num_updates, whole = options.versions * BUFFER, NUM_ITEMS * WIDTH * 4
    first = runs[0]
    reached = next((at for at, loss in zip(first.times, first.losses) if loss <= rounds.losses[-1]), None)
    print(f"stream         {first.losses[0]:.4f} → {first.losses[-1]:.4f} at time {first.times[-1]:.1f}")
    print(f"rounds         {rounds.losses[0]:.4f} → {rounds.losses[-1]:.4f} at time {rounds.times[-1]:.1f}")
    print(f"that loss      {'is not reached by the stream' if reached is None else f'by the stream at {reached:.1f}'}")
    print(f"this machine   {num_updates} updates in {first.seconds:.1f} s")
    down, up = (number / num_updates / 1e3 for number in (first.bytes_down, first.bytes_up))
    print(f"down, up       {down:.0f} and {up:.0f} KB for a client")
    print(f"whole models   {whole / 1e3:.0f} and {whole / 1e3:.0f} KB")
    print(f"three orders   {' '.join(each.digest for each in runs)}")
    if options.plot:
        plot(first, rounds, num_updates, options.plot)
    times = {"stream": first.times[-1], "rounds": rounds.times[-1]}
    print(json.dumps({"digests": [each.digest for each in runs], "loss": first.losses[-1], "times": times}))


if __name__ == "__main__":
    main()
