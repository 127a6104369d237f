"""What holds of the arrays of one library: its streams, its pools of memory, its own types."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import sparseagg as sa
from checking import Checks, columns, expect_same, outcome, random_tuples, vector
from every_library import check_errors, check_many, check_random, check_results


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
