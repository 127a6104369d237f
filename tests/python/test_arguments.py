"""Arguments that cannot be sent are refused as InvalidArgumentError, with the argument's name and its value."""

from __future__ import annotations

import decimal
import fractions
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
import sparseagg as sa
from fake_libraries import FakeTorch

TENSOR = sa.TensorSpec("v", "float32", num_rows=10)
SPEC = sa.RoundSpec([TENSOR], weighting="by_weight")
UPDATE = {"v": ([1], [1.0])}
WEIGHTS = [10**400, fractions.Fraction(10**400), 10**5000]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"deadline": 1e20}, r"deadline .* got 1e\+20"),
        ({"deadline": math.inf}, "deadline .* got inf"),
        ({"deadline": math.nan}, "deadline .* got nan"),
        ({"deadline": "60"}, "deadline must be a number of seconds or a timedelta, got '60'"),
        ({"deadline": True}, "deadline must be a number of seconds or a timedelta, got True"),
        ({"deadline": -1}, "deadline must be a number of seconds or a timedelta, got -1"),
        ({"deadline": np.timedelta64(60, "ns")}, "deadline must be a number of seconds or a timedelta, got np"),
        ({"deadline": "60s"}, "deadline must be a number of seconds or a timedelta, got '60s'"),
        ({"result_ttl": 10**400}, "result_ttl .* got 1000"),
        ({"min_submissions": "x"}, "min_submissions cannot be 'x'"),
        ({"max_submissions": -1}, "max_submissions cannot be -1"),
        ({"max_tuples_per_submission": 10**30}, "max_tuples_per_submission cannot be 1000"),
        ({"max_bytes_per_submission": 1.5}, r"max_bytes_per_submission cannot be 1\.5"),
        ({"min_contributors": -1}, "min_contributors cannot be -1"),
        ({"fill": 10**400}, "fill cannot be 1000"),
        ({"fixed_divisor": 10**5000}, "fixed_divisor cannot be int with more digits"),
    ],
)
def test_spec_of_what_no_field_can_hold_names_field_and_value(options: dict[str, Any], text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=text):
        sa.RoundSpec([TENSOR], **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": 5}, "a tensor's name must be a string, got 5"),
        ({"name": None}, "a tensor's name must be a string, got None"),
        ({"name": b"v"}, "a tensor's name must be a string, got b'v'"),
        ({"num_rows": -1}, r"tensor 'v': num_rows must be a number of rows .*, got -1"),
        ({"num_rows": 2**64}, r"tensor 'v': num_rows must be .*, got 18446744073709551616"),
        ({"num_rows": None}, "tensor 'v': neither num_rows nor shape is given"),
        ({"num_rows": "10"}, "tensor 'v': num_rows must be .*, got '10'"),
        ({"num_rows": True}, "tensor 'v': num_rows must be .*, got True"),
        ({"row_width": 1.5}, r"tensor 'v': row_width must be a number of values from 1 .*, got 1\.5"),
        ({"row_width": 0}, "tensor 'v': row_width must be .*, got 0"),
        ({"row_width": 2**32}, "tensor 'v': row_width must be .*, got 4294967296"),
    ],
)
def test_tensor_of_what_no_field_can_hold_is_refused_when_it_is_made(options: dict[str, Any], text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=text):
        sa.TensorSpec(**{"name": "v", "dtype": "float32", "num_rows": 10, **options})


def test_option_of_a_tensor_that_no_field_can_hold_names_tensor_field_and_value() -> None:
    with pytest.raises(sa.InvalidArgumentError, match="tensor 'v': fill cannot be 1000"):
        sa.TensorSpec("v", "float32", num_rows=10, fill=10**400)._to_proto()


@pytest.mark.parametrize(
    ("tensors", "text"), [(TENSOR, "got TensorSpec"), (["v"], r"got \['v'\]"), ("v", "got 'v'"), (None, "got None")]
)
def test_spec_of_no_tensors_says_so(tensors: Any, text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=f"tensors must be a list of TensorSpec, {text}"):
        sa.RoundSpec(tensors)


@pytest.mark.parametrize(
    ("field", "value", "known"),
    [
        ("op", "avg", "sum, mean, coordinate_mean"),
        ("weighting", "weighted", "uniform, by_weight"),
        ("result_layout", 5, "sparse, dense, auto"),
        ("numerics", "float", "canonical, binned"),
        ("mean_divisor", "", "weights, submissions, fixed"),
        ("on_nonfinite", "op_7", "reject, propagate"),
        ("on_empty", "zero", "fail, keep"),
    ],
)
def test_spec_of_an_unknown_word_is_refused_when_it_is_made(field: str, value: Any, known: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=f"^unknown {field} {value!r}; known: {known}"):
        sa.RoundSpec([TENSOR], **{field: value})
    with pytest.raises(sa.InvalidArgumentError, match=f"^tensor 'v': unknown {field} {value!r}; known: {known}"):
        sa.TensorSpec("v", "float32", num_rows=10, **{field: value})


def test_spec_takes_tensors_of_an_iterator() -> None:
    assert sa.RoundSpec(tensor for tensor in [TENSOR]).tensors == (TENSOR,)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", 1025, 10**10, 10**5000], ids=range(8))
def test_aggregator_of_what_is_no_number_of_threads_says_so(threads: Any) -> None:
    with pytest.raises(sa.InvalidArgumentError, match="threads must be a number of threads from 1 to 1024"):
        sa.Aggregator(SPEC, threads=threads)


@pytest.mark.parametrize("weight", WEIGHTS, ids=["int", "fraction", "long"])
def test_weight_beyond_float64_is_refused(client: sa.Client, weight: Any) -> None:
    opened = client.create_round(SPEC)
    for use in (
        lambda: opened.submit("a", UPDATE, weight),
        lambda: client.aggregate([(UPDATE, weight)], SPEC),
        lambda: sa.Aggregator(SPEC).add("a", UPDATE, weight),
        lambda: sa.aggregate([(UPDATE, weight)], SPEC),
    ):
        with pytest.raises(sa.InvalidArgumentError, match="a weight must be a number that float64 can hold, got"):
            use()


@pytest.mark.parametrize(
    ("client_id", "text"),
    [
        (5.0, "got 5.0"),
        (True, "got True"),
        (10**5000, "got int with"),
        (None, "got None"),
    ],
    ids=range(4),
)
def test_client_id_that_is_no_text_is_refused(client: sa.Client, client_id: Any, text: str) -> None:
    opened = client.create_round(SPEC)
    for use in (
        lambda: opened.submit(client_id, UPDATE, 1.0),
        lambda: client.aggregate({client_id: (UPDATE, 1.0)}, SPEC),
        lambda: sa.Aggregator(SPEC).add(client_id, UPDATE, 1.0),
        lambda: sa.aggregate({client_id: (UPDATE, 1.0)}, SPEC),
        lambda: sa.aggregate({client_id: (UPDATE, 1.0)}, SPEC, memory_limit=1 << 20),
    ):
        with pytest.raises(sa.InvalidArgumentError, match=f"a client id must be .*{text}"):
            use()


@pytest.mark.parametrize("seven", [7, np.int64(7), np.uint8(7)])
def test_client_id_that_is_an_integer_is_its_decimal_text(client: sa.Client, seven: Any) -> None:
    """Sums are folded in the order of the text: 10 comes before 7."""
    keys, rows = [1], np.array([[1e16], [1.0], [-1e16]])
    spec = sa.RoundSpec([sa.TensorSpec("v", "float64", num_rows=10)])
    by_id = dict(zip((seven, 10, 1), rows))
    expected = sa.aggregate({"7": (keys, rows[0]), "10": (keys, rows[1]), "1": (keys, rows[2])}, spec)["v"].values
    updates = {client_id: (keys, row) for client_id, row in by_id.items()}
    results = [
        sa.aggregate(updates, spec),
        client.aggregate(updates, spec),
        sa.aggregate(updates, spec, memory_limit=1 << 20),
    ]
    aggregator, opened = sa.Aggregator(spec), client.create_round(spec)
    for client_id, update in updates.items():
        aggregator.add(client_id, update)
        assert opened.submit(client_id, update).client_id == str(int(client_id))
    for result in (*results, aggregator.finish(), opened.finish()):
        assert result["v"].values.tobytes() == expected.tobytes()
    with pytest.raises(sa.errors.AlreadyExistsError, match="client '7'"):
        sa.aggregate({seven: (keys, rows[0]), "7": (keys, rows[1])}, spec)


@pytest.mark.parametrize(("name", "text"), [(5, "got 5"), (np.int64(5), "got .*5")])
def test_names_that_are_no_text_are_refused(client: sa.Client, name: Any, text: str) -> None:
    opened = client.create_round(SPEC)
    for use, what in (
        (lambda: client.get_round(name), "a round's name"),
        (lambda: client.create_round(SPEC, name), "a round's id"),
        (lambda: opened.submit("a", UPDATE, 1.0, submission_id=name), "a submission id"),
        (lambda: opened.cancel(name), "a reason"),
    ):
        with pytest.raises(sa.InvalidArgumentError, match=f"{what} must be a string.* {text}"):
            use()


KEYS, ROWS = np.array([1, 2]), np.array([3.0, 4.0])


@pytest.mark.parametrize("other", [[UPDATE], {"tensors": []}, 5])
def test_what_is_no_spec_is_refused(client: sa.Client, other: Any) -> None:
    for use in (
        lambda: client.create_round(other),
        lambda: client.aggregate([UPDATE], other),
        lambda: sa.aggregate([UPDATE], other),
        lambda: sa.Aggregator(other),
    ):
        with pytest.raises(sa.InvalidArgumentError, match="spec must be a RoundSpec, got"):
            use()


@pytest.mark.parametrize("updates", [5, None, "abc", SPEC])
def test_updates_that_cannot_be_gone_through_are_refused(client: sa.Client, updates: Any) -> None:
    for aggregate in (client.aggregate, sa.aggregate):
        with pytest.raises(
            sa.InvalidArgumentError, match=r"updates must be a mapping .*, or an iterable of updates, got"
        ):
            aggregate(updates, SPEC)


@pytest.mark.parametrize(
    "weight", [decimal.Decimal(3), np.array([3.0]), np.array(True), np.array("3"), "3", np.timedelta64(3)]
)
@pytest.mark.parametrize("update", [UPDATE, (np.array([1]), [1.0]), ([1], [1.0]), ([1, 2], None)], ids=range(4))
def test_weight_of_a_pair_that_is_no_number_is_refused(client: sa.Client, update: Any, weight: Any) -> None:
    for aggregate in (client.aggregate, sa.aggregate):
        with pytest.raises(sa.InvalidArgumentError, match=r"client '0{20}': a weight must be a number, got"):
            aggregate([(update, weight)], SPEC)


@pytest.mark.parametrize(
    "weight",
    [
        np.array(3.0),
        np.array(3),
        np.array(3, ml_dtypes.bfloat16),
        ml_dtypes.bfloat16(3),
        FakeTorch(np.array(3.0), shape=()),
        FakeTorch(np.array(3.0, np.float32), shape=(), dtype="torch.bfloat16"),
    ],
    ids=["float", "int", "bfloat16", "scalar bfloat16", "torch", "torch bfloat16"],
)
@pytest.mark.parametrize("update", [UPDATE, (KEYS, ROWS), np.ones(10)], ids=["mapping", "pair", "dense"])
def test_weight_may_be_an_array_without_axes(client: sa.Client, update: Any, weight: Any) -> None:
    expected = sa.aggregate([(update, 3.0)], SPEC)["v"].values.tolist()
    opened = client.create_round(SPEC)
    opened.submit("a", update, weight)
    aggregator = sa.Aggregator(SPEC)
    aggregator.add("a", update, weight)
    for result in (
        opened.finish(),
        client.aggregate([(update, weight)], SPEC),
        sa.aggregate([(update, weight)], SPEC),
        aggregator.finish(),
    ):
        assert result["v"].values.tolist() == expected


@pytest.mark.parametrize("key", [np.array([7]), [7]], ids=["array", "list"])
def test_row_of_one_key_may_be_an_array_without_axes(client: sa.Client, key: Any) -> None:
    spec = sa.RoundSpec([TENSOR])
    for aggregate in (client.aggregate, sa.aggregate):
        merged = aggregate([(key, np.array(3.0))], spec)["v"]
        assert (merged.keys.tolist(), merged.values.tolist()) == ([7], [3.0])


@pytest.mark.parametrize("values", [5, ["float16"], {"v": 5}, {"v": ["float16"]}])
def test_value_encoding_that_is_no_name_is_refused(client: sa.Client, values: Any) -> None:
    opened = client.create_round(SPEC)
    with pytest.raises(sa.InvalidArgumentError, match="value_encoding"):
        opened.submit("a", UPDATE, 1.0, value_encoding=values)


@pytest.mark.parametrize("timeout", ["5", math.nan, True, -1, -(10**400), np.timedelta64(5, "s")], ids=range(6))
def test_time_that_is_no_number_is_refused_before_anything_happens(client: sa.Client, timeout: Any) -> None:
    opened = client.create_round(SPEC)
    for use in (
        lambda: sa.Client("localhost:1", timeout=timeout),
        lambda: opened.wait(timeout),
        lambda: opened.finish(timeout=timeout),
    ):
        with pytest.raises(
            sa.InvalidArgumentError, match="timeout must be a number of seconds, a timedelta, or None for ever"
        ):
            use()
    assert opened.refresh().state == "open"


@pytest.mark.parametrize("timeout", [1e10, 1e300, 10**400, math.inf], ids=range(4))
def test_time_beyond_any_clock_is_for_ever(client: sa.Client, timeout: Any) -> None:
    with sa.Client(client.address, timeout=timeout) as patient:
        assert patient.server_info().version


def test_min_submissions_of_none_is_none() -> None:
    spec = sa.RoundSpec([TENSOR], min_submissions=None, max_submissions=3)
    assert sa.aggregate([UPDATE], spec)["v"].values.tolist() == [1.0]


@pytest.mark.parametrize("span", [0.3, 0.001, 86.399, 1e6 + 0.1])
def test_seconds_come_back_as_they_were_given(span: float) -> None:
    spec = sa.RoundSpec([TENSOR], deadline=span, result_ttl=span)
    assert sa.RoundSpec._from_proto(spec._to_proto()) == spec


@pytest.mark.parametrize("deadline", [60, 60.0, np.int64(60), np.float32(60), fractions.Fraction(60)])
def test_seconds_may_be_numbers_of_any_type(deadline: Any) -> None:
    assert sa.RoundSpec([TENSOR], deadline=deadline)._to_proto().deadline.seconds == 60


def test_numbers_and_dtypes_of_numpy_will_do() -> None:
    one = sa.RoundSpec([sa.TensorSpec("v", np.float32, num_rows=10)], result_dtype=np.dtype("float64"))
    assert (one.tensors[0].dtype, one.result_dtype) == ("float32", "float64")
    assert sa.aggregate([UPDATE], one, threads=np.int64(2), memory_limit=np.int32(1 << 20))["v"].keys.tolist() == [1]
    sa.Client("localhost:1", connections=np.int64(2), timeout=np.float32(1.5), chunk_bytes=np.int64(1000)).close()


def test_sizes_of_numpy_do_not_overflow() -> None:
    tensor = sa.TensorSpec("v", "float32", num_rows=np.int32(100_000), row_width=np.int16(30_000))
    merged = sa.aggregate([scipy.sparse.csr_matrix((100_000, 30_000), dtype=np.float32)], sa.RoundSpec([tensor]))["v"]
    assert (len(merged), merged.num_rows, merged.row_width) == (0, 100_000, 30_000)
    assert sa.TensorSpec("v", "float32", num_rows=100_000, row_width=30_000) == tensor


def test_empty_ids_are_refused_and_not_taken_for_none(client: sa.Client) -> None:
    with pytest.raises(sa.InvalidArgumentError, match="a round's id is not empty"):
        client.create_round(SPEC, "")
    opened = client.create_round(SPEC)
    with pytest.raises(sa.InvalidArgumentError, match="submission_id"):
        opened.submit("a", UPDATE, 1.0, submission_id="")
    assert opened.refresh().num_submissions == 0


BAD = "a\ud800"


@pytest.mark.parametrize(
    "call",
    [
        lambda client, rnd, stream: client.create_round(rnd.spec, round_id=BAD),
        lambda client, rnd, stream: client.get_round(BAD),
        lambda client, rnd, stream: client.model(BAD),
        lambda client, rnd, stream: client.get_task(BAD),
        lambda client, rnd, stream: client.cancel_tasks(in_round=BAD),
        lambda client, rnd, stream: rnd.submit(BAD, ([1], [1.0])),
        lambda client, rnd, stream: rnd.submit("a", ([1], [1.0]), submission_id=BAD),
        lambda client, rnd, stream: rnd.submit("a", {BAD: ([1], [1.0])}),
        lambda client, rnd, stream: rnd.submit("a", ([1], [1.0]), value_encoding={BAD: "float16"}),
        lambda client, rnd, stream: rnd.submit_batch([BAD], {"v": ([0, 1], [1], [1.0])}),
        lambda client, rnd, stream: rnd.submit_batch(["a"], {BAD: ([0, 1], [1], [1.0])}),
        lambda client, rnd, stream: rnd.withdraw(BAD),
        lambda client, rnd, stream: rnd.start_merge(only=[BAD]),
        lambda client, rnd, stream: rnd.cancel(BAD),
        lambda client, rnd, stream: stream.withdraw("a", BAD),
        lambda client, rnd, stream: stream.submit("a", ([1], [1.0]), base_version=0, submission_id=BAD),
        lambda client, rnd, stream: sa.Client(BAD),
        lambda client, rnd, stream: sa.Client("localhost:1", tls=BAD).server_info(),
        lambda client, rnd, stream: sa.Client("localhost:1", token=BAD).server_info(),
        lambda client, rnd, stream: sa.Round.from_handle(f"sparseagg://localhost:1/rounds/{BAD}"),
        lambda client, rnd, stream: sa.TensorSpec(BAD, "float32", num_rows=1),
        lambda client, rnd, stream: sa.aggregate({BAD: ([1], [1.0])}, rnd.spec),
    ],
)
def test_a_lone_surrogate_is_an_error_of_this_package_wherever_text_goes(call):
    with sa.Client(":memory:") as client:
        rnd = client.create_round(sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=2)], op="sum"))
        stream = client.create_stream(rnd.spec, buffer=2)
        with pytest.raises(sa.InvalidArgumentError):
            call(client, rnd, stream)


@pytest.mark.parametrize(
    ("call", "way_out"),
    [
        (lambda spec: sa.aggregate([(["x", "y"], [1.0, 2.0])], spec), "number them the same way in all clients"),
        (lambda spec: sa.aggregate([(np.array(["x"]), [1.0])], spec), "number them the same way in all clients"),
        (lambda spec: sa.aggregate([(np.array(["x"], object), [1.0])], spec), "number them the same way"),
        (lambda spec: sa.aggregate([([1], [1.0])], spec), r"weight=…, or a pair \(update, weight\)"),
        (lambda spec: sa.aggregate([([1.0], [1.0])], spec), r"np.asarray\(keys\).astype\(np.int64\)"),
        (
            lambda spec: sa.aggregate([], spec, device="cuda:0"),
            "'cuda' is the first GPU that CUDA_VISIBLE_DEVICES leaves",
        ),
    ],
)
def test_errors_of_newcomers_name_the_way_out(call, way_out):
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=2)], op="mean", weighting="by_weight")
    with pytest.raises(sa.InvalidArgumentError, match=way_out):
        call(spec)


def test_times_of_stages_are_in_the_stages_alone():
    timeline = sa.aggregate([([1], [1.0])], sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=4)])).info.timeline
    assert [each.stage for each in timeline.stages] == ["prepare", "merge"]
