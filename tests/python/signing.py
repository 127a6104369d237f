"""Keys for certificates of rounds, made by OpenSSL."""

from __future__ import annotations

import pathlib
import subprocess


def key_pair(folder: pathlib.Path, name: str = "certificate") -> tuple[pathlib.Path, pathlib.Path]:
    """The files of an Ed25519 key, in PEM: the private one and, with the suffix .pub, the public one."""
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return private, public


def rsa_key(folder: pathlib.Path) -> pathlib.Path:
    """The file of a private key that signs no certificates."""
    path = folder / "rsa.key"
    subprocess.run(["openssl", "genpkey", "-algorithm", "rsa", "-out", path], check=True, capture_output=True)
    return path
