"""The contestants of the mode "merge": a function for each library, in whose process it runs alone."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from contestants import SEPARATE, Contestant, Data, Reference, dense, sparse

BY_MODE: dict[str, dict[str, Any]] = {
    "canonical": {},
    "canonical+counts": {"return_counts": True},
    "binned": {"numerics": "binned"},
}


def ours(data: Data, threads: int) -> Iterator[Contestant]:
    """This project: sa.aggregate, by kind of sum, of keys, and of answer."""
    own_keys = [{"tensor": part} for part in data.separate(data.keys, data.flat)]
    # Keys as NumPy, torch, SciPy and TensorFlow make them.
    int64_keys = [{"tensor": part} for part in data.separate(data.keys64, data.flat)]
    for count in sorted({1, threads}):
        yield _merge(data, count, int64_keys, "canonical", ", int64 keys")
        for mode in BY_MODE:
            # The reference counts tuples, and repeated keys of one update are one contributor.
            if mode == "canonical" or not data.has_repeats:
                yield _merge(data, count, own_keys, mode)
        if data.no_dense() is None:
            yield _merge(data, count, own_keys, "canonical", result_layout="dense")
        if data.one_update:
            values = (data.flat.view(np.uint32) >> np.uint32(16)).astype(np.uint16)  # exact: see Data.one_update
            update = {"tensor": (data.keys64, values)}
            yield _merge(data, count, [update], "canonical", ", bfloat16, int64 keys", "bfloat16")


def _merge(
    data: Data,
    threads: int,
    updates: list[Any],
    mode: str,
    suffix: str = "",
    dtype: str = "float32",
    result_layout: str = "sparse",
) -> Contestant:
    import sparseagg as sa
    from sparseagg import _engine

    options = {**BY_MODE[mode], "result_layout": result_layout}
    tensor = sa.TensorSpec("tensor", dtype, num_rows=data.num_rows, row_width=data.row_width)
    spec = sa.RoundSpec([tensor], **options)

    def check(result: sa.Result, reference: Reference) -> str | None:
        found = result["tensor"]
        if mode == "canonical+counts" and not np.array_equal(found.counts, reference.counts):
            return "other counts"
        if result_layout == "dense":
            return reference.dense_error(found.values, data.num_rows)
        if dtype == "bfloat16":
            return reference.error(found.keys, np.asarray(found.values, np.float32), 7)
        return (reference.error if mode == "binned" else reference.exact_error)(found.keys, found.values)

    def run() -> sa.Result:
        return sa.aggregate(updates, spec, threads=threads)

    name = f"sparseagg {mode}{suffix}"
    return Contestant(name, result_layout, threads, run, check, SEPARATE, release=_engine.release_memory)


def numpy(data: Data, threads: int) -> Iterator[Contestant]:
    """bincount, add.at, argsort with add.reduceat, and adding client by client."""
    keys, values = data.keys64, data.flat
    clients = data.separate(keys, values)
    no_dense = data.no_dense()

    def add_at() -> np.ndarray:
        out = np.zeros((data.num_rows, *values.shape[1:]), np.float32)
        np.add.at(out, keys, values)
        return out

    def client_by_client() -> np.ndarray:
        out = np.zeros((data.num_rows, *values.shape[1:]), np.float32)
        for client_keys, client_values in clients:
            out[client_keys] += client_values  # a client's keys are unique
        return out

    def sort() -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(data.keys, kind="stable")
        ordered = data.keys[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        return ordered[starts], np.add.reduceat(values[order], starts, axis=0)

    def bincount() -> np.ndarray:
        return np.bincount(keys, values, data.num_rows)

    yield sparse("numpy argsort+reduceat", 1, sort, lambda answer: answer)
    yield dense("numpy add.at", 1, data, add_at, refuses=no_dense)
    yield dense("numpy out[keys] += rows", 1, data, client_by_client, inputs=SEPARATE, refuses=no_dense)
    yield dense("numpy bincount", 1, data, bincount, refuses=no_dense or data.no_rows())


def scipy(data: Data, threads: int) -> Iterator[Contestant]:
    """A COO matrix made CSR, a tree of sums of the clients' CSR vectors, and csr.T @ ones, made before or timed.

    Rows: the matrix that selects each tuple's key, times the rows.
    """
    import scipy.sparse as sp

    coo_name, tree_name, dense_name = "scipy coo → csr, sum_duplicates", "scipy csr tree", "scipy csr.T @ ones"
    no_dense, no_rows = data.no_dense(), data.no_rows()
    if no_rows is not None:
        yield Contestant(coo_name, "sparse", 1, refuses=no_rows)
        yield Contestant(tree_name, "sparse", 1, inputs=SEPARATE, refuses=no_rows)
        count = len(data.keys)
        columns = (data.keys.astype(np.int32), np.arange(count + 1, dtype=np.int32))
        selection = sp.csr_matrix((np.ones(count, np.float32), *columns), shape=(count, data.num_rows))
        yield dense(dense_name, 1, data, lambda: selection.T @ data.values, refuses=no_dense)
        return
    index = np.int32 if data.narrow else np.int64
    keys, values = data.keys.astype(index), data.flat
    row = np.zeros(len(keys), index)
    separate = data.separate(keys, values)
    clients = [
        sp.csr_matrix((client_values, client_keys, np.array([0, len(client_keys)], index)), shape=(1, data.num_rows))
        for client_keys, client_values in separate
    ]

    def coo() -> Any:
        matrix = sp.coo_matrix((values, (row, keys)), shape=(1, data.num_rows)).tocsr()
        matrix.sum_duplicates()
        return matrix

    def tree() -> Any:
        level = clients
        while len(level) > 1:
            pairs = [level[i] + level[i + 1] for i in range(0, len(level) - 1, 2)]
            level = pairs + level[len(pairs) * 2 :]
        return level[0]

    def rows(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
        return matrix.indices, matrix.data

    yield sparse(coo_name, 1, coo, rows)
    yield sparse(tree_name, 1, tree, rows, inputs=SEPARATE)
    if no_dense is not None:
        yield Contestant(dense_name, "dense", 1, refuses=no_dense)
        return
    offsets, shape = data.offsets.astype(index), (data.num_clients, data.num_rows)
    matrix = sp.csr_matrix((values, keys, offsets), shape=shape)
    ones = np.ones(data.num_clients, np.float32)

    def joining() -> np.ndarray:
        joined = (np.concatenate([rows for _, rows in separate]), np.concatenate([keys for keys, _ in separate]))
        return sp.csr_matrix((*joined, offsets), shape=shape).T @ ones

    yield dense(dense_name, 1, data, lambda: matrix.T @ ones)
    yield dense("scipy concatenate, csr.T @ ones", 1, data, joining, inputs=SEPARATE)


def pandas(data: Data, threads: int) -> Iterator[Contestant]:
    """groupby and sum, without the sort of the groups."""
    import pandas as pd

    keys = pd.Series(data.keys64)
    values = pd.Series(data.flat) if data.row_width == 1 else pd.DataFrame(data.values)

    def group_by() -> Any:
        return values.groupby(keys, sort=False).sum()

    yield sparse("pandas groupby", 1, group_by, lambda sums: (sums.index.to_numpy(), sums.to_numpy()))


def _columns(data: Data) -> dict[str, np.ndarray]:
    """The values as columns v0, v1, …, for libraries of tables."""
    return {f"v{c}": np.ascontiguousarray(data.values[:, c]) for c in range(data.row_width)}


def pyarrow(data: Data, threads: int) -> Iterator[Contestant]:
    """Table.group_by and sum."""
    import pyarrow as pa

    columns = _columns(data)
    table = pa.table({"key": data.keys64, **columns})

    def group_by(count: int) -> Any:
        return table.group_by("key", use_threads=count > 1).aggregate([(name, "sum") for name in columns])

    def rows(result: Any) -> tuple[np.ndarray, np.ndarray]:
        return result["key"].to_numpy(), np.column_stack([result[f"{name}_sum"].to_numpy() for name in columns])

    for n in sorted({1, threads}):
        prepare = functools.partial(pa.set_cpu_count, n)
        yield sparse("pyarrow group_by", n, functools.partial(group_by, n), rows, prepare=prepare)


def polars(data: Data, threads: int) -> Iterator[Contestant]:
    """group_by and sum. Its number of threads is the process's, so one thread has a process of its own."""
    import polars as pl

    columns = _columns(data)
    frame = pl.DataFrame({"key": data.keys, **columns})

    def group_by() -> Any:
        return frame.group_by("key").agg([pl.col(name).sum() for name in columns])

    def rows(result: Any) -> tuple[np.ndarray, np.ndarray]:
        return result["key"].to_numpy(), result.select(list(columns)).to_numpy()

    yield sparse("polars group_by", pl.thread_pool_size(), group_by, rows)


polars_one = polars  # on one thread, which its environment sets


def duckdb(data: Data, threads: int) -> Iterator[Contestant]:
    """GROUP BY over the arrays as an Arrow table, fetched as one."""
    import duckdb as db
    import pyarrow as pa

    columns = _columns(data)
    connection = db.connect()
    connection.register("tuples", pa.table({"key": data.keys, **columns}))
    query = f"SELECT key, {', '.join(f'sum({name}) AS {name}' for name in columns)} FROM tuples GROUP BY key"

    def run() -> Any:
        result = connection.execute(query)
        # The method has had several names.
        fetch = getattr(result, "to_arrow_table", None) or result.fetch_arrow_table
        return fetch()

    def rows(result: Any) -> tuple[np.ndarray, np.ndarray]:
        return result["key"].to_numpy(), np.column_stack([result[name].to_numpy() for name in columns])

    for n in sorted({1, threads}):
        prepare = functools.partial(connection.execute, f"SET threads TO {n}")
        yield sparse("duckdb GROUP BY", n, run, rows, prepare=prepare)


def graphblas(data: Data, threads: int) -> Iterator[Contestant]:
    """SuiteSparse:GraphBLAS: a vector built from coordinates, with plus for duplicates."""
    import graphblas as gb

    if data.no_rows() is not None:
        yield Contestant("GraphBLAS build", "sparse", 1, refuses=data.no_rows())
        return
    keys = data.keys.astype("uint64")

    def run() -> Any:
        vector = gb.Vector.from_coo(keys, data.flat, size=data.num_rows, dup_op=gb.binary.plus)
        vector.wait()  # for what it leaves to be done later
        return vector

    def set_threads(count: int) -> None:
        gb.ss.config["nthreads"] = count

    for n in sorted({1, threads}):
        prepare = functools.partial(set_threads, n)
        yield sparse("GraphBLAS build", n, run, lambda vector: vector.to_coo(), prepare=prepare)


def jax(data: Data, threads: int) -> Iterator[Contestant]:
    """On the CPU, compiled before it is timed: segment_sum, and BCOO.sum_duplicates."""
    from jax import jit, ops
    from jax import numpy as jnp
    from jax.experimental import sparse as jsparse

    dense_name, sparse_name = "jax segment_sum", "jax BCOO sum_duplicates"
    if not data.narrow:
        reason = "its keys are int32 unless the whole process is set to 64 bits"
        yield Contestant(dense_name, "dense", threads, refuses=reason)
        yield Contestant(sparse_name, "sparse", threads, refuses=reason)
        return
    # It has no option for this: it starts as many threads as there are cores for it, when it is first used.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    keys, values = jnp.asarray(data.keys32), jnp.asarray(data.flat)
    num_keys = len(np.unique(data.keys))  # it must be told how many there will be
    segment_sum = jit(lambda v, k: ops.segment_sum(v, k, num_segments=data.num_rows))
    matrix = jsparse.BCOO((values, keys[:, None]), shape=(data.num_rows, *data.flat.shape[1:]))
    sum_duplicates = jit(lambda m: m.sum_duplicates(nse=num_keys))

    def coalesce() -> Any:
        summed = sum_duplicates(matrix)
        summed.data.block_until_ready()
        return summed

    def rows(summed: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(summed.indices).reshape(-1), np.asarray(summed.data)

    add = functools.partial(segment_sum, values, keys)
    yield dense(dense_name, threads, data, lambda: add().block_until_ready(), refuses=data.no_dense())
    yield sparse(sparse_name, threads, coalesce, rows)


def tensorflow(data: Data, threads: int) -> Iterator[Contestant]:
    """unsorted_segment_sum."""
    import tensorflow as tf

    name = "tensorflow unsorted_segment_sum"
    if data.no_dense() is not None:
        yield Contestant(name, "dense", threads, refuses=data.no_dense())
        return
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    keys, values = tf.constant(data.keys64), tf.constant(data.flat)
    segment_sum = tf.function(lambda v, k: tf.math.unsorted_segment_sum(v, k, data.num_rows))
    yield dense(name, threads, data, lambda: segment_sum(values, keys).numpy())


def tensorflow_accumulator(data: Data, threads: int) -> Iterator[Contestant]:
    """TensorFlow's SparseConditionalAccumulator, which is what people have for this very job.

    One apply_grad a client and a take_grad, in a session, as it is meant to be used. It averages over contributors, as
    our coordinate_mean does, so the check multiplies.
    """
    import tensorflow as tf

    clients = data.separate(data.keys64, data.flat)
    graph = tf.Graph()
    with graph.as_default():
        accumulator = tf.compat.v1.SparseConditionalAccumulator(tf.float32, shape=None)
        indices = tf.compat.v1.placeholder(tf.int64, [None])
        rows = tf.compat.v1.placeholder(tf.float32, [None] + [data.row_width] * (data.row_width > 1))
        # Each take counts as a step, and gradients of earlier steps are dropped in silence.
        apply = accumulator.apply_grad(indices, rows, local_step=1 << 62)
        take = accumulator.take_grad(data.num_clients)
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    session = tf.compat.v1.Session(graph=graph, config=config)

    def run() -> Any:
        for client_keys, client_rows in clients:
            session.run(apply, {indices: client_keys, rows: client_rows})
        return session.run(take)

    def check(answer: Any, reference: Reference) -> str | None:
        if len(answer.indices) != len(reference.keys):
            return f"{len(answer.indices)} keys instead of {len(reference.keys)}"
        order = np.argsort(answer.indices, kind="stable")
        values = answer.values.reshape(len(order), -1)[order] * reference.counts[:, None]
        return reference.error(answer.indices[order], values)

    yield Contestant("tensorflow SparseConditionalAccumulator", "sparse", threads, run, check, SEPARATE)


def torch(data: Data, threads: int) -> Iterator[Contestant]:
    """coalesce of a COO tensor, and index_add_, of all tuples and client by client."""
    import torch as pt

    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    keys, values = pt.from_numpy(data.keys64), pt.from_numpy(data.flat)
    clients = data.separate(keys, values)
    shape = (data.num_rows, *values.shape[1:])

    def coalesce(of: pt.Tensor = values) -> Any:
        tensor = pt.sparse_coo_tensor(keys[None, :], of, shape, check_invariants=False, is_coalesced=False)
        return tensor.coalesce()

    def index_add() -> pt.Tensor:
        return pt.zeros(shape).index_add_(0, keys, values)

    def client_by_client() -> pt.Tensor:
        out = pt.zeros(shape)
        for client_keys, client_values in clients:
            out.index_add_(0, client_keys, client_values)
        return out

    def rows(tensor: Any) -> tuple[np.ndarray, np.ndarray]:
        return tensor.indices()[0].numpy(), tensor.values().numpy()

    def narrow_rows(tensor: Any) -> tuple[np.ndarray, np.ndarray, int]:
        return tensor.indices()[0].numpy(), tensor.values().float().numpy(), 7

    narrow = values.to(pt.bfloat16) if data.one_update else None
    for count in sorted({1, threads}):
        set_threads = {"prepare": functools.partial(pt.set_num_threads, count)}
        yield sparse("torch coalesce", count, coalesce, rows, **set_threads)
        if narrow is not None:
            run = functools.partial(coalesce, narrow)
            yield sparse("torch coalesce, bfloat16", count, run, narrow_rows, **set_threads)
        more = {"refuses": data.no_dense(), **set_threads}
        yield dense("torch index_add_", count, data, index_add, **more)
        yield dense("torch index_add_, each", count, data, client_by_client, inputs=SEPARATE, **more)
