"""A server that begins with another floating-point environment, which its threads would inherit: the same bits."""

from __future__ import annotations

import http.client
import pathlib

import numpy as np
import pytest
import sparseagg as sa
from real_server import ServerProcess, server_binary

LIBRARY = pathlib.Path(server_binary()).resolve().parents[1] / "tests/service/libsparseagg_odd_floats.so"
ENVIRONMENTS = ("upward", "downward", "toward_zero", "flush_denormals")

if not LIBRARY.exists():
    pytest.skip(f"{LIBRARY} is not built", allow_module_level=True)


def merged(address: str) -> list[bytes]:
    """Bits of results, summed and read in several ways."""
    keys, values = np.arange(1000), np.random.default_rng(4).standard_normal(1000) * 1e-3
    values[::7] = 5e-324
    values[1::7] = 1e-40
    found = []
    with sa.Client(address) as client:
        for dtype in ("float64", "float32", "float16"):
            tensor = sa.TensorSpec("v", dtype, num_rows=1000, fill=0.1, result_layout="dense")
            spec = sa.RoundSpec([tensor], op="coordinate_mean", weighting="by_weight", return_weights=True)
            opened = client.create_round(spec)
            for client_id, weight in (("a", 0.1), ("b", 0.7), ("c", 5e-324)):
                opened.submit(client_id, (keys, values), weight)
            opened.finish()
            for encoding in (None, *(("float16", "int8_scaled") if dtype != "float16" else ())):
                result = opened.result(value_encoding=encoding)["v"]
                found += [result.values.tobytes(), result.weights.tobytes()]
    return found


def sent_as_json(http_address: str, address: str) -> float:
    """Returns the ``fill`` of a round that was created with 0.3, in decimal digits."""
    connection = http.client.HTTPConnection(http_address, timeout=60)
    body = '{"roundId": "r", "spec": {"tensors": [{"name": "v", "dtype": "DTYPE_FLOAT64", "num_rows": "3", '
    body += '"aggregation": {"fill": 0.3, "result_layout": "RESULT_LAYOUT_DENSE"}}]}}'
    connection.request("POST", "/v1/rounds", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    connection.close()
    with sa.Client(address) as client:
        fill = client.get_round("r").spec.tensors[0].fill
    assert isinstance(fill, float)
    return fill


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_server_computes_in_the_default_environment(environment, server, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", str(LIBRARY))
    monkeypatch.setenv("SPARSEAGG_ODD_FLOATS", environment)
    odd = ServerProcess(tmp_path / "log", "--http-address", "127.0.0.1:0", "--threads", "3")
    monkeypatch.undo()
    try:
        assert merged(odd.address) == merged(server.address)
        assert sent_as_json(odd.http_address, odd.address) == 0.3
    finally:
        assert odd.stop() == 0
