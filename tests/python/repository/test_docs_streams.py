"""The example of docs/streams.md runs."""

from __future__ import annotations

import re

from real_server import REPOSITORY


def test_the_example_runs(capsys):
    text = (REPOSITORY / "docs/streams.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec(compile(example, "docs/streams.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["1 3 full [7 9]", "2 1 call [7 9]"]
