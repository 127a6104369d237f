"""Who takes part: for each library a function that yields its entries. In the mode "merge" it stands in merge.py, and
gets the data and a number of threads; in "round" it is `contestants` of a module, and gets the updates and the server's
program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from data import Data, Reference

__all__ = ["JOINED", "MODULES", "SEPARATE", "Contestant", "Data", "Reference", "dense", "sparse"]

# By mode: function or module, the package whose absence makes it absent, and the environment that its process gets. A
# module of rounds needs the interpreter that `--python` names for its package, unless this one has it.
MODULES: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "merge": {
        "ours": ("sparseagg", {}),
        "numpy": ("numpy", {}),
        "scipy": ("scipy", {}),
        "pandas": ("pandas", {}),
        "pyarrow": ("pyarrow", {}),
        "polars": ("polars", {}),
        "polars_one": ("polars", {"POLARS_MAX_THREADS": "1"}),
        "duckdb": ("duckdb", {}),
        "graphblas": ("python-graphblas", {}),
        "jax": ("jax", {"JAX_PLATFORMS": "cpu"}),
        "tensorflow": ("tensorflow-cpu", {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}),
        "tensorflow_accumulator": ("tensorflow-cpu", {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}),
        "torch": ("torch", {"CUDA_VISIBLE_DEVICES": ""}),
    },
    "round": {
        "round_ours": ("sparseagg", {}),
        "round_pickles": ("numpy", {}),
        "round_nvflare": ("nvflare", {}),
        "round_flower": ("flwr", {}),
    },
}

# What is in memory when the clock starts: the tuples of all clients in one array, or each client's in its own, which is
# how updates come.
JOINED, SEPARATE = "joined", "separate"


@dataclasses.dataclass
class Contestant:
    """One way to merge.

    Attributes:
        name: library and function, as people call them.
        output: "sparse" or "dense".
        threads: that it uses.
        inputs: JOINED or SEPARATE.
        run: does it; what it returns is the answer, in the library's own form. This is what is timed, from inputs in
            memory to an answer that is complete in memory.
        check: says what is wrong with an answer; None if nothing is.
        prepare: before a run, and not timed.
        refuses: why it cannot take this workload; then there is nothing else.
        close: ends what it has started.
        release: gives back what the library keeps for its next runs.
        measured: what the last run measured itself, such as the seconds of its stages.
    """

    name: str
    output: str
    threads: int
    run: Callable[[], Any] | None = None
    check: Callable[[Any, Reference], str | None] | None = None
    inputs: str = JOINED
    prepare: Callable[[], None] | None = None
    refuses: str | None = None
    close: Callable[[], None] | None = None
    release: Callable[[], None] | None = None
    measured: dict[str, Any] = dataclasses.field(default_factory=dict)


def sparse(name: str, threads: int, run: Callable[[], Any], rows: Callable[[Any], tuple[Any, ...]], **more: Any) -> Any:
    """A contestant with a sparse answer; `rows` gives its keys and values, and the bits of `Reference.error`."""
    return Contestant(name, "sparse", threads, run, lambda answer, reference: reference.error(*rows(answer)), **more)


def dense(name: str, threads: int, data: Data, run: Callable[[], Any], **more: Any) -> Contestant:
    """A contestant with a dense answer that numpy can read."""
    return Contestant(
        name, "dense", threads, run, lambda answer, reference: reference.dense_error(answer, data.num_rows), **more
    )
