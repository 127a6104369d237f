"""The tables about the GPU: of the benchmark, and of the kernels' machine code."""

from __future__ import annotations

import json
import sys
from typing import Any

from real_server import REPOSITORY

sys.path += [str(REPOSITORY / "bench"), str(REPOSITORY / "scripts")]
import sass_table
import show

RESULTS = REPOSITORY / "bench" / "results"


def results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def test_the_page_has_the_table_of_the_results():
    rows = show.gpu_table(results("gpu"), results("gpu_peers")).split("\n\n")[1]
    assert rows in (REPOSITORY / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_two_runs_are_shown_with_an_arrow_where_they_differ():
    def run(commit: str, copied: int) -> Any:
        calls = {"sort": [8, 100], "copy_in": [2, copied], "record": [3, 0]}
        key = {"workload": "A", "variant": "plain", "what": "finish", "memory": "pinned"}
        return {"commit": commit, "results": [{**key, "calls": calls}]}

    text = show.calls_table(run("old", 10**6), run("new", 2 * 10**6))
    assert text.startswith("old → new\n")
    assert "| A finish, pinned | sort 8 | 2 (1 MB) → 2 (2 MB) | 0 | 0 | 0 | 0 | 0 |" in text


def test_the_longest_loop_without_another_inside_is_counted():
    jumps = {0x80: "BRA 0x40", 0xC0: "@P0 BRA 0xa0", 0xE0: "@!P1 BRA.U 0x20", 0xF0: "BRA 0xf0"}
    code = "".join(f"  /*{at:04x}*/  {jumps.get(at, 'FADD R1, R2, R3')} ;  /* 0x0 */\n" for at in range(0, 256, 16))
    assert sass_table.longest_loop(code) == 5
