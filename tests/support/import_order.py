"""Programs that import the engine beside other libraries that bring a protobuf or gRPC of their own, in any order."""

from __future__ import annotations

import itertools
import subprocess
import sys

__all__ = ["ORDERS", "exported_symbols", "run"]

# Each use calls into the library's native code, beyond its import.
_USES = {
    "sparseagg._engine": """
import numpy as np, sparseagg as sa
spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=9)], op="mean", clip=sa.ClipSpec(l2=100.0))
assert sa.aggregate([([1, 2], [1.0, 3.0]), ([2], [1.0])], spec)["v"].values.tolist() == [0.5, 2.0]
with sa.Client(":memory:") as client:
    opened = client.create_round(spec)
    opened.submit("a", ([1], [1.0]))
    assert opened.refresh().num_submissions == 1
try:
    sa.RoundSpec([])
except sa.InvalidArgumentError as error:
    assert str(error) == "the spec has no tensors"
else:
    raise AssertionError
""",
    "google.protobuf": """
from google.protobuf import descriptor_pb2, duration_pb2, json_format
assert json_format.MessageToJson(duration_pb2.Duration(seconds=3)) == '"3s"'
file = descriptor_pb2.FileDescriptorProto(name="x")
assert descriptor_pb2.FileDescriptorProto.FromString(file.SerializeToString()) == file
""",
    "grpc": """
import grpc
with grpc.insecure_channel("127.0.0.1:1") as channel:
    call = channel.unary_unary("/none/none").future(b"", timeout=5)
    assert call.code() == grpc.StatusCode.UNAVAILABLE
""",
    "tensorflow": """
import tensorflow as tf
assert tf.io.parse_tensor(tf.io.serialize_tensor(tf.constant([1.0, 2.0])), tf.float32).numpy().tolist() == [1.0, 2.0]
""",
    "RTLD_GLOBAL": """
import os, sys
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
""",
}

_OTHERS = list(itertools.permutations(["sparseagg._engine", "google.protobuf", "grpc"]))
ORDERS = {
    "": [*_OTHERS, ("RTLD_GLOBAL", "grpc", "google.protobuf", "sparseagg._engine"), ("RTLD_GLOBAL", *_OTHERS[0])],
    "tensorflow": [
        ("tensorflow", "sparseagg._engine"),
        ("sparseagg._engine", "tensorflow"),
        ("google.protobuf", "tensorflow", "sparseagg._engine"),
        ("grpc", "sparseagg._engine", "tensorflow"),
        ("tensorflow", "grpc", "google.protobuf", "sparseagg._engine"),
        ("RTLD_GLOBAL", "tensorflow", "sparseagg._engine"),
        ("RTLD_GLOBAL", "sparseagg._engine", "tensorflow"),
    ],
}


def run(order: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Runs a program that uses the libraries in this order, and then in this order again."""
    program = "\n".join(_USES[name] for name in (*order, *order)) + "\nprint('all used')"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)


def exported_symbols(library: str) -> list[str]:
    """The names that a shared library lets others bind to."""
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in listed.stdout.splitlines()]
