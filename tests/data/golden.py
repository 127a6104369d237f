"""The golden suite: cases to wire bytes and expected pages, bit for bit, in golden.json.

A case has a name, a comment, and as proto3 JSON: `spec`; `chunks`, the bytes of each UpdateChunk in order of sending,
without its round; `format`, how the result is asked for; `expected`, a ResultPage for each tensor, left out where only
a refusal is of interest; `expectedCode` and `expectedMessageContains` of the one refusal: of CreateRound if there are
no chunks, else of the first chunk or commit refused (other clients' submissions count), else of the failed merge.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import reference
from golden_cases import Case, cases
from google.protobuf import json_format
from sparseagg._internal.client.upload import make_upload
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.wire.columns import decode_values, encode_values, first_misfit
from sparseagg._internal.wire.encode import WireFormat
from sparseagg.v1 import aggregation_pb2 as pb

PATH = pathlib.Path(__file__).parent / "golden.json"


def encode_case(case: Case) -> list[pb.UpdateChunk]:
    """The chunks of a case in order of sending, as the client library makes them; bad ones spoilt afterwards."""
    uploads = []
    for client in case.clients:
        upload = make_upload(
            case.spec,
            client.tensors,
            client_id=client.id,
            submission_id=f"{client.id}-1",
            weight=None,
            chunk_bytes=case.chunk_bytes,
            wire=case.wire,
        )
        # The client library refuses a weight that no tensor uses; a server takes it.
        upload = dataclasses.replace(upload, weight=None if client.weight is None else float(client.weight))
        chunks = [pb.UpdateChunk.FromString(chunk.serialise()) for chunk in upload.chunks()]
        if client.spoil is not None:
            client.spoil(chunks)
        uploads.append(chunks)
    if not case.interleave:
        return [chunk for chunks in uploads for chunk in chunks]
    longest = max(len(chunks) for chunks in uploads)
    return [chunks[i] for i in range(longest) for chunks in uploads if i < len(chunks)]


def expected_pages(case: Case) -> list[pb.ResultPage]:
    """What must come back, by the reference, from the submissions that are not refused."""
    if not case.clients or (case.code and case.refused is None):
        return []
    updates = {client.id: _update(case.spec, client.tensors, client.weight, case.wire) for client in case.clients}
    updates.pop(case.refused, None)
    merged = reference.merge(case.spec, updates)
    pages = [_page(case.spec, tensor, merged[tensor.name]) for tensor in case.spec.tensors]
    for tensor, page in zip(case.spec.tensors, pages):
        _pack(page, tensor, case.result)
    return pages


def _update(spec: RoundSpec, tensors: dict[str, Any], weight: float | None, wire: WireFormat) -> reference.Update:
    """An update as the reference takes it: values as the numbers that the wire's dtype holds."""
    columns = {}
    for name, tensor in tensors.items():
        dtype = spec.tensor(name).dtype
        keys, rows = tensor if isinstance(tensor, tuple) else (None, tensor)
        if rows is not None:
            rows = np.asarray(rows)
            if dtype == "bfloat16":
                rows = (rows.astype(np.uint32) << 16).view(np.float32)
            else:
                rows = rows.astype(dtype)
            encoding = wire.value_encoding(spec.tensor(name))
            if encoding != dtype:
                narrow = encode_values(rows, encoding)
                rows = decode_values(narrow, encoding, dtype, rows.size).reshape(rows.shape)
        columns[name] = (keys, rows)
    return reference.Update(columns, weight)


def _page(spec: RoundSpec, tensor: TensorSpec, merged: reference.MergedTensor) -> pb.ResultPage:
    how = spec.aggregation_of(tensor)
    has_values = merged.rows is not None
    dense = merged.layout == "dense"
    page = pb.ResultPage(
        slice=pb.TensorSlice(
            tensor=tensor.name,
            key_encoding="KEY_ENCODING_IMPLICIT" if dense else f"KEY_ENCODING_U{tensor.key_bytes * 8}",
            value_encoding="VALUE_ENCODING_" + (merged.dtype.upper() if has_values else "NONE"),
            num_keys=len(merged.keys),
            keys_sorted=True,
            keys_unique=True,
        ),
        summary=pb.TensorSummary(
            name=tensor.name,
            num_keys=len(merged.keys),
            layout="TENSOR_LAYOUT_" + merged.layout.upper(),
            dtype="DTYPE_" + merged.dtype.upper(),
            row_width=tensor.row_width,
            num_rows=tensor.num_rows,
            has_values=has_values,
            has_counts=how.return_counts or how.op == "union",
            has_weights=how.return_weights,
            num_cut_keys=merged.num_cut,
            has_moments=merged.moments is not None,
        ),
    )
    if not dense:
        page.slice.keys = np.array(merged.keys, f"<u{tensor.key_bytes}").tobytes()
    if has_values:
        page.slice.values = reference.encode_values(merged.rows, merged.dtype)
    if page.summary.has_counts:
        page.counts = np.array(merged.counts, "<u4").tobytes()
    if page.summary.has_weights:
        page.weights = np.array(merged.weights, "<f8").tobytes()
    if merged.moments is not None:
        page.moments = reference.encode_values(merged.moments, "float64")
    return page


def _pack(page: pb.ResultPage, tensor: TensorSpec, wire: WireFormat) -> None:
    """Packs a plain page of a sparse result as a server does that is asked for ``wire``."""
    keys = np.frombuffer(page.slice.keys, f"<u{tensor.key_bytes}")
    if len(keys):
        name, page.slice.first_key, packed = wire.encode_keys(keys)
        page.slice.keys = bytes(packed)
        page.slice.key_encoding = pb.KeyEncoding.Value("KEY_ENCODING_" + name)
    narrow = wire.values.get(tensor.name)
    if narrow is not None:
        values = np.frombuffer(page.slice.values, pb.DType.Name(page.summary.dtype)[len("DTYPE_") :].lower())
        if first_misfit(values, narrow) is None:
            page.slice.values = encode_values(values, narrow)
            page.slice.value_encoding = pb.ValueEncoding.Value("VALUE_ENCODING_" + narrow.upper())


def _format(case: Case) -> pb.ResultFormat:
    """What asks for ``case.result``."""
    narrow = set(case.result.values.values())
    assert len(narrow) <= 1, "one encoding for all tensors"
    return pb.ResultFormat(
        key_encodings=sorted(pb.KeyEncoding.Value(f"KEY_ENCODING_{name.upper()}") for name in case.result.keys),
        value_encoding="VALUE_ENCODING_" + (narrow.pop().upper() if narrow else "UNSPECIFIED"),
    )


def suite() -> dict[str, Any]:
    """The suite in proto3 JSON."""
    return {"cases": [_case_to_json(case) for case in cases()]}


def _case_to_json(case: Case) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": case.name,
        "comment": case.comment,
        "spec": json_format.MessageToDict(case.spec._to_proto()),
        "chunks": [base64.b64encode(chunk.SerializeToString()).decode() for chunk in encode_case(case)],
        "expected": [json_format.MessageToDict(page) for page in expected_pages(case)],
        "expectedCode": case.code,
        "expectedMessageContains": case.message,
        "format": json_format.MessageToDict(_format(case)),
    }
    return {name: value for name, value in entry.items() if value}


def text() -> str:
    """The contents of golden.json."""
    return json.dumps(suite(), indent=1, ensure_ascii=False) + "\n"
