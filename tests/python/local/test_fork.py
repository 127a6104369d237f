"""Merges in a process that is forked while it merges."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from server_processes import Watched

# Forks while another thread merges; prints the statuses of the children, each of which has merged the same.
_FORK = """
import os, threading, time
import numpy as np
import sparseagg as sa

rng = np.random.default_rng(0)
spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1_000_000)])
keys = [np.unique(rng.integers(0, 1_000_000, 200_000, np.uint32)) for _ in range(16)]
updates = [(some, np.ones(len(some), np.float32)) for some in keys]
expected = sa.aggregate(updates, spec, threads=2)["v"].values.tobytes()
stopped, merged = threading.Event(), threading.Semaphore(0)

def merge():
    while not stopped.is_set():
        sa.aggregate(updates, spec, threads=2)
        merged.release()

thread = threading.Thread(target=merge)
thread.start()
children = []
for moment in range(12):
    merged.acquire()
    time.sleep(moment / 1000)  # into the merge that follows, which takes longer
    child = os.fork()
    if child == 0:
        same = sa.aggregate(updates, spec, threads=2)["v"].values.tobytes() == expected
        os._exit(0 if same else 1)
    children.append(child)
stopped.set()
thread.join()
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_child_that_is_forked_while_another_thread_merges_merges():
    command = [sys.executable, "-W", "ignore", "-c", _FORK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        watched = Watched(parent.pid)
        has_ended = watched.has_ended(60)
        watched.close()
        os.killpg(parent.pid, signal.SIGKILL)  # with its children, which may hang; not waited for yet, it has its id
        printed, _ = parent.communicate()
    assert has_ended
    assert printed.strip() == str([0] * 12)
