"""Times what Python libraries offer on a GPU for summing sparse updates: torch, CuPy, JAX, as far as they are here.

On workloads A to G as gpu_bench has them, plain, on the device already, in float32, in any order of additions. Each
answer is verified before it is timed. A library that is absent or sees no device is reported, and no failure.

Needs NumPy beside them, and sparseagg-loadgen, which writes the workloads: that of the bundle, or --loadgen.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

HERE = pathlib.Path(__file__).resolve().parent
FLUSH_BYTES = 256 << 20  # more than any L2

# A library's version and device, its ways of summing, and the seconds of a run.
Library = tuple[dict[str, str], Callable[..., Iterator["Way"]], Callable[[Callable[[], Any]], float]]
# One way of summing: its name, a run whose answer stays on the device, and the answer as keys and sums, or as an array
# over all keys.
Way = tuple[str, Callable[[], Any], Callable[[Any], Any]]


class Absent(Exception):
    """Why a library cannot take part."""


def by_events(
    flush: Callable[[], Any], event: Callable[[], Any], milliseconds: Callable[..., float]
) -> Callable[..., float]:
    """The timer of a library that has events; ``flush`` pushes the inputs out of the L2."""

    def timed(run: Callable[[], Any]) -> float:
        flush()
        begin, end = event(), event()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(milliseconds(begin, end)) / 1e3

    return timed


def torch_library() -> Library:
    """coalesce of a COO tensor, which gives a sparse answer, and index_add_, which gives a dense one."""
    import torch

    if not torch.cuda.is_available():
        raise Absent("it sees no device")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def ways(keys: Any, values: Any, num_rows: int) -> Iterator[Way]:
        d_keys = torch.from_numpy(keys.astype("int64")).cuda()
        d_values = torch.from_numpy(values).cuda()
        shape = (num_rows, *values.shape[1:])

        def coalesce() -> Any:
            return torch.sparse_coo_tensor(d_keys[None, :], d_values, shape, check_invariants=False).coalesce()

        def rows(answer: Any) -> Any:
            return answer.indices()[0].cpu().numpy(), answer.values().cpu().numpy()

        yield "torch coalesce", coalesce, rows
        if num_rows * values[0].nbytes <= 8 << 30:
            yield (
                "torch index_add_",
                lambda: torch.zeros(shape, device="cuda").index_add_(0, d_keys, d_values),
                lambda answer: answer.cpu().numpy(),
            )

    event = functools.partial(torch.cuda.Event, enable_timing=True)
    timed = by_events(lambda: flush.fill_(1), event, torch.cuda.Event.elapsed_time)
    return {"torch": torch.__version__, "device": torch.cuda.get_device_name(0)}, ways, timed


def cupy_library() -> Library:
    """unique and add.at, and sum_duplicates of a COO matrix."""
    import cupy
    import cupyx.scipy.sparse

    try:
        name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Absent(str(error)) from None
    flush = cupy.empty(FLUSH_BYTES, cupy.uint8)

    def ways(keys: Any, values: Any, num_rows: int) -> Iterator[Way]:
        d_keys, d_values = cupy.asarray(keys), cupy.asarray(values)

        def add_at() -> Any:
            found, inverse = cupy.unique(d_keys, return_inverse=True)
            sums = cupy.zeros((len(found), *values.shape[1:]), cupy.float32)
            cupy.add.at(sums, inverse, d_values)
            return found, sums

        yield "CuPy unique, add.at", add_at, lambda answer: tuple(each.get() for each in answer)
        if values.ndim == 1 and num_rows < 1 << 31:
            column = d_keys.astype(cupy.int32)
            row = cupy.zeros_like(column)

            def sum_duplicates() -> Any:
                matrix = cupyx.scipy.sparse.coo_matrix((d_values, (row, column)), shape=(1, num_rows))
                matrix.sum_duplicates()
                return matrix

            yield "CuPy sum_duplicates", sum_duplicates, lambda answer: (answer.col.get(), answer.data.get())

    timed = by_events(lambda: flush.fill(1), cupy.cuda.Event, cupy.cuda.get_elapsed_time)
    return {"cupy": cupy.__version__, "device": name}, ways, timed


def jax_library() -> Library:
    """segment_sum, which gives a dense answer, compiled before it is timed."""
    # Else it takes three quarters of the device at once, and the others have what is left.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    devices = [device for device in jax.devices() if device.platform == "gpu"]
    if not devices:
        raise Absent("it sees no device")

    def ways(keys: Any, values: Any, num_rows: int) -> Iterator[Way]:
        if num_rows >= 1 << 31 or num_rows * values[0].nbytes > 8 << 30:
            return
        d_keys = jax.device_put(keys.astype(np.int32), devices[0])
        d_values = jax.device_put(values, devices[0])
        sums = jax.jit(lambda v, k: jax.ops.segment_sum(v, k, num_segments=num_rows))
        yield "jax segment_sum", lambda: sums(d_values, d_keys).block_until_ready(), np.asarray

    def timed(run: Callable[[], Any]) -> float:
        begin = time.perf_counter()  # it has no events: the host's clock, and inputs that may be in the L2
        run()
        return time.perf_counter() - begin

    return {"jax": jax.__version__, "device": devices[0].device_kind}, ways, timed


LIBRARIES = {"torch": torch_library, "cupy": cupy_library, "jax": jax_library}


def read_workload(loadgen: pathlib.Path, letter: str, divide_clients: int) -> tuple[Any, Any, int]:
    """Keys, rows of values, and num_rows, as sparseagg-loadgen writes them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(loadgen), "--export", folder, "--workload", letter, "--divide-clients", str(divide_clients)]
        subprocess.run(command, check=True)
        path = pathlib.Path(folder, letter)
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        keys = np.fromfile(path.with_suffix(".keys"), np.uint32 if facts["key_bytes"] == 4 else np.uint64)
        values = np.fromfile(path.with_suffix(".values"), np.float32)
    row_width = facts["row_width"]
    return keys, values if row_width == 1 else values.reshape(-1, row_width), facts["num_rows"]


def difference(answer: Any, keys: Any, sums: Any, magnitudes: Any) -> str | None:
    """What is wrong with an answer, given what the sums are and what float32 may make of them."""
    if isinstance(answer, tuple):
        order = np.argsort(answer[0], kind="stable")
        if not np.array_equal(np.asarray(answer[0])[order].astype(np.uint64), keys):
            return "other keys"
        values = np.asarray(answer[1])[order]
    else:
        values = answer[keys]
    wrong = np.abs(values - sums) > 1e-4 * magnitudes + 1e-6
    return f"{int(wrong.sum())} wrong values" if wrong.any() else None


def reference(keys: Any, values: Any) -> tuple[Any, Any, Any]:
    """Keys in ascending order, their sums, and the sums of magnitudes, in float64."""
    order = np.argsort(keys, kind="stable")
    found, first = np.unique(keys[order], return_index=True)
    rows = values[order].astype(np.float64)
    return found.astype(np.uint64), np.add.reduceat(rows, first), np.add.reduceat(np.abs(rows), first)


def write(path: pathlib.Path, found: dict[str, Any]) -> None:
    """Whole or not at all, so that whoever ends the program in the middle has what was written before."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs whatever is here, and writes after each workload."""
    versions: dict[str, dict[str, str]] = {}
    loaded: dict[str, list[Any]] = {}
    absent: list[dict[str, str]] = []
    for name, load in LIBRARIES.items():
        try:
            if np is None:
                raise Absent("this Python has no NumPy")
            versions[name], *loaded[name] = load()
        except Exception as error:  # a broken installation is no failure of ours
            reason = str(error) if isinstance(error, Absent) else f"{type(error).__name__}: {error}"
            absent.append({"library": name, "reason": reason})
    results: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    found = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "clients_divided_by": options.divide_clients,
        "versions": versions,
        "absent": absent,
        "left_out": left_out,
        "results": results,
    }
    for letter in options.workloads if loaded else "":
        keys, values, num_rows = read_workload(options.loadgen, letter, options.divide_clients)
        expected = reference(keys, values)
        for name, (ways, timed) in loaded.items():
            for title, run, fetch in ways(keys, values, num_rows):
                try:
                    wrong = difference(fetch(run()), *expected)
                    seconds = [timed(run) for _ in range(options.repetitions)]
                except Exception as error:  # such as a device without memory: says so, and goes on
                    wrong = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                if wrong is not None:
                    left_out.append({"workload": letter, "contestant": title, "reason": wrong})
                    print(f"{letter}  {title}: {wrong}", flush=True)
                    continue
                rate = len(keys) / statistics.median(seconds)
                print(f"{letter}  {title:22} {rate / 1e6:12.1f} M tuples/s", flush=True)
                results.append(
                    {
                        "workload": letter,
                        "library": name,
                        "what": title,
                        "tuples": len(keys),
                        "verified": True,
                        "median_seconds": statistics.median(seconds),
                        "tuples_per_s": round(rate),
                        "seconds": seconds,
                    }
                )
        write(options.out, found)
    for each in absent:
        print(f"{each['library']}: {each['reason']}", flush=True)
    return found


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="ABCDEFG")
    parser.add_argument("--divide-clients", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--loadgen", type=pathlib.Path, default=HERE.parent / "bin" / "sparseagg-loadgen")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    write(options.out, measure(options))


if __name__ == "__main__":
    main()
