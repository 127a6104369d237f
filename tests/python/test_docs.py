"""What docs/ shows is true: the bytes of wire-format.md, the flags of operations.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
from conftest import server_binary
from sparseagg.v1 import aggregation_pb2 as pb

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_wire_format_example_parses() -> None:
    text = (DOCS / "wire-format.md").read_text(encoding="utf-8")
    block = text.split("<!-- example chunk -->\n```\n")[1].split("```")[0]
    # Each line begins with hexadecimal pairs; what follows explains them.
    pairs = [re.match(r"\s*((?:[0-9a-f]{2}(?: |$))*)", line)[1] for line in block.splitlines()]
    data = bytes.fromhex("".join(pairs))

    chunk = pb.UpdateChunk.FromString(data)

    assert (chunk.round, chunk.client_id, chunk.submission_id) == ("rounds/r1", "a", "a-1")
    assert (chunk.sequence, chunk.last, chunk.weight) == (0, True, 12.0)
    (part,) = chunk.slices
    assert (part.tensor, part.num_keys) == ("emb", 2)
    assert (part.key_encoding, part.value_encoding) == (pb.KEY_ENCODING_U32, pb.VALUE_ENCODING_FLOAT32)
    assert np.frombuffer(part.keys, "<u4").tolist() == [3, 17]
    assert np.frombuffer(part.values, "<f4").reshape(-1, 2).tolist() == [[1.0, -2.0], [0.5, 0.0]]
    assert chunk.SerializeToString(deterministic=True) == data


def test_operations_documents_every_flag() -> None:
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `--")]
    documented = [flag for row in rows for flag in re.findall(r"--[a-z-]+", row)]
    assert len(documented) == len(set(documented))

    output = subprocess.run([server_binary(), "--help"], check=True, capture_output=True, text=True).stdout
    # The first of each line's names; a second is an alias.
    offered = re.findall(r"^ +(?:-[a-z],)?(--[a-z-]+)", output, re.MULTILINE)
    assert sorted(documented) == sorted(offered)
