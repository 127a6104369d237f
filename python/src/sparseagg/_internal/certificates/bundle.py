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
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.lib.format as npy
from google.protobuf.message import DecodeError

from sparseagg._internal.base.foreign import Array
from sparseagg._internal.certificates import statement
from sparseagg._internal.certificates.statement import VerificationError, content_digest, payload_of, wire_values
from sparseagg._internal.local.aggregator import Aggregator
from sparseagg._internal.results.result import Result, TensorResult
from sparseagg._internal.spec.options import DTYPES
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.updates.contributors import naming_client
from sparseagg._internal.wire.columns import decode_keys, decode_rows, read_varint
from sparseagg._internal.wire.encode import varint
from sparseagg.errors import EngineMissingError, InvalidArgumentError, SparseaggError, UnavailableError
from sparseagg.v1 import aggregation_pb2 as pb

if TYPE_CHECKING:
    from sparseagg._engine import Piece

Path = Union[str, "os.PathLike[str]"]
_CERTIFICATE, _SUBMISSIONS, _RESULT = "certificate.json", "submissions.pb", "result.npz"
_COLUMNS = ("counts", "weights", "moments")
_MOST_VARINT_BYTES = 10  # of a number of 64 bits


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
            self._file.write(varint(len(data)) + data)

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
    with open(pathlib.Path(folder) / _RESULT, "rb") as data:
        try:
            with np.load(data, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except Exception as error:  # zipfile, zlib and numpy have many for files that are damaged
            raise VerificationError(f"bundle: {_RESULT} cannot be read: {error!r}") from error


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
    """A submission of a bundle."""

    client_id: str
    submission_id: str
    weight: float | None  # as sent; None: none was
    # the factor of the close, or the staleness weight of a version of a stream; None: it had none
    client_weight: float | None
    base_version: int | None  # of a commit to a stream; None: of a round
    # keys and values of each tensor that was sent, in order of occurrence; values of a union are None
    tensors: dict[str, tuple[Array, Array | None]]
    leaf: bytes  # as the server has given it

    def made_leaf(self, spec: RoundSpec) -> bytes:
        """Returns the leaf that the content gives, with the salt of ``leaf``; ``VerificationError`` if it has none."""
        salt = leaf_fields(self.leaf, f"bundle: the leaf of client {self.client_id!r}")[0]
        weight = 1.0 if self.weight is None else self.weight
        tensors = []
        for tensor in spec.tensors:
            keys, values = self.tensors.get(tensor.name, (np.empty(0, np.uint64), None))
            tensors.append([tensor.name, len(keys), content_digest(keys, values)])
        return statement.encode_cbor([salt, self.client_id, self.submission_id, weight, self.base_version, *tensors])

    def without_content(self) -> StoredSubmission:
        """Returns the same submission without its tensors, which take most of the memory."""
        return dataclasses.replace(self, tensors={})

    def update(self, spec: RoundSpec) -> dict[str, Any]:
        """Returns the update, as ``aggregate`` takes it."""
        return {name: _as_update(spec.tensor(name), *columns) for name, columns in self.tensors.items()}


def leaf_fields(leaf: bytes, what: str) -> list[Any]:
    """Returns the fields of a leaf: salt, ids, weight, base version, and a list for each tensor.

    Raises ``VerificationError``, which begins with ``what``, if it is no leaf.
    """
    try:
        fields = statement.decode_cbor(leaf)
    except InvalidArgumentError:
        fields = None
    kinds: list[Any] = [bytes, str, str, float, (int, type(None))]
    if isinstance(fields, list) and len(fields) >= len(kinds) and all(map(isinstance, fields, kinds)):
        client, zero, position = fields[1].partition("\0")
        # Only a version of a stream, whose leaves have a base version, counts several commits of a client.
        if not zero or (fields[4] is not None and re.fullmatch("[0-9a-f]{16}", position)):
            return fields
        raise VerificationError(f"{what} has a log position behind client {client!r}, but no stream's base version")
    raise VerificationError(f"{what} is malformed")


def spec_of(statement: Mapping[str, Any]) -> RoundSpec:
    """Returns the spec of a certificate; ``VerificationError`` if it has none."""
    try:
        return RoundSpec._from_proto(pb.RoundSpec.FromString(base64.b64decode(statement["predicate"]["spec"])))
    except (KeyError, TypeError, ValueError, DecodeError) as error:
        raise VerificationError(f"certificate: the spec is malformed: {error}") from error


def read_submissions(folder: Path, spec: RoundSpec) -> Iterator[StoredSubmission]:
    """Yields the submissions in the order of the file; ``VerificationError`` names the place where it is malformed."""
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


def replay(folder: Path, *, submissions: Sequence[StoredSubmission] | None = None, device: str | None = None) -> Result:
    """Computes the result of a bundle again, in this process. Verifies nothing.

    Reads one submission at a time. Those whose order does not matter are merged as they are read, so that memory
    grows with the distinct keys. Others are held until all have been read.

    Args:
        folder: the bundle.
        submissions: those that were verified, with or without their tensors; the bundle must still have them. None:
            those that the bundle has.
        device: "cuda" or "cpu", as of ``aggregate``. No trace in the result.

    Raises:
        VerificationError: the bundle is malformed, or its submissions have no result by its spec.
        EngineMissingError, UnavailableError: as of ``Aggregator``.
        OSError: a file cannot be read.
    """
    spec = spec_of(payload_of(read_envelope(folder), "certificate"))
    # The weights of a round depend on the factors of all submissions, so that these are read before.
    counted = submissions
    if counted is None:
        counted = [each.without_content() for each in read_submissions(folder, spec)]
    try:
        merged = _CountedRound(spec, counted, device)
        for number, (known, each) in enumerate(zip(counted, read_submissions(folder, spec))):
            if submissions is not None and each.made_leaf(spec) != known.leaf:
                break
            # In a version of a stream, a client may have several commits, whose ids have positions behind a zero byte.
            name = f"{number:020}" if "\0" in known.client_id else known.client_id
            merged._add_all({name: (each.update(spec), merged.weights_of(known))})
        if merged.num_submissions != len(counted):
            raise VerificationError(f"bundle: {_SUBMISSIONS} was changed while it was read")
        return merged.finish()
    except (EngineMissingError, UnavailableError, VerificationError):
        raise
    except SparseaggError as error:
        raise VerificationError(f"bundle: its result cannot be computed again: {error}") from error


class _CountedRound(Aggregator):
    """A round whose submissions a server has counted: each tensor has its own weights, by docs/numerics.md.

    What is checked for callers only, such as that weights and options have an effect, is not checked here: it would
    make a round that the server has merged impossible to audit.
    """

    _IS_STORED = True

    def __init__(self, spec: RoundSpec, submissions: Iterable[StoredSubmission], device: str | None) -> None:
        # A close whose factors are all 1 changes no weighting; a stream's table of other weights does in each version.
        factors = [(each.base_version is not None, each.client_weight) for each in submissions]
        self._multiplies = any(factor is not None and (is_commit or factor != 1.0) for is_commit, factor in factors)
        self._weightings = [spec.aggregation_of(tensor).weighting for tensor in spec.tensors]
        super().__init__(spec, device=device)

    def weights_of(self, submission: StoredSubmission) -> list[float]:
        """Returns the weight of a submission in each tensor, in the order of the spec."""
        sent = 1.0 if submission.weight is None else submission.weight
        factor = submission.client_weight if self._multiplies and submission.client_weight is not None else 1.0
        return [(sent if weighting == "by_weight" else 1.0) * factor for weighting in self._weightings]

    def _message(self, spec: RoundSpec) -> Any:
        message = spec._to_proto()
        for proto in message.tensors if self._multiplies else ():
            proto.aggregation.weighting = pb.WEIGHTING_BY_WEIGHT
        return message

    def _convert_pair(self, client_id: str, update: Any) -> tuple[list[Piece], float | list[float] | None]:
        update, weights = update
        with naming_client(client_id):
            return self._pieces(update), weights


def _read_chunks(path: pathlib.Path) -> Iterator[pb.ExportedChunk]:
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        begin = 0
        while head := file.read(_MOST_VARINT_BYTES):
            try:
                size, used = read_varint(memoryview(head), 0)
            except ValueError:
                raise VerificationError(f"bundle: {_SUBMISSIONS} ends within a length, at byte {begin}") from None
            file.seek(begin + used)
            data = file.read(min(size, end))  # a damaged length may be beyond all memory
            if len(data) < size:
                raise VerificationError(f"bundle: {_SUBMISSIONS} ends within the chunk at byte {begin}")
            try:
                yield pb.ExportedChunk.FromString(data)
            except DecodeError:
                raise VerificationError(f"bundle: {_SUBMISSIONS} has no chunk at byte {begin}") from None
            begin = file.tell()


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
        except (DecodeError, ValueError, KeyError, OverflowError, MemoryError) as error:
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
    keys = decode_keys(piece, piece.keys, np.dtype("u8"))
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
    if tensor.layout == "dense":
        if not np.array_equal(keys, np.arange(tensor.num_rows)):
            raise VerificationError(
                f"bundle: tensor {tensor.name!r} is dense, and a submission has not all of its rows"
            )
        if values is None:  # of a union; any will do
            dtype = "uint16" if tensor.dtype == "bfloat16" else tensor.dtype
            values = np.zeros(tensor.num_rows * tensor.row_width, dtype)
        return values.reshape(tensor.shape or (tensor.num_rows, tensor.row_width))
    if values is None:
        return keys, None
    rows = values if tensor.row_width == 1 else values.reshape(len(keys), tensor.row_width)
    return keys, rows
