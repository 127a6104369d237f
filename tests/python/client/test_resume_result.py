"""Results that are read over connections that break: what has come is not read again, and the bits are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
import sparseagg as sa
from every_client import SHELLS, digest, settled
from google.protobuf import timestamp_pb2
from sparseagg.v1 import aggregation_pb2 as pb
from test_retry import serving

SEED = 20261209
PAGE_BYTES = 1 << 20  # by default
SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("sparse", "float32", num_rows=1_000_000, row_width=2),
        sa.TensorSpec("dense", "float64", num_rows=300_000, layout="dense"),
        sa.TensorSpec("small", "int64", num_rows=10),
    ],
    return_counts=True,
    return_weights=True,
)
# Attempts count anew with each page that comes.
# A break may take with it what the client has not read yet: on a busy machine some attempts in a row bring no page.
FEW = sa.RetryPolicy(attempts=8, initial=0.01, maximum=0.05)


@pytest.fixture(scope="module")
def opened(client: sa.Client) -> Iterator[sa.Round]:
    """A round that is done, of some 11 MB, a dozen pages."""
    rng = np.random.default_rng(SEED)
    made = client.create_round(SPEC)
    for name in ("a", "b"):
        keys = np.unique(rng.integers(0, 1_000_000, 250_000))
        rows = rng.normal(size=(len(keys), 2)).astype(np.float32)
        made.submit(name, {"sparse": (keys, rows), "dense": rng.normal(size=300_000), "small": ([3], [7])})
    made.start_merge()
    made.wait()
    yield made
    made.delete()


@SHELLS
@pytest.mark.parametrize(
    "options",
    [{}, {"value_encoding": "int8_scaled"}, {"keys": (1234, 900_000)}, {"tensors": ["dense"], "key_encoding": "plain"}],
    ids=["all", "rounded", "range", "one"],
)
def test_result_goes_on_where_the_connection_broke(flaky: Callable, opened: sa.Round, shell: type, options: dict):
    print(f"seed {SEED}")
    expected = digest(opened.result(**options))
    # No connection carries much more than a page: only a client that goes on ever has it all.
    proxy = flaky(*[PAGE_BYTES * 5 // 4] * 100, of_answers=True)
    with settled(shell, proxy.address, retry=FEW) as unlucky:
        assert digest(unlucky.get_round(opened.name).result(**options)) == expected
    assert proxy.broken >= 4


class Replaced:
    """Has a round whose second page comes after another one of its name has been made."""

    def __init__(self) -> None:
        self.created = 1

    def GetRound(self, request, context):
        made = pb.Round(name=request.round, state=pb.ROUND_STATE_DONE)
        made.create_time.CopyFrom(timestamp_pb2.Timestamp(seconds=self.created))
        made.spec.tensors.add(name="v", dtype=pb.DTYPE_FLOAT32, num_rows=10)
        return made

    def page(self, key: int) -> pb.ResultPage:
        values = np.ones(1, "<f4").tobytes()
        piece = pb.TensorSlice(
            tensor="v", key_encoding="KEY_ENCODING_IMPLICIT", first_key=key, num_keys=1, values=values
        )
        return pb.ResultPage(slice=piece)

    def StreamResult(self, request, context):
        first = self.page(1)
        first.summary.MergeFrom(pb.TensorSummary(name="v", dtype=pb.DTYPE_FLOAT32, num_rows=10, has_values=True))
        first.next_page_token = "0.1"
        yield first
        self.created = 2
        context.abort(grpc.StatusCode.UNAVAILABLE, "going down")

    def GetResult(self, request, context):
        assert (request.tensor, request.page_token) == ("v", "0.1")
        return self.page(2)


@SHELLS
def test_result_is_not_put_together_of_two_rounds_of_the_same_name(shell: type) -> None:
    with serving(Replaced()) as address, settled(shell, address, retry=FEW) as client:
        opened = client.get_round("r")
        with pytest.raises(
            sa.errors.AbortedError, match="rounds/r is another round than the one whose result was begun"
        ):
            opened.result()
