"""The parts of the verification of certificates, against known vectors and slow references."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.certificates import statement
from sparseagg._internal.certificates.bundle import _decoded
from sparseagg._internal.certificates.statement import content_digest, decode_cbor, encode_cbor
from sparseagg._internal.wire.columns import encode_values
from sparseagg.v1 import aggregation_pb2 as pb

# The inputs and roots of Certificate Transparency's own tests (google/certificate-transparency, merkle_tree_test.cc).
INPUTS = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def test_roots_are_those_of_certificate_transparency():
    leaves = [bytes.fromhex(text) for text in INPUTS]
    assert [statement.root_of(leaves[:n]).hex() for n in range(9)] == ROOTS


def _path(index, leaves):
    """RFC 9162, 2.1.3.1, as it is written there."""
    if len(leaves) == 1:
        return []
    k = 1 << ((len(leaves) - 1).bit_length() - 1)
    if index < k:
        return [*_path(index, leaves[:k]), statement.root_of(leaves[k:])]
    return [*_path(index - k, leaves[k:]), statement.root_of(leaves[:k])]


def test_proofs_of_all_small_trees_hold_for_their_leaf_alone():
    for size in range(1, 20):
        leaves = [bytes([number]) for number in range(size)]
        root = statement.root_of(leaves)
        for index in range(size):
            path = _path(index, leaves)
            assert statement.root_of_path(leaves[index], index, size, path) == root
            for other in range(size + 3):
                if other != index:
                    assert statement.root_of_path(leaves[index], other, size, path) != root
            assert statement.root_of_path(leaves[index], index + (1 << 20), size, path) is None
            assert statement.root_of_path(leaves[index], -1, size, path) is None
            assert statement.root_of_path(leaves[index], index, size, [*path, bytes(32)]) is None
            if path:
                assert statement.root_of_path(leaves[index], index, size, path[:-1]) is None
                assert statement.root_of_path(leaves[index], index, size, [bytes(32), *path[1:]]) != root


@pytest.mark.parametrize(
    ("item", "encoded"),  # RFC 8949, appendix A
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (1000, "1903e8"),
        (1000000, "1a000f4240"),
        (18446744073709551615, "1bffffffffffffffff"),
        (-0.0, "f98000"),
        (1.1, "fb3ff199999999999a"),
        (65504.0, "f97bff"),
        (100000.0, "fa47c35000"),
        (5.960464477539063e-8, "f90001"),
        (float("inf"), "f97c00"),
        (False, "f4"),
        (None, "f6"),
        (b"\1\2\3\4", "4401020304"),
        ("\u6c34", "63e6b0b4"),
        ([1, [2, 3], [4, 5]], "8301820203820405"),
    ],
)
def test_cbor_is_that_of_the_rfc(item, encoded):
    assert encode_cbor(item).hex() == encoded
    decoded = decode_cbor(bytes.fromhex(encoded))
    assert decoded == item
    assert type(decoded) is type(item)


@pytest.mark.parametrize("data", ["", "18", "1801", "fa3f800000", "63ff", "81", "0000", "a0", "9f01ff", "1c", "62ffff"])
def test_other_bytes_than_deterministic_cbor_are_refused(data):
    with pytest.raises(sa.InvalidArgumentError, match="no deterministic CBOR"):
        decode_cbor(bytes.fromhex(data))


@pytest.mark.parametrize("num_keys", [0, 1, 131071, 131072, 131073, 300000])
def test_content_digest_hashes_blocks_of_a_mebibyte(num_keys):
    keys, values = np.arange(num_keys, dtype=np.uint32), np.ones(num_keys, np.float64)
    digests = b""
    for column in (struct.pack(f"<{num_keys}Q", *range(num_keys)), values.tobytes()):
        digests += b"".join(
            hashlib.sha256(column[at : at + (1 << 20)]).digest() for at in range(0, len(column), 1 << 20)
        )
    assert content_digest(keys, values) == hashlib.sha256(digests).digest()


@pytest.mark.parametrize("encoding", ["unspecified", "float32", "float16", "bfloat16", "int8_scaled"])
@pytest.mark.parametrize("num_keys", [0, 1, 21, 22, 64, 65])
def test_implicit_keys_are_counted_by_the_values(encoding, num_keys):
    tensor = sa.TensorSpec("d", "float32", num_rows=100, row_width=3, layout="dense")
    values = np.arange(num_keys * 3, dtype=np.float32)
    data = values.tobytes() if encoding in ("unspecified", "float32") else encode_values(values, encoding)
    piece = pb.TensorSlice(tensor="d", key_encoding=pb.KEY_ENCODING_IMPLICIT, first_key=2, values=data)
    piece.value_encoding = pb.ValueEncoding.Value(f"VALUE_ENCODING_{encoding.upper()}")
    keys, rows = _decoded(piece, tensor, sa.RoundSpec([tensor]))
    assert keys.tolist() == list(range(2, 2 + num_keys))
    np.testing.assert_allclose(rows, values, atol=1)
