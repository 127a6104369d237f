"""What the Flower examples share: words of clients, a ClientApp, and three strategies measured in one simulation.

Strategies are Flower's own FedAvg, and SparseFedAvg with op="mean" and with op="coordinate_mean", whose models are on a
sparseagg server: a client reads the rows of its own words, and sends them there. All clients train in every round, so
that the strategies train on the same batches.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import dataclasses
import gc
import json
import os
import pathlib
import re
import shlex
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import sparseagg as sa
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sparseagg._internal.commands.demo import corpus
from sparseagg.flower import SparseFedAvg, sparse_mod

VOCABULARY, WORDS_OF_CLIENT, LEARNING_RATE, BATCH, SEED = 12_000, 3000, 0.1, 128, 26
RARE, FREQUENT = (1, 3), (0.5, 1.0)  # numbers of clients that use a word; fractions of them


@dataclasses.dataclass(frozen=True)
class Words:
    """Words as their ranks by frequency in the whole text.

    Attributes:
        train: by client.
        held_out: the last tenth of each client's words.
        counts: of each word, in the training words of all clients.
        users: of each word: the number of clients that train with it.
        known: number of words of the whole text, also of those who are no clients.
    """

    train: list[np.ndarray]
    held_out: list[np.ndarray]
    counts: np.ndarray
    users: np.ndarray
    known: int


@dataclasses.dataclass(frozen=True)
class Task:
    """What an example learns.

    Attributes:
        title: of the plot.
        sparse: names of the model's tables.
        make_model: of the number of words.
        loss: mean loss of the model on some windows of words.
        held_out_losses: the loss of each window, and the word that it is about, of model, windows, and counts of words.
        window: words of a window.
    """

    title: str
    sparse: list[str]
    make_model: Callable[[int], torch.nn.Module]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    held_out_losses: Callable[[Any, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    window: int


def load_words(source: str | None, clients: int) -> Words:
    """Reads the texts of ``corpus.load``; the longest ones are the clients, each with so many words at most."""
    loaded = corpus.load(source)
    texts = {
        text.name: [re.sub(r"\W$", "", token).lower() for token in text.tokens]
        for text in [*loaded.clients, *loaded.held_out]
    }
    total = collections.Counter(word for words in texts.values() for word in words)
    ranks = {word: i for i, word in enumerate(sorted(total, key=lambda word: (-total[word], word))[:VOCABULARY])}
    longest = sorted(texts, key=lambda name: (-len(texts[name]), name))[:clients]
    coded = [np.array([ranks[word] for word in texts[name] if word in ranks][:WORDS_OF_CLIENT]) for name in longest]
    train = [words[: len(words) * 9 // 10] for words in coded]
    counts, users = np.zeros((2, len(ranks)), np.int64)
    for words in train:
        counts += np.bincount(words, minlength=len(ranks))
        users[np.unique(words)] += 1
    held_out = [words[len(words) * 9 // 10 :] for words in coded]
    return Words(train, held_out, counts, users, len(ranks))


def windows(words: np.ndarray, size: int) -> torch.Tensor:
    """Returns all windows of consecutive words."""
    return torch.from_numpy(np.lib.stride_tricks.sliding_window_view(words, size).copy())


def make_client_app(task: Task, known: int, folder: pathlib.Path) -> ClientApp:
    """The same app for all strategies: with Flower's own ones, the mod does nothing."""

    def rows_for(context: Context) -> dict[str, Any]:
        words = np.load(folder / f"{context.node_config['partition-id']}.npy")
        return dict.fromkeys(task.sparse, words)

    app = ClientApp(mods=[sparse_mod(rows_for=rows_for)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        warnings.filterwarnings("ignore", "Sparse invariant checks")  # torch's, of each sparse gradient
        torch.set_num_threads(1)
        partition, config = int(context.node_config["partition-id"]), message.content["config"]
        state = message.content["arrays"].to_torch_state_dict()
        words, traffic = np.load(folder / f"{partition}.npy"), {}
        if len(state) > len(state := {name: each for name, each in state.items() if not name.endswith(":keys")}):
            used, words = np.unique(words, return_inverse=True)  # the tables have the rows of its own words alone
            read = sum(each.nbytes for each in state.values())
            traffic = {"read": read, "sent": read + len(task.sparse) * 4 * len(used)}
        model = task.make_model(len(state[task.sparse[0]]))
        model.load_state_dict(state)
        examples = windows(words, task.window)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=LEARNING_RATE)
        order = np.random.default_rng([SEED, partition, config["server-round"]]).permutation(len(examples))
        for batch in np.array_split(order, max(1, len(order) // BATCH)):
            optimizer.zero_grad()
            task.loss(model, examples[torch.from_numpy(batch)]).backward()
            optimizer.step()
        arrays = ArrayRecord(model.state_dict())
        metrics = MetricRecord({"num-examples": len(examples), **traffic})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


class Meter:
    """Measures a strategy from the begin of each round to the end of its aggregation.

    Attributes:
        seconds: of each round.
        sent, received: bytes of each round's messages to and from all clients, as Flower counts them, and of the rows
            and keys that these read from the server and send to it.
        peak_bytes: the most resident memory of this process and the server, above the least at the begin of a round.
    """

    def __init__(self, strategy: Any, grid: Any, server: int) -> None:
        self.seconds: list[float] = []
        self.sent: list[int] = []
        self.received: list[int] = []
        self.peak_bytes: int | None = None
        self._configure, self._aggregate = strategy.configure_train, strategy.aggregate_train
        # Of the class: the grid's own functions, not those of the strategy before.
        self._push, self._pull = type(grid).push_messages, type(grid).pull_messages
        strategy.configure_train, strategy.aggregate_train = self._begin, self._end
        grid.push_messages = lambda messages: self._count_sent(grid, list(messages))
        grid.pull_messages = lambda message_ids: self._count_received(grid, message_ids)
        self._peak, self._least = 0, sys.maxsize
        self._processes = "self", server

    def _begin(self, *args: Any) -> Any:
        self.sent.append(0)
        self.received.append(0)
        _release_memory()
        resident = _resident_bytes("VmRSS", self._processes)
        if resident is not None:
            self._least = min(self._least, resident)
        _reset_peak(self._processes)
        self.seconds.append(-time.perf_counter())
        return self._configure(*args)

    def _end(self, *args: Any) -> Any:
        result = self._aggregate(*args)
        self.seconds[-1] += time.perf_counter()
        peak = _resident_bytes("VmHWM", self._processes)
        if peak is not None:
            self._peak = max(self._peak, peak)
            self.peak_bytes = self._peak - self._least
        return result

    def _count_sent(self, grid: Any, messages: list[Message]) -> Any:
        self.sent[-1] += sum(map(_size, messages))
        return self._push(grid, messages)

    def _count_received(self, grid: Any, message_ids: Any) -> Any:
        replies = list(self._pull(grid, message_ids))
        self.received[-1] += sum(map(_size, replies))
        for reply in replies:
            metrics = reply.content["metrics"] if reply.has_content() else {}
            self.sent[-1] += metrics.get("read", 0)
            self.received[-1] += metrics.get("sent", 0)
        return replies


def _size(message: Message) -> int:
    return sum(record.count_bytes() for record in message.content.values()) if message.has_content() else 0


def _resident_bytes(field: str, processes: Iterable[Any]) -> int | None:
    files = [pathlib.Path(f"/proc/{process}/status") for process in processes]  # Linux only
    texts = [file.read_text("utf-8") for file in files if file.exists()]
    found = [match for text in texts if (match := re.search(rf"{field}:\s+(\d+) kB", text))]
    return sum(int(match[1]) * 1024 for match in found) if len(found) == len(files) else None


def _reset_peak(processes: Iterable[Any]) -> None:
    for file in [pathlib.Path(f"/proc/{process}/clear_refs") for process in processes]:
        if file.exists():
            file.write_text("5", "utf-8")


def _release_memory() -> None:
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def compare(task: Task, words: Words, rounds: int) -> dict[str, Any]:
    """Trains with each strategy, in one simulation, and returns what was measured of each."""
    found: dict[str, Any] = {}
    examples = torch.cat([windows(part, task.window) for part in words.held_out if len(part) >= task.window])
    counts = torch.from_numpy(words.counts)
    clients = len(words.train)
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Context) -> None:
        model = task.make_model(words.known)

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            state = arrays.to_torch_state_dict()
            if not state:  # no arrays travel through Flower
                rows = served.read(dict.fromkeys(initial, ...))
                state = dict(zip(initial, map(torch.from_numpy, rows)))
            model.load_state_dict(state)
            with torch.no_grad():
                losses, of_words = task.held_out_losses(model, examples, counts)
            users = words.users[of_words.numpy()]
            groups = {
                "all": users >= 0,
                "rare": (users >= RARE[0]) & (users <= RARE[1]),
                "frequent": users >= FREQUENT[0] * clients,
            }
            return MetricRecord({name: float(losses.numpy()[mask].mean()) for name, mask in groups.items()})

        torch.manual_seed(SEED)
        initial = {name: tensor.numpy() for name, tensor in task.make_model(words.known).state_dict().items()}
        everyone = {"min_train_nodes": clients, "min_available_nodes": clients, "fraction_evaluate": 0.0}
        with sa.Server() as server, sa.Client(server.address) as client:
            # Once unmeasured, while the processes of clients start and import torch.
            served = client.model("first", tensors=initial)
            SparseFedAvg(model=served, rows_down="used", **everyone).start(grid, ArrayRecord(), num_rounds=1)
            # FedAvg is the last one: what it leaves behind does not count as another's memory.
            for name in ("SparseFedAvg mean", "SparseFedAvg coordinate_mean", "FedAvg"):
                if name == "FedAvg":
                    strategy = FedAvg(**everyone)
                    arrays = ArrayRecord({each: Array(array) for each, array in initial.items()})
                else:
                    op = name.split()[1]
                    served = client.model(op, tensors=initial)
                    strategy = SparseFedAvg(model=served, rows_down="used", op=op, **everyone)
                    arrays = ArrayRecord()
                meter = Meter(strategy, grid, server.pid)
                result = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)
                found[name] = _figures(meter, result)
                del result, arrays

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for partition, part in enumerate(words.train):
            np.save(folder / f"{partition}.npy", part)
        client = make_client_app(task, words.known, folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            run_simulation(app, client, clients, backend_config={"client_resources": {"num_cpus": 1}})
    if len(found) < 3:
        raise RuntimeError("the simulation has failed; the log above says why")
    return found


def _figures(meter: Meter, result: Any) -> dict[str, Any]:
    evaluations = result.evaluate_metrics_serverapp
    return {
        "held_out_loss": {
            group: [round(evaluations[i][group], 5) for i in sorted(evaluations)]
            for group in ("all", "rare", "frequent")
        },
        "up_mb": [round(size / 1e6, 3) for size in meter.received],
        "down_mb": [round(size / 1e6, 3) for size in meter.sent],
        "round_s": [round(seconds, 3) for seconds in meter.seconds],
        "server_memory_mb": None if meter.peak_bytes is None else round(meter.peak_bytes / 1e6, 1),
    }


def plot(path: pathlib.Path, title: str, found: dict[str, Any]) -> None:
    """Draws the losses, and what they cost, as a PNG. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3)
    styles = {"FedAvg": ("black", ":", 3.5), "SparseFedAvg mean": ("tab:blue", "-", 1.5)}
    titles = {
        "all": "All words",
        "rare": f"Words of {RARE[0]} to {RARE[1]} clients",
        "frequent": "Words of half of the clients or more",
    }
    for name, figures in sorted(found.items()):
        color, line, width = styles.get(name, ("tab:orange", "-", 1.5))
        drawn = {"color": color, "linestyle": line, "linewidth": width, "label": name}
        for column, group in enumerate(titles):
            axes[0, column].plot(figures["held_out_loss"][group], **drawn)
        numbers = range(1, len(figures["up_mb"]) + 1)
        axes[1, 0].plot(numbers, np.add(figures["up_mb"], figures["down_mb"]), **drawn)
        axes[1, 1].plot(numbers, figures["round_s"], **drawn)
        if figures["server_memory_mb"] is not None:
            bar = axes[1, 2].barh([name.replace(" ", "\n")], [figures["server_memory_mb"]], color=color)
            axes[1, 2].bar_label(bar, fmt="%.0f", padding=3)
    for column, group in enumerate(titles):
        axes[0, column].set(title=titles[group], xlabel="round", ylabel="held-out loss, nats")
    axes[1, 0].set(title="Bytes both ways, all clients", xlabel="round", ylabel="MB", yscale="log")
    axes[1, 1].set(title="Time of a round", xlabel="round", ylabel="s", ylim=(0, None))
    axes[1, 2].set(title="Memory of the server in a round", xlabel="MB")
    axes[1, 2].margins(x=0.15)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(found))
    for each in axes.flat[:5]:
        each.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=100)


def run(task: Task, name: str) -> None:
    """The examples' command."""
    parser = argparse.ArgumentParser(description=f"{task.title}, sparse and dense, under Flower.")
    parser.add_argument("text", nargs="?", help="a play with `Name:` speeches, or a folder; without: Python's sources")
    parser.add_argument("--clients", type=int, default=24, help="the longest texts")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=pathlib.Path, help=f"folder for {name}.png and {name}.json")
    options = parser.parse_args()
    begin = time.perf_counter()
    words = load_words(options.text, options.clients)
    found = {
        "command": shlex.join(["python", f"examples/{name}.py", *sys.argv[1:]]),
        "clients": len(words.train),
        "vocabulary": words.known,
        "training_words": int(words.counts.sum()),
        "seed": SEED,
        "strategies": compare(task, words, options.rounds),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    line = json.dumps(found)
    print(line)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{name}.json").write_text(line + "\n", encoding="utf-8")
        title = f"{task.title}: {len(words.train)} clients, {words.known:,} words"
        plot(options.out / f"{name}.png", title, found["strategies"])
