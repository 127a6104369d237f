"""Whether the cost of something grows in proportion to its size.

The measure is CPU time, of a process with all its threads, of four runs at n and of one run at 4n in turn, so that both
take about as long and meet as much of what else runs on the machine. That only adds to a measurement, so the least of
several counts, unless the first is clear. A cost in proportion gives a ratio of 1, a cost that grows with the square up
to 4. A ratio of 2 or more fails the test, but only after more measurements have not brought it down.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import sparseagg as sa

FACTOR = 4
CLEAR, LIMIT = 1.4, 2.0  # ratios that pass at the first measurement, and later
_MOST = 8  # measurements at each size


def cpu_clock(pid: int) -> Callable[[], float]:
    """Returns a clock of the CPU seconds of another process, all its threads included, as clock_getcpuclockid(3)."""
    clock = (~pid << 3) | 2
    time.clock_gettime(clock)  # raises OSError if there is no such process
    return lambda: time.clock_gettime(clock)


def check_linear(make: Callable[[int], Callable[[], object]], n: int, *clocks: Callable[[], float]) -> None:
    """Fails if a run at 4n costs twice as much as four runs at n, or more.

    Args:
        make: makes what is measured, for a size; it may be called again and again.
        n: the smaller size; large enough that its cost is some milliseconds.
        clocks: each measures one cost; this process's CPU seconds, if none is given.
    """
    clocks = clocks or (time.process_time,)
    small = make(n)
    small()  # the first run warms up
    runs = [lambda: [small() for _ in range(FACTOR)], make(FACTOR * n)]
    least = [[math.inf, math.inf] for _ in clocks]
    for measurement in range(_MOST):
        for at, run in enumerate(runs):
            gc.collect()
            gc.disable()  # collections come when they like
            try:
                begins = [clock() for clock in clocks]
                run()
                ends = [clock() for clock in clocks]
            finally:
                gc.enable()
            for costs, begin, end in zip(least, begins, ends):
                costs[at] = min(costs[at], end - begin)
        ratios = [costs[1] / costs[0] for costs in least]
        if max(ratios) < (LIMIT if measurement else CLEAR):
            return
    told = ", ".join(f"{1e3 * few:.1f} ms and {1e3 * many:.1f} ms" for few, many in least)
    raise AssertionError(f"{FACTOR} times at {n}, once at {FACTOR * n}: {told}")


KEYS, ROWS = np.array([1, 3]), np.ones(2, np.float32)


def spec_of(num_tensors: int) -> sa.RoundSpec:
    return sa.RoundSpec([sa.TensorSpec(f"t{i}", "float32", num_rows=10) for i in range(num_tensors)])


def update_of(num_tensors: int) -> dict[str, Any]:
    """An update in the form of the wire, which needs no conversion."""
    return {f"t{i}": (KEYS, ROWS) for i in range(num_tensors)}


ONE, UPDATE = spec_of(1), update_of(1)


def round_of_tensors(client: sa.Client, n: int) -> Callable[[], object]:
    spec, update = spec_of(n), update_of(n)

    def run() -> None:
        opened = client.create_round(spec)
        opened.submit("a", update)
        opened.finish()
        opened.delete()

    return run


def many_rounds(client: sa.Client, n: int) -> Callable[[], object]:
    def run() -> None:
        opened = [client.create_round(ONE) for _ in range(n)]
        assert len(list(client.list_rounds())) >= n
        for each in opened:
            each.cancel("done")
            each.delete()

    return run
