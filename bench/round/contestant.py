"""One contestant of the benchmark of whole rounds: runs rounds as a coordinator in Python sees them, and prints JSON.

    contestant.py NAME CASE [--server PATH] [--repetitions N]

A round is created, the updates of its clients are submitted one after another by this process, and the result is read
into arrays. What an update needs before it is sent (its random numbers) is not timed. The result of each round is held
to the sums in float64, taken here in the order of the clients: bit for bit, where the contestant adds in that order.

The stages: "create", "submit" (the last update has been acknowledged), "merge" (the sums are there) and "read" (the
sums have been fetched, or with Flower the updates). CPU seconds are those of this process, which plays the clients, and
of the others that take part. The coordinator's peak memory is that of the process that has the result.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import sys
from typing import Any

import numpy as np
from updates import CASES, Stages, Sums, Updates


class Sparseagg:
    """Rounds of sparseagg at an address; without one those of a server that this starts."""

    is_exact = True

    def __init__(self, updates: Updates, options: argparse.Namespace, address: str | None = None) -> None:
        import sparseagg as sa

        self._updates = updates
        self._server: Any = None
        if address is None:
            flags = ["--memory-limit", "12GiB", "--max-bytes-per-submission", "0", "--max-tuples-per-submission", "0"]
            self._server = sa.Server(program=options.server, options=flags)
            self._server.start()
            address = self._server.address
        self.server_pids = [] if self._server is None else [self._server.pid]
        self._client = sa.Client(address)
        layout = "dense" if updates.is_dense else "sparse"
        self._spec = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=updates.num_rows, layout=layout)])

    def round(self, stages: Stages) -> Sums:
        updates = self._updates
        opened = self._client.create_round(self._spec)
        stages.end("create")
        if updates.num_clients > 1000:
            receipt = opened.submit_batch(updates.ids, {"t": (updates.offsets, updates.keys, updates.rows)})
            assert receipt.num_submissions == updates.num_clients
        else:
            for client_id, update in updates:
                opened.submit(client_id, {"t": update})
        stages.end("submit")
        opened.close()
        opened.wait()
        stages.end("merge")
        merged = opened.result()["t"]
        stages.end("read")
        opened.delete()
        return None if updates.is_dense else merged.keys, merged.values

    def close(self) -> None:
        self._client.close()
        if self._server is not None:
            self._server.stop()


def make_contestant(name: str, updates: Updates, options: argparse.Namespace) -> Any:
    """Returns a contestant by its name. Only its own packages have to be there."""
    if name == "NumPy, pickles":
        from pickles_peer import Pickles

        return Pickles(updates, options)
    if name == "NVFlare's cells":
        from nvflare_peer import NVFlare

        return NVFlare(updates, options)
    if name == "Flower's SuperLink":
        from flower_peer import Flower

        return Flower(updates, options)
    return Sparseagg(updates, options, ":memory:" if name == "sparseagg, in memory" else None)


def cpu_seconds(pid: int | str) -> float:
    """The CPU time that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int | str, field: str = "VmHWM") -> int:
    """The highest resident size of a process, or with "VmRSS" the present one."""
    found = re.search(rf"^{field}:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def check(found: Sums, expected: Sums, is_exact: bool) -> None:
    """Ends the program unless the result is right."""
    keys, values = found
    if (keys is None) != (expected[0] is None) or (keys is not None and not np.array_equal(keys, expected[0])):
        raise SystemExit("other keys than expected")
    if is_exact and values.tobytes() != expected[1].tobytes():
        raise SystemExit("other bits than expected")
    if not np.allclose(values, expected[1], rtol=1e-3, atol=1e-2):
        raise SystemExit("other sums than expected")


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--server", type=pathlib.Path)
    parser.add_argument("--repetitions", type=int, default=3, help="0: one round, without another to warm up")
    options = parser.parse_args()
    updates = Updates(options.case)
    expected = updates.expected()
    contestant = make_contestant(options.name, updates, options)
    pids = ["self", *contestant.server_pids]
    coordinator = getattr(contestant, "coordinator_pid", None)
    held = resident_bytes("self", "VmRSS")  # the updates, and what they are checked by
    rounds, own = [], 0
    for repetition in range(options.repetitions + 1):
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the highest size counts anew: checks take memory, too
        used = sum(cpu_seconds(pid) for pid in pids)
        stages = Stages()
        found = contestant.round(stages)
        cpu = sum(cpu_seconds(pid) for pid in pids) - used
        own = max(own, resident_bytes("self") - held)
        check(found, expected, contestant.is_exact)
        del found
        if repetition > 0 or options.repetitions == 0:  # the first one is warm-up, unless it is all
            rounds.append({**stages.seconds, "total": sum(stages.seconds.values()), "cpu": cpu})
    if coordinator is not None:
        own = resident_bytes(coordinator)
    servers = sum(resident_bytes(pid) for pid in contestant.server_pids if pid != coordinator)
    contestant.close()
    line = {"name": options.name, "case": options.case, "bytes": updates.num_bytes, "rounds": rounds}
    print(json.dumps({**line, "coordinator_peak_bytes": own, "server_peak_bytes": servers}), flush=True)
    os._exit(0)  # NVFlare's threads would keep the process


if __name__ == "__main__":
    sys.exit(main())
