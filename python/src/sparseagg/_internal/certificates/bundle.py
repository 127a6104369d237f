"""Bundles: a folder with all that is needed to compute a round again.

certificate.json    the certificate's envelope, which has the spec
submissions.pb      ``ExportedChunk`` messages in the order of client ids, each after its length (a varint)
result.npz          the result: arrays TENSOR.keys, .values, .counts, .weights and .moments; bfloat16 as uint16
"""

from __future__ import annotations

import base64
import dataclasses
import os
import pathlib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union

import numpy as np
import numpy.lib.format as npy
from google.protobuf.message import DecodeError

from sparseagg._internal.certificates import cbor
from sparseagg._internal.certificates.content import content_digest, wire_values
from sparseagg._internal.certificates.envelope import VerificationError, payload_of
from sparseagg._internal.local.aggregate import aggregate
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.round_spec import DTYPES, RoundSpec, TensorSpec
from sparseagg._internal.updates.arrays import Array
from sparseagg._internal.wire.decode import decode_keys, decode_rows
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = [
    "BundleWriter",
    "StoredSubmission",
    "read_envelope",
    "read_result",
    "read_submissions",
    "replay",
    "result_columns",
    "spec_of",
]

Path = Union[str, "os.PathLike[str]"]
_CERTIFICATE, _SUBMISSIONS, _RESULT = "certificate.json", "submissions.pb", "result.npz"
_COLUMNS = ("counts", "weights", "moments")


class BundleWriter:
    """Writes a bundle into a new folder: ``add`` for each chunk, then ``finish``.

    Raises:
        FileExistsError: there is something with the folder's name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = pathlib.Path(folder)
        self._folder.mkdir(parents=True)
        self._file = open(self._folder / _SUBMISSIONS, "wb")  # noqa: SIM115 (closed by finish)

    def add(self, chunks: Iterable[pb.ExportedChunk]) -> None:
        """Writes the next chunks."""
        for chunk in chunks:
            data = chunk.SerializeToString()
            self._file.write(_varint(len(data)) + data)

    def finish(self, envelope: bytes, result: Result) -> None:
        """Writes certificate and result."""
        self._file.close()
        (self._folder / _CERTIFICATE).write_bytes(envelope)
        with zipfile.ZipFile(self._folder / _RESULT, "w") as archive:
            for name, array in result_columns(result).items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, array, allow_pickle=False)

    def close(self) -> None:
        """Closes the files; what was written stays."""
        self._file.close()


def read_envelope(folder: Path) -> bytes:
    """Returns the certificate's envelope."""
    return (pathlib.Path(folder) / _CERTIFICATE).read_bytes()


def read_result(folder: Path) -> dict[str, Array]:
    """Returns the arrays of the bundle's result, as of ``result_columns``."""
    try:
        with np.load(pathlib.Path(folder) / _RESULT, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, zipfile.BadZipFile, KeyError) as error:
        raise VerificationError(f"bundle: {_RESULT} cannot be read: {error}") from error


def result_columns(result: Mapping[str, TensorResult]) -> dict[str, Array]:
    """Returns the arrays of a result by "TENSOR.COLUMN", with the bits of their wire types."""
    columns: dict[str, Array | None] = {}
    for name, tensor in result.items():
        columns[f"{name}.keys"] = tensor.keys if tensor.layout == "sparse" else None
        columns[f"{name}.values"] = wire_values(tensor)
        columns.update({f"{name}.{column}": getattr(tensor, column) for column in _COLUMNS})
    return {name: array for name, array in columns.items() if array is not None}


@dataclasses.dataclass(frozen=True)
class StoredSubmission:
    """A submission of a bundle.

    Attributes:
        client_id, submission_id: its ids.
        weight: as sent; None: none was.
        client_weight: the factor of the close, or the staleness weight of a version of a stream; None: it had none.
        base_version: of a commit to a stream; None: of a round.
        tensors: keys and values of each tensor that was sent, in order of occurrence; values of a union are None.
        leaf: as the server has given it.
    """

    client_id: str
    submission_id: str
    weight: float | None
    client_weight: float | None
    base_version: int | None
    tensors: dict[str, tuple[Array, Array | None]]
    leaf: bytes

    def made_leaf(self, spec: RoundSpec) -> bytes:
        """Returns the leaf that the content gives, with the salt of ``leaf``; ``VerificationError`` if it has none."""
        try:
            salt = cbor.decode(self.leaf)[0]
        except (InvalidArgumentError, IndexError, TypeError):
            raise VerificationError(f"bundle: the leaf of client {self.client_id!r} is malformed") from None
        weight = 1.0 if self.weight is None else self.weight
        tensors = []
        for tensor in spec.tensors:
            keys, values = self.tensors.get(tensor.name, (np.empty(0, np.uint64), None))
            tensors.append([tensor.name, len(keys), content_digest(keys, values)])
        return cbor.encode([salt, self.client_id, self.submission_id, weight, self.base_version, *tensors])

    def update(self, spec: RoundSpec) -> dict[str, Any]:
        """Returns the update, as ``aggregate`` takes it."""
        return {name: _as_update(spec.tensor(name), *columns) for name, columns in self.tensors.items()}


def spec_of(statement: Mapping[str, Any]) -> tuple[bytes, RoundSpec]:
    """Returns the bytes of a certificate's spec, and the spec."""
    data = base64.b64decode(statement["predicate"]["spec"])
    return data, RoundSpec.from_proto(pb.RoundSpec.FromString(data))


def read_submissions(folder: Path, spec: RoundSpec) -> Iterator[StoredSubmission]:
    """Yields the submissions in the order of the file.

    Raises:
        VerificationError: the file is malformed; the message names the place.
    """
    chunks: list[pb.ExportedChunk] = []
    for chunk in _read_chunks(pathlib.Path(folder) / _SUBMISSIONS):
        if chunks and chunk.client_id != chunks[0].client_id:
            break
        chunks.append(chunk)
        if chunk.last:
            yield _submission(chunks, spec)
            chunks = []
    if chunks:
        raise VerificationError(f"bundle: chunks of client {chunks[0].client_id!r} are missing")


def replay(folder: Path, *, submissions: list[StoredSubmission] | None = None, device: str | None = None) -> Result:
    """Computes the result of a bundle again, in this process. Checks nothing.

    Args:
        folder: the bundle.
        submissions: of the bundle; None: they are read.
        device: "cuda" or "cpu", as of ``aggregate``. No trace in the result.
    """
    spec = spec_of(payload_of(read_envelope(folder), "certificate"))[1]
    if submissions is None:
        submissions = list(read_submissions(folder, spec))
    is_stale = any(None not in (each.base_version, each.client_weight) for each in submissions)
    multiplies = is_stale or any(each.client_weight not in (None, 1.0) for each in submissions)
    if multiplies:  # the bits of a round by weight whose clients have sent the products
        spec = _by_weight(spec, is_stale)
    updates: dict[str, Any] = {}
    for number, each in enumerate(submissions):
        weight = each.weight
        if multiplies:
            weight = (1.0 if weight is None else weight) * (1.0 if each.client_weight is None else each.client_weight)
        update = each.update(spec)
        # In a version of a stream, a client may have several commits, whose ids have log positions behind a zero byte.
        name = f"{number:020}" if "\0" in each.client_id else each.client_id
        updates[name] = update if weight is None else (update, weight)
    return aggregate(updates, spec, device=device)


def _by_weight(spec: RoundSpec, is_stale: bool) -> RoundSpec:
    """Returns the spec with all tensors weighted. ``is_stale``: by the table of a stream, which has weights up to 1."""
    proto = spec.to_proto()
    proto.aggregation.weighting = pb.WEIGHTING_BY_WEIGHT
    for tensor, wire in zip(spec.tensors, proto.tensors):
        own = spec.aggregation_of(tensor)
        if is_stale and own.weighting == "uniform" and own.numerics == "fixed_point":
            wire.aggregation.weight_bound = 1.0
        wire.aggregation.weighting = pb.WEIGHTING_UNSPECIFIED
    return RoundSpec.from_proto(proto)


def _read_chunks(path: pathlib.Path) -> Iterator[pb.ExportedChunk]:
    data = memoryview(path.read_bytes())
    at = 0
    while at < len(data):
        size = shift = 0
        begin = at
        while True:
            if at == len(data) or shift > 63:
                raise VerificationError(f"bundle: {_SUBMISSIONS} ends within a length, at byte {begin}")
            size |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 0x80:
                break
        if at + size > len(data):
            raise VerificationError(f"bundle: {_SUBMISSIONS} ends within the chunk at byte {begin}")
        try:
            yield pb.ExportedChunk.FromString(bytes(data[at : at + size]))
        except DecodeError:
            raise VerificationError(f"bundle: {_SUBMISSIONS} has no chunk at byte {begin}") from None
        at += size


def _submission(chunks: list[pb.ExportedChunk], spec: RoundSpec) -> StoredSubmission:
    client = chunks[0].client_id
    parts: dict[str, list[tuple[Array, Array | None]]] = {}
    weight = base_version = None
    for number, exported in enumerate(chunks):
        try:
            chunk = pb.UpdateChunk.FromString(exported.chunk)
            if chunk.sequence != number:
                raise InvalidArgumentError(f"it is chunk {chunk.sequence} of the submission")
            if chunk.HasField("weight"):
                weight = chunk.weight
            if chunk.HasField("base_version"):
                base_version = chunk.base_version
            for piece in chunk.slices:
                tensor = spec.tensor(piece.tensor)
                parts.setdefault(piece.tensor, []).append(_decoded(piece, tensor, spec))
        except (DecodeError, InvalidArgumentError) as error:
            raise VerificationError(f"bundle: chunk {number} of client {client!r} cannot be read: {error}") from error
    last = chunks[-1]
    return StoredSubmission(
        client_id=client,
        submission_id=last.submission_id,
        weight=weight,
        client_weight=last.client_weight if last.HasField("client_weight") else None,
        base_version=base_version,
        tensors={name: _joined(columns) for name, columns in parts.items()},
        leaf=last.leaf,
    )


def _decoded(piece: pb.TensorSlice, tensor: TensorSpec, spec: RoundSpec) -> tuple[Array, Array | None]:
    is_implicit = piece.key_encoding == pb.KEY_ENCODING_IMPLICIT
    if is_implicit and piece.num_keys == 0 and spec.aggregation_of(tensor).op != "union":
        piece.num_keys = _implicit_keys(piece, tensor)
    keys = decode_keys(piece, piece.keys, np.dtype(f"u{tensor.key_bytes}"))
    if spec.aggregation_of(tensor).op == "union":  # whose values are ignored
        return keys, None
    return keys, decode_rows(piece, piece.values, tensor.dtype, len(keys) * tensor.row_width)


def _implicit_keys(piece: pb.TensorSlice, tensor: TensorSpec) -> int:
    """Returns the number of keys, which a slice with values need not say."""
    name = pb.ValueEncoding.Name(piece.value_encoding)[len("VALUE_ENCODING_") :].lower()
    size = len(piece.values)
    if name == "int8_scaled":  # n values and 4 bytes for each 64 of them
        return (size - 4 * -(-size // 68)) // tensor.row_width
    return size // DTYPES[tensor.dtype if name == "unspecified" else name] // tensor.row_width


def _joined(columns: list[tuple[Array, Array | None]]) -> tuple[Array, Array | None]:
    if len(columns) == 1:
        return columns[0]
    values = [values for _, values in columns if values is not None]
    return np.concatenate([keys for keys, _ in columns]), np.concatenate(values) if values else None


def _as_update(tensor: TensorSpec, keys: Array, values: Array | None) -> Any:
    if values is None:
        return keys, None
    if tensor.layout == "dense":
        return values.reshape(tensor.shape or (tensor.num_rows, tensor.row_width))
    rows = values if tensor.row_width == 1 else values.reshape(len(keys), tensor.row_width)
    return keys, rows


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
