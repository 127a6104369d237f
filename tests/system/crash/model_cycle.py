"""A cycle of the crash test that is a model."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from typing import Any

import grpc
import numpy as np
import sparseagg as sa
from sparseagg.v1 import aggregation_pb2, models_pb2

from crash.cycle import Cycle
from crash.fail_points import is_at_restart
from crash.failure import Failure
from crash.server import Server

NUM_ROWS, WIDTH = 4000, 16
SCALE, SEED = 0.05, 7
LEARNING_RATE, BETA_1, BETA_2, TAU = 0.1, 0.9, 0.99, 1e-3
EXPIRE_AFTER = 3
NUM_VERSIONS = 12
SPEC = sa.RoundSpec(
    tensors=[sa.TensorSpec("v", dtype="float32", num_rows=NUM_ROWS, row_width=WIDTH)], op="sum", result_layout="sparse"
)
RETRIED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
RETRY_S = 60

Rows = tuple[np.ndarray, np.ndarray]  # keys and rows


def initial_rows(keys: np.ndarray) -> np.ndarray:
    """The rows of INIT_KIND_UNIFORM by models.proto, with Philox4x32-10 written out."""
    mask = np.uint64(0xFFFFFFFF)
    rows = np.empty((len(keys), WIDTH), np.uint64)
    for block in range(WIDTH // 4):
        c = [keys & mask, keys >> np.uint64(32), np.full_like(keys, block), np.zeros_like(keys)]  # tensor 0
        k = [SEED & 0xFFFFFFFF, SEED >> 32]
        for _ in range(10):
            p, q = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
            c = [
                (q >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]),
                q & mask,
                (p >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]),
                p & mask,
            ]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        rows[:, 4 * block : 4 * block + 4] = np.stack(c, axis=1)
    words = 2 * rows.astype(np.int64) + 1 - 2**32
    return (SCALE * (words.astype(np.float64) * 2.0**-32)).astype(np.float32)


class Oracle:
    """FedAdam with bias correction and expiry, in NumPy, as models.proto writes them."""

    def __init__(self) -> None:
        self.rows = [(np.empty(0, np.uint64), np.empty((0, WIDTH), np.float32))]  # by version
        self._x = np.zeros((NUM_ROWS, WIDTH), np.float32)
        self._m = np.zeros_like(self._x)
        self._v = np.zeros_like(self._x)
        self._touched = np.full(NUM_ROWS, -1)
        self._powers = [BETA_1, BETA_2]
        self.learning_rate = LEARNING_RATE

    def apply(self, delta: Rows) -> None:
        version = len(self.rows)
        keys, d = delta[0].astype(np.int64), delta[1].astype(np.float64)
        if len(keys):
            new = keys[self._touched[keys] < 0]
            self._x[new] = initial_rows(new.astype(np.uint64))
            self._powers = [self._powers[0] * BETA_1, self._powers[1] * BETA_2]
            rate = self.learning_rate * (np.sqrt(1 - self._powers[1]) / (1 - self._powers[0]))
            m = BETA_1 * self._m[keys].astype(np.float64) + (1 - BETA_1) * d
            v = BETA_2 * self._v[keys].astype(np.float64) + (1 - BETA_2) * (d * d)
            x = self._x[keys].astype(np.float64) + (rate * m) / (np.sqrt(v) + TAU)
            self._m[keys], self._v[keys], self._x[keys] = m, v, x
            self._touched[keys] = version
        expired = (self._touched >= 0) & (self._touched < version - EXPIRE_AFTER)
        self._m[expired] = self._v[expired] = 0
        self._touched[expired] = -1
        (present,) = np.nonzero(self._touched >= 0)
        self.rows.append((present.astype(np.uint64), self._x[present]))


class ModelCycle(Cycle):
    """One model, from its creation to its deletion: rounds or a stream make its versions, and somebody reads."""

    def __init__(self, server: Server, number: int, rng: random.Random, point: str) -> None:
        super().__init__(server, rng, point, is_at_restart(point))
        self._id = f"model-{number}"
        self._has_stream = rng.random() < 0.5
        self._numpy = np.random.default_rng(rng.getrandbits(32))
        self._oracle = Oracle()
        self._learning_rate: dict[str, Any] = {}

    def run(self) -> int:
        """Returns the number of versions."""
        self.start()
        with self.disturbed() as kill_now, self.connected() as client:
            stream = client.create_stream(SPEC, buffer=2, stream_id=f"s-{self._id}") if self._has_stream else None
            self._create(stream)
            for version in range(1, NUM_VERSIONS + 1):
                if self.rng.random() < 0.15 and (not self._armed or self.points):
                    kill_now.set()
                self._oracle.apply(self._make(client, stream, version))
                self._check(self._wait(version))
            kill_now.set()
            while kill_now.is_set():
                time.sleep(0.001)
            self._check(self._wait(NUM_VERSIONS))
            self._call("DeleteModel", models_pb2.DeleteModelRequest(model=f"models/{self._id}"), gone=True)
            if self._call("ListModels", models_pb2.ListModelsRequest()).models:
                raise Failure("a model is left that was deleted")
            if stream is not None:
                with contextlib.suppress(sa.errors.NotFoundError):
                    stream.delete()
        return NUM_VERSIONS

    def _create(self, stream: sa.Stream | None) -> None:
        tensor = models_pb2.ModelTensor(
            name="v",
            dtype=aggregation_pb2.DTYPE_FLOAT32,
            num_rows=NUM_ROWS,
            row_width=WIDTH,
            init=models_pb2.InitSpec(kind=models_pb2.INIT_KIND_UNIFORM, scale=SCALE, seed=SEED),
            expire_after=EXPIRE_AFTER,
        )
        optimizer = models_pb2.OptimizerSpec(kind=models_pb2.OPTIMIZER_KIND_FEDADAM, learning_rate=LEARNING_RATE)
        spec = models_pb2.ModelSpec(tensors=[tensor], optimizer=optimizer)
        if stream is None:
            spec.keep_versions = 3
        else:
            spec.stream = stream.name
        self._call("CreateModel", models_pb2.CreateModelRequest(model_id=self._id, spec=spec))

    def _update(self) -> Rows:
        is_large = self._numpy.random() < 0.6
        num_keys = int(self._numpy.integers(3000, NUM_ROWS) if is_large else self._numpy.integers(1, 60))
        keys = np.sort(self._numpy.choice(NUM_ROWS, num_keys, replace=False))
        return keys, self._numpy.standard_normal((num_keys, WIDTH)).astype(np.float32)

    def _make(self, client: sa.Client, stream: sa.Stream | None, version: int) -> Rows:
        """Makes the version; returns the merged rows."""
        if stream is not None:
            for name in ("a", "b"):
                update = {"v": self._update()}
                stream.submit(name, update, base_version=version - 1, submission_id=f"{version}")
            return _rows(stream.result(version)["v"])
        request = models_pb2.ApplyRoundRequest(model=f"models/{self._id}", base_version=version - 1)
        if version % 5 == 4:
            self._oracle.learning_rate = request.learning_rate = float(self._numpy.random())
            delta = (np.empty(0, np.uint64), np.empty((0, WIDTH), np.float32))
            if self.rng.random() < 0.5:
                self._apply(request)
                return delta
        rnd = client.create_round(dataclasses.replace(SPEC, min_submissions=2), round_id=f"r-{self._id}.{version}")
        for name in ("a", "b"):
            rnd.submit(name, {"v": self._update()}, submission_id="s")
        merged = _rows(rnd.finish()["v"])
        request.round = rnd.name
        self._apply(request)
        other = models_pb2.ApplyRoundRequest(model=request.model, base_version=version - 1, round="rounds/another")
        try:
            self._call("ApplyRound", other)
            raise Failure("another round was applied to a base that has a version")
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.FAILED_PRECONDITION or rnd.name not in error.details():
                raise Failure(f"another round was refused with {error}") from error
        if self.rng.random() < 0.5:
            with contextlib.suppress(sa.errors.NotFoundError):  # an earlier attempt has deleted it
                rnd.delete()
            self._apply(request)
        return merged

    def _apply(self, request: models_pb2.ApplyRoundRequest) -> None:
        made = self._call("ApplyRound", request)
        if (made.version, made.round) != (request.base_version + 1, request.round):
            raise Failure(f"version {request.base_version + 1} of {request.round} is {made}")

    def _wait(self, version: int) -> models_pb2.Model:
        """Returns the model when it has the version."""
        until = time.monotonic() + RETRY_S
        while time.monotonic() < until:
            request = models_pb2.GetModelRequest(model=f"models/{self._id}", after_version=version - 1)
            request.timeout.seconds = 1
            model: models_pb2.Model = self._call("GetModel", request)
            if model.version > version:
                raise Failure(f"version {version} is applied twice: the model has {model.version}")
            if model.version == version:
                return model
        raise Failure(f"version {version} never came: {model.waiting_reason}")

    def _check(self, model: models_pb2.Model) -> None:
        """Compares all rows of the versions that can be read with the oracle's."""
        for version in {model.version, max(model.oldest_version, model.version - self.rng.randrange(4))}:
            try:
                keys, rows = self._read(version)
            except grpc.RpcError as error:  # a restart keeps those after its snapshot only
                if error.code() != grpc.StatusCode.FAILED_PRECONDITION or version == model.version:
                    raise
                continue
            wanted = self._oracle.rows[version]
            if not np.array_equal(keys, wanted[0]):
                raise Failure(f"version {version} has other keys than the oracle's")
            if rows.tobytes() != wanted[1].tobytes():
                raise Failure(f"version {version} has other bits than the oracle's")

    def _read(self, version: int) -> Rows:
        keys: list[np.ndarray] = []
        rows: list[np.ndarray] = []
        request = models_pb2.ReadRowsRequest(model=f"models/{self._id}", version=version, max_page_bytes=100_000)
        while True:
            page = self._call("ReadRows", request)
            if page.version != version or page.untouched:
                raise Failure(f"a page of version {version} is of {page.version}, or has untouched rows")
            keys.append(np.frombuffer(page.slice.keys, np.uint32).astype(np.uint64))
            rows.append(np.frombuffer(page.slice.values, np.float32).reshape(-1, WIDTH))
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return np.concatenate(keys), np.concatenate(rows)

    def _call(self, method: str, request: Any, gone: bool = False) -> Any:
        """Calls again until the server is back. ``gone``: NOT_FOUND is an answer, too, of a call that was repeated."""
        answer = models_pb2.DESCRIPTOR.services_by_name["Models"].methods_by_name[method].output_type
        decode = getattr(models_pb2, answer.name).FromString if hasattr(models_pb2, answer.name) else bytes
        until = time.monotonic() + RETRY_S
        while True:
            try:
                with grpc.insecure_channel(self.server.address) as channel:
                    call = channel.unary_unary(
                        f"/sparseagg.v1.Models/{method}", type(request).SerializeToString, decode
                    )
                    return call(request, timeout=RETRY_S)
            except grpc.RpcError as error:
                if gone and error.code() == grpc.StatusCode.NOT_FOUND:
                    return None
                if error.code() not in RETRIED or time.monotonic() > until:
                    raise
                time.sleep(0.02)


def _rows(result: sa.TensorResult) -> Rows:
    assert result.values is not None
    return result.keys.astype(np.uint64), result.values
