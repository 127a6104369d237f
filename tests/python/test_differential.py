"""Random rounds and streams by every entrance, and by every auditor, with the bits of the reference (tests/support).

The golden vectors (wire/test_golden.py) hold the reference to what it has always said.

SPARSEAGG_TEST_CASES=5000 for more, SPARSEAGG_TEST_SEED to begin elsewhere; a failure prints its seed.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
import reference
import sparseagg as sa
from every_client import digest
from google.protobuf import json_format
from http_calls import LOCAL, request
from random_cases import Case, Counted, Sent, random_round, random_stream
from random_rounds import error_of
from real_server import ServerProcess
from signing import key_pair
from sparseagg import errors
from sparseagg.cluster import Cluster
from sparseagg.v1 import aggregation_pb2 as pb

FIRST = int(os.environ.get("SPARSEAGG_TEST_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SPARSEAGG_TEST_CASES", "150")))
FAILED = "failed"


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    """A server's key for certificates, and its public key in PEM."""
    private, public = key_pair(tmp_path_factory.mktemp("key"))
    return private, public.read_bytes()


@pytest.fixture(scope="module")
def certifying(tmp_path_factory, key):
    folder = tmp_path_factory.mktemp("certifying")
    flags = ("--certificate-key", str(key[0]), "--data-dir", str(folder / "data"))
    running = ServerProcess(folder / "log", *flags, *LOCAL)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def at_server(certifying):
    with sa.Client(certifying.address) as client:
        yield client


@pytest.fixture(scope="module")
def in_memory():
    with sa.Client(":memory:") as client:
        yield client


@pytest.fixture(scope="module")
def cluster():
    with Cluster(3, reducers=2) as cluster:
        yield cluster


# Sends consecutive submissions of distinct clients and of one base version to a round or stream. Returns the clients
# whose submissions were refused, and with which error.
Refused = dict[str, type[sa.SparseaggError]]
Submit = Callable[["sa.Round | sa.Stream", list[Sent]], Refused]


class OneByOne:
    """Submits each in a call of its own, or in some that can be resumed."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def __call__(self, opened, sent: list[Sent]) -> Refused:
        def submit(each: Sent) -> None:
            options = {} if each.base_version is None else {"base_version": each.base_version}
            options["resumable"] = bool(self._rng.random() < 0.5)
            opened.submit(each.client_id, each.update, each.weight, submission_id=each.submission_id, **options)

        errors = {each.client_id: error_of(functools.partial(submit, each)) for each in sent}
        return {name: error for name, error in errors.items() if error is not None}


def in_batches(opened, sent: list[Sent]) -> Refused:
    """Not for tensors of layout dense, which batches do not take."""
    columns = {}
    for tensor in opened.spec.tensors:
        parts = [each.update.get(tensor.name, ([], None)) for each in sent]
        offsets = np.cumsum([0, *(len(keys) for keys, _ in parts)])
        if offsets[-1] > 0:
            keys = np.concatenate([np.asarray(keys, np.uint64) for keys, _ in parts])
            columns[tensor.name] = (offsets, keys, np.concatenate([rows for _, rows in parts if rows is not None]))
    options = {} if sent[0].base_version is None else {"base_version": sent[0].base_version}
    weights = [1.0 if each.weight is None else each.weight for each in sent]
    names = [each.client_id for each in sent]
    receipt = opened.submit_batch(names, columns, weights, submission_id=sent[0].submission_id, **options)
    return {name: type(error) for name, error in receipt.refused.items()}


class ByHttp:
    """Submits over HTTP alone, with an encoder of its own."""

    def __init__(self, address: str, rng: np.random.Generator) -> None:
        self._address, self._rng = address, rng

    def __call__(self, opened, sent: list[Sent]) -> Refused:
        codes = {each.client_id: self._submit(opened, each) for each in sent}
        return {name: type(errors.error_of(grpc.StatusCode[code], "")) for name, code in codes.items() if code}

    def _submit(self, opened, each: Sent) -> str:
        """Returns the code of the refusal; "" if the submission counts."""
        chunk = pb.UpdateChunk(
            client_id=each.client_id, submission_id=each.submission_id, weight=each.weight,
            base_version=each.base_version,
        )  # fmt: skip
        chunks = [chunk]
        for name, data in each.update.items():
            tensor = opened.spec.tensor(name)
            keys, rows = data if isinstance(data, tuple) else (None, data)
            if keys is None:
                chunk.slices.add(
                    tensor=name, key_encoding=pb.KEY_ENCODING_IMPLICIT, num_keys=len(rows), values=rows.tobytes()
                )
                continue
            narrow = 0 < tensor.num_rows <= 2**32
            begin = 0
            while begin < len(keys):
                end = min(len(keys), begin + int(self._rng.integers(1, 40)))
                if self._rng.random() < 0.3:
                    chunk = pb.UpdateChunk(client_id=each.client_id, submission_id=each.submission_id)
                    chunks.append(chunk)
                chunk.slices.add(
                    tensor=name,
                    key_encoding=pb.KEY_ENCODING_U32 if narrow else pb.KEY_ENCODING_U64,
                    keys=keys[begin:end].astype("<u4" if narrow else "<u8").tobytes(),
                    values=rows[begin:end].tobytes(),
                )
                begin = end
        path = f"/v1/rounds/{opened.name.partition('/')[2]}"
        for sequence, part in enumerate(chunks):
            part.sequence, part.last = sequence, sequence == len(chunks) - 1
            if self._rng.random() < 0.5:
                answer = request(self._address, "POST", f"{path}/chunks", json_format.MessageToDict(part))
            else:
                data = part.SerializeToString()
                kind = {"content_type": "application/x-protobuf", "accept": "application/json"}
                answer = request(self._address, "POST", f"{path}/chunks", data, **kind)
            if answer.status != 200:
                return answer.json["code"]
        named = {"clientId": each.client_id, "submissionId": each.submission_id}
        answer = request(self._address, "POST", f"{path}/submissions", named)
        return "" if answer.status == 200 else answer.json["code"]


def groups(sent: list[Sent]) -> Iterator[list[Sent]]:
    """Submissions that may go in one batch, in order; one that is withdrawn is alone."""
    group: list[Sent] = []
    for each in sent:
        is_alone = each.is_withdrawn or (group and group[-1].is_withdrawn)
        fits = group and each.base_version == group[-1].base_version and not is_alone
        if group and (not fits or each.client_id in {other.client_id for other in group}):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def submit_all(opened, case: Case, submit: Submit) -> None:
    for group in groups(case.sent):
        expected = {each.client_id: each.refusal for each in group if each.refusal is not None}
        refused = submit(opened, group)
        # With several tensors, it is open which of two flaws is met first.
        assert refused == expected if len(case.spec.tensors) == 1 else refused.keys() == expected.keys()
        if group[-1].is_withdrawn:
            last = group[-1]
            assert opened.withdraw(last.client_id, *([last.submission_id] if case.options else []))


def outcome(expected: Counted, call: Callable[[], sa.Result]) -> str:
    """Compares what an entrance gives with the reference; returns a hash of it all, or "failed"."""
    if expected.fails:
        assert error_of(call) in (sa.RoundFailedError, sa.errors.FailedPreconditionError, sa.errors.OutOfRangeError)
        return FAILED
    result = call()
    assert expected.differences(result) == []
    return digest(result)


def audited(opened: sa.Round, pem: bytes, folder, *, has_failed: bool) -> None:
    """Verifies the certificate, and with it a bundle, whose result is computed again."""
    certificate = opened.certificate()
    if has_failed:
        [line] = sa.certificates.verify(certificate, pem)
        assert ": FAILED, " in line
        return
    sa.certificates.export_bundle(opened, folder)
    assert "computed again" in sa.certificates.verify(certificate, pem, bundle=folder)[-1]


def by_round(client: sa.Client, case: Case, submit: Submit, audit: Callable[..., None] | None = None) -> str:
    spec = case.spec if audit is None else case.spec.with_options(certificate=True, allow_export=True)
    opened = client.create_round(spec)
    try:
        submit_all(opened, case, submit)
        options = {}
        if case.factors is not None:
            opened.seal()
            options = {"client_weights": case.factors}
        found = outcome(case.rounds[0], lambda: opened.finish(**options))
        if audit is not None:
            audit(opened, has_failed=found == FAILED)
        return found
    finally:
        opened.delete()


def by_stream(client: sa.Client, case: Case, submit: Submit, audit: Callable[..., None] | None = None) -> list[str]:
    spec = case.spec if audit is None else case.spec.with_options(certificate=True, allow_export=True)
    stream = client.create_stream(spec, stream_id=uuid.uuid4().hex, **case.options)
    try:
        submit_all(stream, case, submit)
        stream.cut()
        found = []
        for number, expected in enumerate(case.rounds, start=1):
            found.append(outcome(expected, lambda: stream.result(number)))  # noqa: B023
            if audit is not None:
                audit(stream.round(number), has_failed=found[-1] == FAILED)
        assert stream.refresh().version == len(case.rounds) + 1
        return found
    finally:
        stream.delete()


def by_aggregator(case: Case, rng: np.random.Generator) -> sa.Result:
    aggregator = sa.Aggregator(case.spec, threads=int(rng.integers(1, 3)))
    for each in case.sent:
        error = error_of(lambda: aggregator.add(each.client_id, each.update, each.weight))  # noqa: B023
        assert error == each.refusal or (error and each.refusal and len(case.spec.tensors) > 1)
        if each.is_withdrawn:
            assert aggregator.withdraw(each.client_id)
    return aggregator.finish()


def by_aggregate(case: Case) -> sa.Result:
    counted = {each.client_id: (each.update, each.weight) for each in case.sent if each.client_id in case.client_ids}
    return sa.aggregate(counted, case.spec)


def by_cluster(cluster: Cluster, case: Case, submit: Submit) -> sa.Result:
    only = None if case.factors is None else [name for name, factor in case.factors.items() if factor]
    with cluster.create_round(case.spec) as opened:
        submit_all(opened, case, submit)
        return opened.finish(only=only)


def has_clips(spec: sa.RoundSpec) -> bool:
    return spec.clip is not None or any(tensor.clip is not None for tensor in spec.tensors)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_entrance_and_auditor_has_the_bits_of_the_reference(
    seed, in_memory, at_server, certifying, cluster, key, tmp_path
):
    print(f"SPARSEAGG_TEST_SEED={seed} SPARSEAGG_TEST_CASES=1")
    rng = np.random.default_rng([20261129, seed])
    case = random_stream(rng) if rng.random() < 0.4 else random_round(rng)
    print(case.spec, case.factors, case.options)
    folders = (tmp_path / f"bundle-{number}" for number in range(99))

    def audit(opened: sa.Round, **options: bool) -> None:
        audited(opened, key[1], next(folders), **options)

    by = by_round if case.options is None else by_stream
    one_by_one = OneByOne(rng)
    with sa.Client(certifying.address, chunk_bytes=int(rng.integers(100, 2000))) as chunked:
        found = {
            "memory": by(in_memory, case, one_by_one),
            "gRPC": by(chunked, case, one_by_one, audit),
            "HTTP": by(at_server, case, ByHttp(certifying.http_address, rng), audit),
        }
    if all(tensor.layout == "sparse" for tensor in case.spec.tensors):
        found["memory, batches"] = by(in_memory, case, in_batches)
        found["gRPC, batches"] = by(at_server, case, in_batches, audit)
    if case.options is None:
        [expected] = case.rounds
        factors = set((case.factors or {}).values())
        if case.factors is None:
            found["aggregator"] = outcome(expected, lambda: by_aggregator(case, rng))
            found["aggregate"] = outcome(expected, lambda: by_aggregate(case))
        if factors <= {0.0, 1.0} and factors != {0.0} and not has_clips(case.spec):
            found["cluster"] = outcome(expected, lambda: by_cluster(cluster, case, one_by_one))
    assert len({str(each) for each in found.values()}) == 1, found


def test_differences_finds_every_kind():
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)], return_counts=True, return_weights=True)
    updates = {"a": reference.Update({"v": ([1, 2], [[1.0], [2.0]])})}

    def result(**changes):
        good = {"keys": np.array([1, 2], np.uint32), "values": np.array([1, 2], np.float32)}
        good.update(counts=np.array([1, 1], np.uint32), weights=np.array([1.0, 1.0]))
        tensor = sa.TensorResult("v", "sparse", "float32", 10, 1, **{**good, **changes})
        return {"v": tensor}

    assert reference.differences(spec, updates, result()) == []
    for changes, word in (
        ({"keys": np.array([1, 3], np.uint32)}, "keys"),
        ({"values": np.nextafter(np.array([1, 2], np.float32), np.float32(9))}, "values"),
        ({"counts": np.array([1, 2], np.uint32)}, "counts"),
        ({"weights": np.array([1.0, 1.5])}, "weights"),
    ):
        (difference,) = reference.differences(spec, updates, result(**changes))
        assert word in difference
