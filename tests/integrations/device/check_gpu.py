"""Checks and times merges of arrays in a GPU's memory, with the libraries that make them. Needs a GPU; no pytest.

    python tests/integrations/device/check_gpu.py [--json FILE] [--only torch,cupy,jax,numba,times]

Needs sparseagg with its CUDA engine (SPARSEAGG_CUDA_PLUGIN names the library of a build), and takes about a minute.
Each library has a process of its own, in which it meets no other one's memory pool, and whose crash is one failure.
Prints a line for each check. Exit status: 1 if one failed. What is not installed is skipped, by name: torch,
cupy-cuda13x, jax[cuda13], numba-cuda[cu13].
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / name) for name in ("python", "support")]

import sparseagg as sa  # noqa: E402
from random_rounds import random_pools, random_spec, random_update, weight_for  # noqa: E402

SEEDS = range(10)
LIBRARIES = ("torch", "cupy", "jax", "numba")
GROUP_TIMEOUT_S = 60

Move = Callable[[np.ndarray], Any]


class Checks:
    """Runs checks one after another and prints what becomes of each."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.num_failed = 0

    @contextlib.contextmanager
    def named(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
            outcome = "ok"
        except Exception:  # of any library; the next check may work
            traceback.print_exc(file=sys.stdout)
            self.num_failed += 1
            outcome = "FAILED"
        print(f"{outcome:7} {self.group}: {name} ({time.perf_counter() - begin:.2f} s)", flush=True)


def columns(tensor: sa.TensorResult) -> list[Any]:
    arrays = (tensor.keys, tensor.values, tensor.counts, tensor.weights)
    data = [None if a is None else (a.dtype.str, a.shape, np.ascontiguousarray(a).tobytes()) for a in arrays]
    return [tensor.layout, tensor.dtype, tensor.fixed_point_shift, data]


def outcome(updates: Any, spec: sa.RoundSpec, device: str | None) -> Any:
    """What a merge comes to: everything about its result, or its error."""
    try:
        result = sa.aggregate(updates, spec, device=device)
    except (sa.errors.EngineMissingError, sa.errors.UnavailableError):
        raise
    except sa.SparseaggError as error:
        return type(error).__name__, str(error)
    engine = result.info.engine
    if engine.split()[0] != (device or "cuda"):
        raise AssertionError(f"merged by {engine}, not by {device or 'cuda'}")
    return {name: columns(result[name]) for name in result}


def expect_same(on_device: Any, on_host: Any, spec: sa.RoundSpec, device: str | None = "cuda", note: Any = "") -> None:
    got, expected = outcome(on_device, spec, device), outcome(on_host, spec, "cpu")
    if got != expected:
        raise AssertionError(f"{note} differs from the CPU engine: {str(got)[:500]} and {str(expected)[:500]}; {spec}")


def check_random(checks: Checks, move: Move) -> None:
    """Compares random rounds with the CPU engine. Keys are of any type that holds them; some tensors stay behind."""
    for seed in SEEDS:
        with checks.named(f"random round, seed {seed}"):
            rng = np.random.default_rng([20261127, seed])
            spec = random_spec(rng)
            pools = random_pools(rng, spec)
            here: dict[str, Any] = {}
            there: dict[str, Any] = {}

            def moved(data: Any, rng: np.random.Generator = rng) -> Any:
                keys, rows = data if isinstance(data, tuple) else (None, data)
                if rng.random() < 0.1 or rows.size == 0:  # not every library has arrays of no entries
                    return data
                if keys is None:
                    return move(rows)
                fitting = [t for t in (np.int32, np.int64, np.uint32, np.uint64) if int(keys.max()) <= np.iinfo(t).max]
                return move(keys.astype(rng.choice(fitting))), move(rows)

            for i in range(rng.integers(2, 12)):
                update = random_update(rng, spec, pools)
                weight = weight_for(spec, float(rng.integers(0, 8)))
                here[f"client-{i}"] = (update, weight)
                there[f"client-{i}"] = ({name: moved(data) for name, data in update.items()}, weight)
            expect_same(there, here, spec, note=f"seed {seed}")


def check_many(checks: Checks, move: Move) -> None:
    """Compares rounds of many tuples, of every dtype and several row widths."""
    for dtype in ("float32", "float16", "float64", "int32", "int64"):
        with checks.named(f"many tuples of {dtype}"):
            rng = np.random.default_rng(7)
            for row_width in (1, 3, 16):
                spec = vector(1 << 20, dtype=dtype, row_width=row_width)
                here = [random_tuples(rng, spec.tensors[0], 50_000) for _ in range(4)]
                there = [(move(keys), move(rows)) for keys, rows in here]
                expect_same(there, here, spec, None, f"row_width {row_width}")


def check_errors(checks: Checks, move: Move) -> None:
    with checks.named("wrong keys and values are refused in the words of the CPU engine"):
        keys, rows = np.array([5, 2, 9]), np.array([1, 2, 4], np.float32)
        for bad_keys, bad_rows in (
            (keys + 5, rows),
            (keys - 3, rows),
            (keys, rows * np.float32(np.nan)),
            (keys, rows[:2]),
        ):
            expect_same([(move(bad_keys), move(bad_rows))], [(bad_keys, bad_rows)], vector(10))
        got = outcome([(move(keys), move(rows.astype(np.float64)))], vector(10), "cuda")
        if "values on a GPU must be of the tensor's dtype float32, got float64" not in got[1]:
            raise AssertionError(got)
        for pair in ((keys, move(rows)), (move(keys), rows)):
            got = outcome([pair], vector(10), "cuda")
            if "give both in one place" not in got[1]:
                raise AssertionError(got)


def check_results(checks: Checks, move: Move, read: Move) -> None:
    """Compares results that stay on the device, which `read` brings to the host, with the CPU engine's."""
    for dtype, options in (
        ("float32", {"op": "mean", "return_counts": True}),
        ("float16", {"result_layout": "dense"}),
        ("float64", {"weighting": "by_weight", "return_weights": True}),
        ("int64", {"op": "max"}),
    ):
        with checks.named(f"results of {dtype} that stay on the device"):
            rng = np.random.default_rng(8)
            for row_width in (1, 3):
                tensor = sa.TensorSpec("v", dtype, num_rows=100_000, row_width=row_width)
                spec = sa.RoundSpec([tensor], **options)
                weight = 2.0 if "weighting" in options else None
                here, there = sa.Aggregator(spec), sa.Aggregator(spec, device="cuda")
                for i in range(4):
                    keys, rows = random_tuples(rng, tensor, 20_000)
                    here.add(f"{i}", (keys, rows), weight)
                    there.add(f"{i}", (move(keys), move(rows)), weight)
                expected, actual = here.finish()["v"], there.finish_on_device()["v"]
                for name in ("keys", "values", "counts", "weights"):
                    column, wanted = getattr(actual, name), getattr(expected, name)
                    if column is None:  # a dense result has all keys
                        if wanted is not None and name != "keys":
                            raise AssertionError(f"no {name}")
                        continue
                    got = read(column)
                    if (got.dtype, got.shape, got.tobytes()) != (wanted.dtype, wanted.shape, wanted.tobytes()):
                        raise AssertionError(f"{name} of row_width {row_width} differ: {got} and {wanted}")


def vector(num_rows: int, **options: Any) -> sa.RoundSpec:
    return sa.RoundSpec([sa.TensorSpec("v", options.pop("dtype", "float32"), num_rows=num_rows, **options)])


def random_tuples(rng: np.random.Generator, tensor: sa.TensorSpec, count: int) -> tuple[np.ndarray, np.ndarray]:
    keys = np.unique(rng.integers(0, tensor.num_rows, count))
    shape = (len(keys), tensor.row_width) if tensor.row_width > 1 else len(keys)
    if "int" in tensor.dtype:
        return keys, rng.integers(-(10**6), 10**6, shape).astype(tensor.dtype)
    return keys, rng.standard_normal(shape).astype(tensor.dtype)


def check_torch(checks: Checks) -> None:
    import torch

    def move(array: np.ndarray) -> Any:
        return torch.from_numpy(np.array(array)).cuda()

    check_random(checks, move)
    check_many(checks, move)
    check_errors(checks, move)
    check_results(checks, move, lambda column: torch.from_dlpack(column).cpu().numpy())
    rng = np.random.default_rng(11)
    spec = vector(1 << 20)
    host = [random_tuples(rng, spec.tensors[0], 100_000) for _ in range(3)]

    with checks.named("memory is back after merges and dropped aggregators"):
        gc.collect()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        updates = [(move(keys), move(rows)) for keys, rows in host]
        expect_same(updates, host, spec)
        aggregator = sa.Aggregator(spec, device="cuda")
        aggregator.add_all(updates)
        del aggregator, updates
        gc.collect()
        if torch.cuda.memory_allocated() != before:
            raise AssertionError(f"{torch.cuda.memory_allocated()} bytes, {before} before")

    with checks.named("values outlive their tensors, and keys may change once they are added"):
        aggregator = sa.Aggregator(spec, device="cuda")
        for keys, rows in host:
            device_keys, device_rows = move(keys), move(rows)
            aggregator.add_all([(device_keys, device_rows)])
            device_keys.fill_(-1)
            del device_keys, device_rows
        rubbish = [torch.full((100_000,), float("nan"), device="cuda") for _ in range(8)]  # where freed memory was
        if {"v": columns(aggregator.finish()["v"])} != outcome(host, spec, "cpu"):
            raise AssertionError("other bits")
        del rubbish

    with checks.named("results as tensors, sparse and dense, whose memory is given back"):
        for layout in ("sparse", "dense"):
            shape = (1000, 20, 3)
            like = sa.RoundSpec([sa.TensorSpec("v", "bfloat16", shape=shape, row_width=3)], result_layout=layout)
            dense = torch.zeros(20_000, 3).to(torch.bfloat16)
            keys = torch.randperm(20_000)[:500]
            dense[keys] = torch.randn(500, 3).to(torch.bfloat16)
            aggregator = sa.Aggregator(like, device="cuda")
            aggregator.add("a", {"v": (keys.cuda(), dense[keys].cuda())})
            tensor = aggregator.finish_on_device()["v"].to_torch()
            if tensor.is_sparse != (layout == "sparse") or tuple(tensor.shape) != shape:
                raise AssertionError(tensor)
            if not torch.equal(tensor.to_dense().cpu().reshape(20_000, 3), dense):
                raise AssertionError(layout)
        free, _ = torch.cuda.mem_get_info()
        for _ in range(40):  # of 80 MB each
            aggregator = sa.Aggregator(vector(20_000_000), device="cuda")
            aggregator.add("a", torch.ones(20_000_000, device="cuda"))
            torch.from_dlpack(aggregator.finish_on_device()["v"].values).sum().item()
        if free - torch.cuda.mem_get_info()[0] > 1 << 30:
            raise AssertionError(f"{free - torch.cuda.mem_get_info()[0]} bytes are gone")

    with checks.named("arrays that a side stream writes late"):
        stream = torch.cuda.Stream()
        updates = [(torch.zeros(len(k), dtype=torch.int64).cuda(), torch.zeros(len(k)).cuda()) for k, _ in host]
        sources = [(move(keys), move(rows)) for keys, rows in host]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(400_000_000)  # cycles
            for target, source in zip(updates, sources):
                for mine, theirs in zip(target, source):
                    mine.copy_(theirs)
            if stream.query():
                raise AssertionError("the stream was done too early for this check")
            expect_same(updates, host, spec)

    with checks.named("slices at any address"):
        for offset in (1, 2, 3):
            there = [(move(keys)[offset:], move(rows)[offset:]) for keys, rows in host]
            expect_same(there, [(keys[offset:], rows[offset:]) for keys, rows in host], spec, None)

    with checks.named("bfloat16, gradients of a module, negated views"):
        small = vector(1000, dtype="bfloat16")
        values = torch.randn(1000).to(torch.bfloat16)
        expect_same([values.cuda()], [values.view(torch.uint16).numpy()], small, None)
        module = torch.nn.Linear(10, 3, bias=False).cuda()
        module(torch.randn(5, 10, device="cuda")).sum().backward()
        like = sa.RoundSpec([sa.TensorSpec("weight", "float32", shape=(3, 10), layout="dense")])
        expect_same([module], [{"weight": module.weight.grad.cpu().numpy()}], like, None)
        negated = torch._neg_view(torch.randn(1000, device="cuda"))
        expect_same([negated], [negated.cpu().resolve_neg().numpy()], vector(1000), None)

    with checks.named("sparse COO tensors, hybrid, of several axes and of single values"):
        indices = torch.randint(0, 50, (2, 400), device="cuda")
        cases = [
            (
                vector(50, row_width=8),
                torch.sparse_coo_tensor(indices[:1], torch.randn(400, 8, device="cuda"), (50, 8)),
            ),
            (vector(2500), torch.sparse_coo_tensor(indices, torch.randn(400, device="cuda"), (50, 50))),
            (
                vector(2500, row_width=3),
                torch.sparse_coo_tensor(indices, torch.randn(400, 3, device="cuda"), (50, 50, 3)),
            ),
            (vector(50, row_width=50), torch.sparse_coo_tensor(indices, torch.randn(400, device="cuda"), (50, 50))),
        ]
        for wanted, tensor in cases:
            expect_same([tensor, tensor.coalesce()], [tensor.cpu(), tensor.coalesce().cpu()], wanted, None)
        embedding = torch.nn.Embedding(50, 8, sparse=True).cuda()
        embedding(indices[0]).sum().backward()
        gradient = embedding.weight.grad
        like = sa.RoundSpec([sa.TensorSpec("weight", "float32", shape=(50, 8))])
        expect_same([embedding], [{"weight": gradient.cpu()}], like, None)

    with checks.named("a tensor of rows that are not contiguous is refused"):
        got = outcome([torch.zeros(8, 50, device="cuda").t()], vector(50, row_width=8), "cuda")
        if ".contiguous() makes them so" not in got[1]:
            raise AssertionError(got)


def check_cupy(checks: Checks) -> None:
    import cupy

    check_random(checks, cupy.asarray)
    check_many(checks, cupy.asarray)
    check_errors(checks, cupy.asarray)
    check_results(checks, cupy.asarray, lambda column: cupy.asnumpy(cupy.from_dlpack(column)))

    with checks.named("arrays that a side stream writes late"):
        keys, rows = random_tuples(np.random.default_rng(12), vector(1 << 20).tensors[0], 100_000)
        source_keys, source_rows = cupy.asarray(keys), cupy.asarray(rows)
        late_keys, late_rows = cupy.zeros_like(source_keys), cupy.zeros_like(source_rows)
        work = cupy.ones((4096, 4096), cupy.float32)
        work @ work  # loads the library before the clock runs
        cupy.cuda.Device().synchronize()
        with cupy.cuda.Stream(non_blocking=True):
            for _ in range(100):
                work = work @ work
            late_keys[...] = source_keys
            late_rows[...] = source_rows
            expect_same([(late_keys, late_rows)], [(keys, rows)], vector(1 << 20))

    with checks.named("memory is back"):
        pool = cupy.get_default_memory_pool()
        gc.collect()
        before = pool.used_bytes()
        updates = [(cupy.asarray(keys), cupy.asarray(rows)) for _ in range(3)]
        expect_same(updates, [(keys, rows)] * 3, vector(1 << 20), None)
        del updates
        gc.collect()
        if pool.used_bytes() != before:
            raise AssertionError(f"{pool.used_bytes()} bytes, {before} before")


def check_jax(checks: Checks) -> None:
    import jax
    import jax.numpy as jnp

    device = next(device for device in jax.devices() if device.platform in ("gpu", "cuda"))

    def move(array: np.ndarray) -> Any:
        return jax.device_put(array, device)

    check_random(checks, move)
    check_many(checks, move)
    check_errors(checks, move)
    check_results(checks, move, lambda column: np.asarray(jax.dlpack.from_dlpack(column)))

    with checks.named("arrays that are still being computed"):
        keys, rows = random_tuples(np.random.default_rng(13), vector(1 << 20).tensors[0], 100_000)

        @jax.jit
        def late(work: Any, values: Any) -> Any:
            for _ in range(60):
                work = work @ work * 0
            return values + work[0, 0].astype(values.dtype)

        work = jnp.ones((4096, 4096), jnp.float32)
        device_keys, device_rows = move(keys), move(rows)
        for values in (device_keys, device_rows):
            late(work, values).block_until_ready()  # compiles
        there = [(late(work, device_keys), late(work, device_rows))]
        expect_same(there, [(keys, rows)], vector(1 << 20))

    with checks.named("bfloat16"):
        values = jnp.asarray(np.random.default_rng(14).standard_normal(1000), jnp.bfloat16)
        bits = np.asarray(values).view(np.uint16)
        expect_same([move(values)], [bits], vector(1000, dtype="bfloat16"), None)


def check_numba(checks: Checks) -> None:
    from numba import cuda

    check_random(checks, cuda.to_device)
    check_many(checks, cuda.to_device)
    check_errors(checks, cuda.to_device)
    check_results(checks, cuda.to_device, lambda column: cuda.as_cuda_array(column).copy_to_host())

    @cuda.jit
    def late(source: Any, target: Any, turns: int) -> None:
        i = cuda.grid(1)
        if i < source.shape[0]:
            x = 0.5
            for _ in range(turns):
                x = x * 0.999 + 0.001
            target[i] = source[i] if x > 0 else target[i]

    try:
        late[1, 32](cuda.to_device(np.zeros(1)), cuda.to_device(np.zeros(1)), 1)
    except AttributeError as error:  # Numba's own, of a NumPy that is too new for it
        print(f"skipped numba: arrays that are written late: Numba compiles nothing here: {error}", flush=True)
        return
    keys, rows = random_tuples(np.random.default_rng(15), vector(1 << 20).tensors[0], 100_000)
    for name in ("CUDA's default stream", "a stream of its own"):
        with checks.named(f"arrays that {name} writes late"):
            stream = 0 if name.startswith("CUDA") else cuda.stream()
            there = []
            for turns in (1, 3_000_000):  # the first one compiles
                there = [cuda.device_array_like(array, stream=stream) for array in (keys, rows)]
                sources = [cuda.to_device(array) for array in (keys, rows)]
                cuda.synchronize()
                for source, target in zip(sources, there):
                    late[(len(keys) + 255) // 256, 256, stream](source, target, turns)
            expect_same([tuple(there)], [(keys, rows)], vector(1 << 20))


def times(checks: Checks) -> dict[str, Any]:
    """Times 10⁷ tuples in 100 updates, which are distinct within an update."""
    import torch

    table: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "updates": 100, "tuples": 10**7, "num_rows": 1 << 22}
    for order in ("ascending", "any order"):
        with checks.named(f"times, keys in {order}"):
            rng = np.random.default_rng(16)
            host = []
            for _ in range(100):
                keys = rng.choice(1 << 22, 100_000, replace=False, shuffle=order != "ascending")
                if order == "ascending":
                    keys.sort()
                host.append((keys, rng.standard_normal(100_000, np.float32)))
            table[order] = times_of(torch, host, vector(1 << 22))
            for name, ms in table[order].items():
                print(f"        {ms:9.2f} ms  {name}", flush=True)
    return table


def times_of(torch: Any, host: list[Any], spec: sa.RoundSpec) -> dict[str, float]:
    """Returns milliseconds of each way to merge the same updates."""
    device = [tuple(torch.from_numpy(array).cuda() for array in pair) for pair in host]
    expect_same(device, host, spec)

    def coalesced() -> Any:
        keys, rows = (torch.cat(parts) for parts in zip(*device))
        return torch.sparse_coo_tensor(keys[None], rows, (spec.tensors[0].num_rows,)).coalesce()

    def copied() -> Any:
        return sa.aggregate([(keys.cpu().numpy(), rows.cpu().numpy()) for keys, rows in device], spec, device="cpu")

    def kept() -> Any:
        aggregator = sa.Aggregator(spec, device="cuda")
        aggregator.add_all(device)
        return aggregator.finish_on_device()

    ways = {
        "sparseagg, device arrays, result on the device": kept,
        "sparseagg, device arrays, result on the host": lambda: sa.aggregate(device, spec, device="cuda"),
        "sparseagg, host arrays to the CUDA engine": lambda: sa.aggregate(host, spec, device="cuda"),
        "torch coalesce, result on the device": coalesced,
        "torch coalesce, result on the host": lambda: coalesced().cpu(),
        "copy to the host, CPU engine": copied,
        "CPU engine, arrays on the host": lambda: sa.aggregate(host, spec, device="cpu"),
    }
    return {name: median_ms(torch, way) for name, way in ways.items()}


def median_ms(torch: Any, call: Callable[[], Any]) -> float:
    call()
    taken = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
        del result
    return round(1e3 * statistics.median(taken), 3)


def run_group(group: str, out: str | None) -> int:
    """Runs the checks of one library in this process. Returns its exit status."""
    module = {"numba": "numba.cuda", "times": "torch"}.get(group, group)
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"skipped {group}: {error}", flush=True)
        return 0
    try:
        sa.Aggregator(vector(1), device="cuda")
    except sa.SparseaggError as error:
        print(f"FAILED  {group}: {error}", flush=True)
        return 1
    checks = Checks(group)
    if group == "times":
        with checks.named("all are there"):
            table = times(checks)
            if out:
                pathlib.Path(out).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    else:
        # What no check expects, such as a library without a GPU, ends the group.
        with checks.named("all checks ran"):
            {"torch": check_torch, "cupy": check_cupy, "jax": check_jax, "numba": check_numba}[group](checks)
    return 1 if checks.num_failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks and times merges of arrays in a GPU's memory.")
    parser.add_argument("--json", help="where the table of times goes")
    parser.add_argument("--only", default=",".join((*LIBRARIES, "times")), help="groups of checks, by comma")
    parser.add_argument("--group", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.group:
        return run_group(arguments.group, arguments.json)
    environment = {
        **os.environ,
        "JAX_ENABLE_X64": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTHONFAULTHANDLER": "1",
    }
    failed = []
    for group in arguments.only.split(","):
        command = [sys.executable, __file__, "--group", group, *(["--json", arguments.json] if arguments.json else [])]
        try:
            status = subprocess.run(command, env=environment, timeout=GROUP_TIMEOUT_S).returncode
        except subprocess.TimeoutExpired:
            status = f"none after {GROUP_TIMEOUT_S} s"
        if status != 0:
            failed.append(group)
            print(f"FAILED  {group}: exit status {status}", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "nothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
