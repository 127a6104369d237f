"""scripts/check_modules.py finds what it is for, in small trees made for the purpose, and lets the rest pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from real_server import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "check_modules.py"


def run_check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), "--root", str(root)], capture_output=True, text=True)


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


BAD = [
    ("include", {"host/a.cc": "#include <vector>\n#include <grpcpp/grpcpp.h>\n"}, "host/a.cc:2"),
    ("include", {"host/a.h": '#include "service/rounds/round.h"\n'}, "host/a.h:1"),
    ("include", {"host/a.h": "#include <google/protobuf/message.h>\n"}, "host/a.h:1"),
    ("include", {"host/a.h": "#include <cuda_runtime.h>\n"}, "host/a.h:1"),
    ("include", {"host/cpu/a.h": '#include "sparseagg/v1/aggregation.pb.h"\n'}, "host/cpu/a.h:1"),
    ("include", {"cuda/a.cc": '#include "service/rounds/round.h"\n'}, "cuda/a.cc:1"),
    ("include", {"cuda/a.cu": '#include "absl/status/status.h"\n'}, "cuda/a.cu:1"),
    ("include", {"cuda/a.cu": '#include "host/result.h"\n'}, "cuda/a.cu:1"),
    (
        "include",
        {"cuda/a.cu": '#include "cuda/kernels.h"\n', "cuda/kernels.h": '#include "host/result.h"\n'},
        "cuda/kernels.h:1",
    ),
    ("include", {"service/rounds.cc": '#include "cuda/cuda_engine.h"\n'}, "service/rounds.cc:1"),
    ("include", {"service/rounds.cc": '#include "tests/support/reference.h"\n'}, "service/rounds.cc:1"),
    (
        "inner-include",
        {"service/rounds/a.h": '#include "service/grpc/b.h"\n', "service/grpc/b.h": ""},
        "service/rounds/a.h:1",
    ),
    (
        "inner-include",
        {"service/rounds/a.h": '#include "service/server.h"\n', "service/server.h": ""},
        "service/rounds/a.h:1",
    ),
    (
        "inner-include",
        {"host/cpu/rows/a.h": '#include "host/cpu/merge/b.h"\n', "host/cpu/merge/b.h": ""},
        "host/cpu/rows/a.h:1",
    ),
    (
        "inner-include",
        {"cuda/transfer/a.h": '#include "cuda/merge/b.h"\n', "cuda/merge/b.h": ""},
        "cuda/transfer/a.h:1",
    ),
    ("conditional", {"service/main.cc": "int a;\n#ifdef SPARSEAGG_WITH_CUDA\n#endif\n"}, "service/main.cc:2"),
    ("default-stream", {"cuda/a.cu": "void f() {\n  k<<<1, g(2, 3)>>>(x);\n}\n"}, "cuda/a.cu:2"),
    ("default-stream", {"cuda/a.cu": "void f() {\n  k<<<1, 2, 0>>>(x);\n}\n"}, "cuda/a.cu:2"),
    ("default-stream", {"cuda/a.cu": "void f() { k<<<1, 2, 0, 0>>>(x); }\n"}, "cuda/a.cu:1"),
    ("default-stream", {"cuda/a.cc": "void f() { cudaMemcpy(a, b, 1, cudaMemcpyDefault); }\n"}, "cuda/a.cc:1"),
    ("default-stream", {"cuda/a.cc": "void f() { cudaMemcpyAsync(a, b, g(1, 2), kind); }\n"}, "cuda/a.cc:1"),
    ("default-stream", {"cuda/a.cc": "void f() {\n  cudaMemsetAsync(a, 0, 1, nullptr);\n}\n"}, "cuda/a.cc:2"),
    ("default-stream", {"cuda/a.cc": "void f() { cudaEventRecord(e); }\n"}, "cuda/a.cc:1"),
    ("default-stream", {"cuda/a.cu": "void f() { cub::DeviceScan::InclusiveSum(t, n, a, b, 3); }\n"}, "cuda/a.cu:1"),
    ("raw-allocation", {"cuda/a.cc": "void f() {\n  cudaMallocAsync(&p, 1, s);\n}\n"}, "cuda/a.cc:2"),
    ("raw-allocation", {"cuda/a.cc": "void f() { cudaFree(p); }\n"}, "cuda/a.cc:1"),
    ("randomness", {"tests/host/a.cc": "\nstd::random_device d;\n"}, "tests/host/a.cc:2"),
    ("randomness", {"bench/a.cc": "int x = rand();\n"}, "bench/a.cc:1"),
    ("randomness", {"python/a.py": "import numpy as np\nx = np.random.rand(3)\n"}, "python/a.py:2"),
    ("randomness", {"python/a.py": "import numpy as np\nr = np.random.default_rng()\n"}, "python/a.py:2"),
    ("randomness", {"python/a.py": "import random\nx = random.random()\n"}, "python/a.py:2"),
    ("randomness", {"python/a.py": "import random\nr = random.Random()\n"}, "python/a.py:2"),
]


@pytest.mark.parametrize(("rule", "files", "place"), BAD)
def test_check_bad_tree_is_found(rule: str, files: dict[str, str], place: str, tmp_path: Path) -> None:
    result = run_check(write_tree(tmp_path, files))
    assert result.returncode == 1, result.stdout + result.stderr
    findings = result.stdout.splitlines()
    assert len(findings) == 1, findings
    assert findings[0].startswith(f"{place}: {rule}: ")


def test_check_good_tree_passes(tmp_path: Path) -> None:
    files = {
        "host/a.h": '#include <vector>\n#include "absl/status/status.h"\n#include "host/b.h"\n',
        "host/cpu/sweep.cc": '#include <tbb/parallel_for.h>\n#include "hwy/highway.h"\n#include "xxhash.h"\n',
        "cuda/engine.h": (
            "#ifndef SPARSEAGG_CUDA_ENGINE_H_\n#define SPARSEAGG_CUDA_ENGINE_H_\n"
            '#include "absl/status/status.h"\n#include "host/engine.h"\n#endif\n'
        ),
        "cuda/merge.cu": (
            '#include "cuda/merge.h"\n#include <cub/cub.cuh>\n#include <cuda_runtime.h>\n'
            "void f() { k<<<blocks(n, 2), 256, 0, stream>>>(x); }\n"
            "void g() { cub::DeviceScan::InclusiveSum(t, n, a, b, 3, stream); }\n"
        ),
        "cuda/merge.h": "#include <cstdint>\nvoid f();\n",
        "cuda/copy.cc": "void f() { cudaMemcpyAsync(a, b, n, kind, StreamOf(lane)); cudaEventRecord(e, s); }\n",
        "cuda/device_buffer.cc": "void f() { cudaMallocAsync(&p, 1, s); }\n",
        "service/main.cc": '#include "cuda/cuda_engine.h"\n#include <grpcpp/grpcpp.h>\n#include <sys/socket.h>\n',
        "service/a.cc": '// never rand() nor std::random_device\nconst char* text = "rand()";\n',
        "service/id.cc": "std::random_device d;  // allow(randomness): ids must differ between runs\n",
        "tests/host/a.cc": '#include "tests/support/reference.h"\n#include <grpcpp/grpcpp.h>\n',
        "python/a.py": (
            "import random\nimport numpy as np\nr = np.random.default_rng(7)\ns = random.Random(7)\n"
            "def f(g: np.random.Generator): return g.random()\n"
        ),
        "python/v1/x_pb2.py": "import random\nrandom.random()\n",
        "build/dev/a.cc": "int x = rand();\n",
    }
    result = run_check(write_tree(tmp_path, files))
    assert (result.returncode, result.stdout) == (0, ""), result.stdout + result.stderr


def test_check_long_file_is_a_warning(tmp_path: Path) -> None:
    result = run_check(write_tree(tmp_path, {"host/a.cc": "int a;\n" * 401, "host/b.cc": "int a;\n" * 400}))
    assert result.returncode == 0
    assert result.stdout == "warning: host/a.cc: 401 lines; a file holds one thing\n"


def test_check_this_repository_passes() -> None:
    result = run_check(REPOSITORY)
    assert result.returncode == 0, result.stdout + result.stderr
