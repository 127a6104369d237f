"""The certificate of a version of a stream, and its replay."""

from __future__ import annotations

import subprocess

import numpy as np
import sparseagg as sa


def test_a_version_is_certified_exported_and_computed_again(start_server, tmp_path):
    private, public = tmp_path / "key", tmp_path / "key.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    server = start_server("--certificate-key", str(private), "--data-dir", str(tmp_path / "data"))
    spec = sa.RoundSpec(
        [sa.TensorSpec("v", "float32", num_rows=100, row_width=2)], op="mean", certificate=True, allow_export=True
    )
    rng = np.random.default_rng(3)
    with sa.Client(server.address) as client:
        stream = client.stream(spec, buffer=6, staleness=sa.staleness.polynomial(0.5), max_staleness=3)
        for number in range(12):
            keys = np.sort(rng.choice(100, 30, replace=False))
            base = 0 if number < 6 else number % 2
            stream.submit(f"c{number % 4}", {"v": (keys, rng.random((30, 2)))}, base_version=base)
        result = stream.result(2)["v"]
        version = stream.round(2)
        version.export(tmp_path / "bundle")
        lines = sa.certificates.verify(version.certificate(), public.read_bytes(), bundle=tmp_path / "bundle")
        assert "computed again" in lines[-1]
    replayed = sa.certificates.replay(tmp_path / "bundle")["v"]
    assert replayed.values.tobytes() == result.values.tobytes()
