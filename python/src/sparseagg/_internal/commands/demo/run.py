"""The demo from beginning to end, with its table."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sparseagg._internal.client.blocking_client import Client, Round
from sparseagg._internal.client.progress import ProgressBar
from sparseagg._internal.commands.demo import corpus
from sparseagg._internal.commands.demo.corpus import learn_vocabulary
from sparseagg._internal.commands.demo.model import ClientData, HeldOut, Model, Submitted, client_gradient, differences
from sparseagg._internal.commands.parser import put
from sparseagg._internal.local.server import Server
from sparseagg._internal.results.result import Result
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg.cluster import Cluster, ClusterRound
from sparseagg.errors import InvalidArgumentError, SparseaggError

# The round that is checked: the first one whose gradient has no rows of zeros in either table.
_CHECKED_ROUND = 2


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the demo, which are the command's flags."""

    server: str | None = None
    address: str | None = None
    corpus: str | None = None
    out: str = "out/demo"
    rounds: int = 12
    clients: int | None = None
    vocabulary: int = 25_000
    width: int = 32
    pairs: int = 2000
    concurrency: int = 4
    learning_rate: float = 0.1
    seed: int = 0
    servers: int = 1


_QUICK: dict[str, Any] = {"rounds": 3, "clients": 40, "vocabulary": 2000, "pairs": 400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the demo's flags to the command."""
    default = Options()
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--server", metavar="PATH", help="the sparseagg-server to start for the demo (default: the installed one)"
    )
    where.add_argument("--address", metavar="HOST:PORT", help="use this running server instead")
    parser.add_argument(
        "--corpus",
        metavar="PATH",
        help="a folder, with a client for each file, or a play with 'Name:' speeches, with a client for each speaker "
        "(default: the sources of Python's standard library)",
    )
    parser.add_argument(
        "--out",
        default=default.out,
        metavar="DIR",
        help="folder for the directories of the servers (default: %(default)s)",
    )
    parser.add_argument(
        "--servers", type=int, help="start so many servers; clients submit to their home servers (default: 1)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a run of seconds: " + " ".join(f"--{name} {value}" for name, value in _QUICK.items()),
    )
    parser.add_argument("--rounds", type=int, help=f"training rounds (default: {default.rounds})")
    parser.add_argument("--clients", type=int, help="number of clients at most (default: all)")
    parser.add_argument("--vocabulary", type=int, help=f"number of tokens at most (default: {default.vocabulary})")
    parser.add_argument("--width", type=int, help=f"values of an embedding (default: {default.width})")
    parser.add_argument(
        "--pairs", type=int, help=f"training examples of one client in a round at most (default: {default.pairs})"
    )
    parser.add_argument(
        "--concurrency", type=int, help=f"clients that work at the same time (default: {default.concurrency})"
    )
    parser.add_argument("--learning-rate", type=float, help=f"learning rate (default: {default.learning_rate})")
    parser.add_argument("--seed", type=int, help=f"seed of initial values and samples (default: {default.seed})")


def main(arguments: argparse.Namespace) -> int:
    """Runs the demo as the command asks, and returns the exit status."""
    given = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(Options)}
    options = Options(**{**(_QUICK if arguments.quick else {}), **{k: v for k, v in given.items() if v is not None}})
    try:
        return run(options)
    except (OSError, RuntimeError, ValueError, SparseaggError) as error:
        put(*f"sparseagg: demo: {error}".splitlines(), to=sys.stderr)
        return 1


def run(options: Options) -> int:
    """Runs the demo; returns 0 if everything agrees, else 1. The last line printed is a JSON object."""
    if options.rounds < 1:
        raise InvalidArgumentError(f"rounds must be a number from 1 on, got {options.rounds}")
    if options.servers < 1:
        raise InvalidArgumentError(f"servers must be a number from 1 on, got {options.servers}")
    if options.servers > 1 and options.address is not None:
        raise InvalidArgumentError(f"servers {options.servers} does not go with the address of a server")
    start = time.perf_counter()
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        addresses = [options.address] if options.address is not None else []
        while len(addresses) < options.servers:
            name = f"server-{len(addresses)}" if options.servers > 1 else "server"
            addresses.append(stack.enter_context(Server(out / name, program=options.server)).address)
        texts = corpus.load(options.corpus, options.clients)
        client = stack.enter_context(Client(addresses[0]))
        cluster = stack.enter_context(Cluster(addresses)) if options.servers > 1 else None
        summary = _train(options, texts, client, cluster)
    summary["seconds"] = round(time.perf_counter() - start, 1)
    problems = summary.pop("problems")
    for problem in problems:
        put(f"sparseagg: demo: {problem}", to=sys.stderr)
    put(f"time        {summary['seconds']} s, from the start of the server to its end", "", json.dumps(summary))
    return 1 if problems else 0


def _train(
    options: Options,
    texts: corpus.Corpus,
    client: Client,
    cluster: Cluster | None,
) -> dict[str, Any]:
    server = client.server_info()
    num_tokens = sum(len(text.tokens) for text in texts.clients)
    put(f"server      {client.address}, version {server.version}, {server.engine_description}")
    if cluster is not None:
        put(f"cluster     {' '.join(cluster.addresses)}; ranges of keys are merged in this process")
    put(f"corpus      {texts.description}: {num_tokens} tokens of {len(texts.clients)} clients", flush=True)

    vocabulary, counting, num_shared = learn_vocabulary(client, texts.clients, options.vocabulary, options.concurrency)
    put(
        f"vocabulary  {counting.num_tuples} hashed counts in; {num_shared} tokens that two clients or more use out; "
        f"the {len(vocabulary)} most frequent kept"
    )
    model = Model(vocabulary, options.width, options.learning_rate, options.seed)
    held_out = HeldOut(model, [vocabulary.encode(text.tokens) for text in texts.held_out], options.seed)
    coordinator = Coordinator(
        cluster or client,
        model=model,
        names=[text.name for text in texts.clients],
        data=[ClientData.of(vocabulary.encode(text.tokens)) for text in texts.clients],
        max_pairs=options.pairs,
        concurrency=options.concurrency,
        seed=options.seed,
    )
    losses = [held_out.loss(model)]
    put(f"training    {options.width} wide, held-out loss {losses[0]:.4f} before the first round", "")
    put(*table_header().split("\n"), flush=True)

    reports = []
    used: set[int] = set()
    checked_round = min(_CHECKED_ROUND, options.rounds)
    for number in range(1, options.rounds + 1):
        label = f"round {number}/{options.rounds}"
        round_report, result, updates = coordinator.run_round(number, label, keep=number == checked_round)
        if number == checked_round:
            to_check = (updates, result)
        reports.append(round_report)
        losses.append(held_out.loss(model))
        used.update(*(tensor.keys.tolist() for tensor in result.values()))
        put(table_row(round_report, losses[-1]), flush=True)

    sparse = sum(r.bytes_sparse for r in reports)
    dense = sum(r.bytes_dense for r in reports)
    put("", f"upload      {sparse / 1e6:.0f} MB, {dense / sparse:.0f} times less than dense updates would take")
    put(f"check       round {checked_round} against the same mean in NumPy … ", end="", flush=True)
    differing = differences(*to_check)
    put("differs" if differing else "the same, bit for bit")
    problems = [f"round {checked_round} differs from the reference: {text}" for text in differing]
    if not losses[-1] < losses[0]:
        problems.append(f"the loss did not fall: {losses[0]} before, {losses[-1]} after")
    return {
        "rounds": len(reports),
        "clients": len(texts.clients),
        "tuples": sum(r.tuples for r in reports),
        "vocabulary": len(vocabulary),
        "vocabulary_used": len(used),
        "width": options.width,
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "bytes_sparse": sparse,
        "bytes_dense": dense,
        "reference_equal": not differing,
        "backend": server.engine,
        "problems": problems,
    }


# Title, width, the unit or explanation below the title, and how a ``RoundReport`` and its loss fill the cell.
_COLUMNS: tuple[tuple[str, int, str, Callable[[RoundReport, float], str]], ...] = (
    ("round", 5, "", lambda report, _: f"{report.number}"),
    ("clients", 7, "", lambda report, _: f"{report.clients}"),
    ("tuples in", 9, "", lambda report, _: f"{report.tuples}"),
    ("keys out", 8, "", lambda report, _: f"{report.keys}"),
    ("sparse", 8, "MB", lambda report, _: f"{report.bytes_sparse / 1e6:.1f}"),
    ("dense", 8, "MB", lambda report, _: f"{report.bytes_dense / 1e6:.1f}"),
    ("compute", 8, "ms, sum", lambda report, _: f"{report.compute_ms:.0f}"),
    ("upload", 8, "ms, sum", lambda report, _: f"{report.upload_ms:.0f}"),
    ("merge", 6, "ms", lambda report, _: f"{report.merge_ms:.0f}"),
    ("download", 8, "ms", lambda report, _: f"{report.download_ms:.0f}"),
    ("apply", 6, "ms", lambda report, _: f"{report.apply_ms:.0f}"),
    ("round", 7, "ms", lambda report, _: f"{report.wall_ms:.0f}"),
    ("held-out", 8, "loss", lambda _, loss: f"{loss:.4f}"),
)


def table_header() -> str:
    """Returns the head of the table: two lines and a rule."""
    titles = "  ".join(title.rjust(width) for title, width, *_ in _COLUMNS)
    units = "  ".join(unit.rjust(width) for _, width, unit, _ in _COLUMNS)
    return f"{titles}\n{units}\n{'─' * len(titles)}"


def table_row(report: RoundReport, loss: float) -> str:
    """Returns one round's line."""
    return "  ".join(cell(report, loss).rjust(width) for _, width, _, cell in _COLUMNS)


@dataclasses.dataclass(frozen=True)
class RoundReport:
    """The figures of a round; times are in milliseconds.

    ``compute_ms`` and ``upload_ms`` are summed over the clients, several of which work at the same time. ``merge_ms``
    is the server's time from the close to the result, ``wall_ms`` the time of the whole round.
    """

    number: int
    clients: int
    tuples: int
    keys: int
    bytes_sparse: int
    bytes_dense: int
    compute_ms: float
    upload_ms: float
    merge_ms: float
    download_ms: float
    apply_ms: float
    wall_ms: float


@dataclasses.dataclass
class Coordinator:
    """Trains ``model`` on the clients' texts through the server, or the servers of a cluster.

    A round takes the mean weighted by the number of examples, in which a client without a token counts as zero. This is
    exactly the gradient of the mean loss over the examples of all clients, as if all text were in one place. The
    gradient is small at rare tokens, for which Adagrad makes up: it divides by the size of past gradients.
    """

    client: Client | Cluster
    model: Model
    names: list[str]
    data: list[ClientData]
    max_pairs: int
    concurrency: int
    seed: int

    def __post_init__(self) -> None:
        tables = self.model.tables.items()
        self.spec = RoundSpec(
            tensors=[TensorSpec(name, dtype="float32", shape=table.shape) for name, table in tables],
            op="mean",
            weighting="by_weight",
            return_counts=True,
        )

    def run_round(
        self, number: int, label: str, *, keep: bool = False
    ) -> tuple[RoundReport, Result, dict[str, Submitted]]:
        """Runs round ``number``, from 1 on. Returns the submissions by client id, too, if ``keep``."""
        start = time.perf_counter()
        opened = self.client.create_round(self.spec)
        compute_s = upload_s = 0.0
        submitted: dict[str, Submitted] = {}
        with (
            ProgressBar(label, len(self.data), "clients") as bar,
            concurrent.futures.ThreadPoolExecutor(self.concurrency) as pool,
        ):
            parts = pool.map(lambda k: self._take_part(opened, number, k), range(len(self.data)))
            for name, (update, computed_s, uploaded_s) in zip(self.names, parts):
                compute_s, upload_s = compute_s + computed_s, upload_s + uploaded_s
                if keep and update is not None:
                    submitted[name] = update
                bar.advance()
        closing = time.perf_counter()
        result = opened.finish()
        merge_s = result.info.timeline.finish
        download_s = time.perf_counter() - closing - merge_s
        applying = time.perf_counter()
        keys = 0
        for name, tensor in result.items():
            if tensor.values is not None:
                self.model.apply(name, tensor.keys, tensor.values)
            keys += len(tensor)
        apply_s = time.perf_counter() - applying
        opened.delete()
        info = result.info
        row_bytes = sum(table.nbytes for table in self.model.tables.values())
        report = RoundReport(
            number=number,
            clients=info.num_submissions,
            tuples=info.num_tuples,
            keys=keys,
            bytes_sparse=info.num_bytes,
            bytes_dense=row_bytes * info.num_submissions,
            compute_ms=1e3 * compute_s,
            upload_ms=1e3 * upload_s,
            merge_ms=1e3 * merge_s,
            download_ms=1e3 * max(0.0, download_s),
            apply_ms=1e3 * apply_s,
            wall_ms=1e3 * (time.perf_counter() - start),
        )
        return report, result, submitted

    def _take_part(self, opened: Round | ClusterRound, number: int, k: int) -> tuple[Submitted | None, float, float]:
        """Runs client k's part of a round. Returns the submission, if its text has an example, and the seconds."""
        start = time.perf_counter()
        gradient = client_gradient(
            self.model, self.data[k], self.max_pairs, np.random.default_rng([self.seed, number, k])
        )
        computed = time.perf_counter()
        if gradient is None:
            return None, computed - start, 0.0
        tensors = {
            "input": (gradient.input_keys, gradient.input_rows),
            "output": (gradient.output_keys, gradient.output_rows),
        }
        update = tensors, float(gradient.num_pairs)
        opened.submit(self.names[k], *update)
        return update, computed - start, time.perf_counter() - computed
