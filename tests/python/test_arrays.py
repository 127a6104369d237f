"""What people have, as keys and values: shapes, dtypes, and objects known by their attributes only."""

from __future__ import annotations

import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import reference
import sparseagg as sa
from fake_libraries import FakeTorch
from sparseagg._internal.base.foreign import bits_from_float, bits_from_integer
from sparseagg._internal.updates.arrays import tensor_data, update_data
from sparseagg._internal.updates.contributors import batches


def tensor(dtype="float32", num_rows=10, row_width=1, **options) -> sa.TensorSpec:
    return sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width, **options)


def rows_of(data) -> dict[int, list]:
    """What the tuples denote: the sums of rows by key."""
    keys = range(data.num_keys) if data.keys is None else data.keys.tolist()
    total: dict[int, list] = {}
    for key, row in zip(keys, data.values.tolist()):
        total[key] = [a + b for a, b in zip(total.get(key, [0] * len(row)), row)]
    return total


def test_tensor_data_arrays_of_wire_type_are_not_copied():
    keys, rows = np.array([3, 1], np.uint32), np.ones((2, 4), np.float32)
    data = tensor_data(tensor(row_width=4), (keys, rows))
    assert np.shares_memory(data.keys, keys)
    assert np.shares_memory(data.values, rows)


@pytest.mark.parametrize(
    ("num_rows", "dtype"), [(10, "<u4"), (2**32, "<u4"), (2**32 + 1, "<u8"), (0, "<u8"), (2**64 - 1, "<u8")]
)
def test_tensor_data_key_type_follows_num_rows(num_rows, dtype):
    assert tensor_data(tensor(num_rows=num_rows), ([1], [1.0])).keys.dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    ("given", "dtype", "expected"),
    [
        ([0.1, 2.0], "float32", np.array([0.1, 2.0], np.float32)),
        (np.array([0.1]), "float16", np.array([0.1], np.float16)),
        ([1, 2], "float64", np.array([1.0, 2.0])),
        ([2**24 + 1, 2**24 + 3], "float32", np.array([2**24, 2**24 + 4], np.float32)),  # to nearest even, as floats
        (np.array([2049, 65519]), "float16", np.array([2048, 65504], np.float16)),
        (np.array([1, 2], np.int8), "int64", np.array([1, 2], np.int64)),
        (np.array([-1], np.int64), "int32", np.array([-1], np.int32)),
        (np.array([2**32 - 1], np.int64), "uint32", np.array([2**32 - 1], np.uint32)),
        (np.array([2**64 - 1], np.uint64), "uint64", np.array([2**64 - 1], np.uint64)),
        (np.array([1.5], ">f4"), "float32", np.array([1.5], np.float32)),
        ([True, False], "int32", np.array([1, 0], np.int32)),
        ([], "int32", np.array([], np.int32)),
    ],
)
def test_tensor_data_values_become_the_wires_type(given, dtype, expected):
    data = tensor_data(tensor(dtype, modular=dtype.startswith("u")), (list(range(len(given))), given))
    assert data.values.dtype == expected.dtype
    assert data.values.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("given", "dtype", "text"),
    [
        ([1.0], "int32", "cannot be sent as int32"),
        ([1j], "float32", "cannot be sent as float32"),
        (["x"], "float32", "cannot read rows of builtins.list: it is text"),
        (np.array([0, 2**31]), "int32", "'v', key 1, position 1: value 2147483648 does not"),
        (np.array([-1]), "uint64", "'v', key 0, position 0: value -1 does not"),
        (np.array([2**63], np.uint64), "int64", "value 9223372036854775808 does not"),
        (np.array([1.0, 1e39]), "float32", "'v', key 1, position 1: value 1e\\+39 does not"),
        (np.array([1e39]), "bfloat16", "does not fit bfloat16"),
        (np.array([70000.0], np.float32), "float16", "does not fit float16"),
    ],
)
def test_tensor_data_values_that_do_not_fit_are_refused(given, dtype, text):
    with pytest.raises(sa.InvalidArgumentError, match=text):
        tensor_data(tensor(dtype, modular=dtype.startswith("u")), (list(range(len(given))), given))


def test_tensor_data_nonfinite_is_left_to_the_server():
    data = tensor_data(tensor("float16"), ([0, 1], np.array([math.inf, math.nan])))
    assert np.isinf(data.values[0, 0])
    assert np.isnan(data.values[1, 0])


def test_tensor_data_bfloat16_takes_bits_and_floats():
    for given in (
        np.array([0x3FC0, 0xC040], np.uint16),
        np.array([0x3FC0, 0xC040], ">u2"),
        np.array([1.5, -3.0], np.float32),
        np.array([1.5, -3.0], ml_dtypes.bfloat16),
        np.array([1.5, -3.0], ml_dtypes.bfloat16).astype(np.dtype(ml_dtypes.bfloat16).newbyteorder(">")),
        FakeTorch(np.array([1.5, -3.0]), dtype="torch.bfloat16"),
        [1.5, -3.0],
    ):
        assert tensor_data(tensor("bfloat16"), ([0, 1], given)).values.tobytes() == bytes.fromhex("c03f40c0")
    ints = tensor_data(tensor("bfloat16"), ([0], np.array([257])))
    assert ints.values.tobytes() == bytes.fromhex("8043")
    large = tensor_data(tensor("bfloat16"), ([0], np.array([2**60 + 2**52 + 1])))  # just above a tie
    assert large.values.tobytes() == bytes.fromhex("815d")


def test_bits_from_float_float64_rounds_once_like_the_reference():
    seed = 20261121
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**64, 20_000, np.uint64)
    # Around the range of bfloat16, its denormals included, with ties and near ties.
    exponents = (rng.integers(1023 - 150, 1023 + 130, bits.size).astype(np.uint64)) << np.uint64(52)
    bits = (bits & np.uint64(0x800FFFFFFFFFFFFF)) | exponents
    bits[::3] &= ~np.uint64((1 << 44) - 1)  # few bits: ties
    bits[1::3] = (bits[1::3] & ~np.uint64((1 << 44) - 1)) | np.uint64(1)  # just above one
    values = bits.view(np.float64)
    expected = [reference.round_to_dtype(value, "bfloat16") for value in values.tolist()]
    widened = (bits_from_float(values).astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert (widened + 0.0).tolist() == expected, f"seed {seed}"


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, ">i8", np.int16])
def test_bits_from_integer_rounds_once_like_the_reference(dtype):
    limits = np.iinfo(dtype)
    # Nine bits are one more than bfloat16 has: ties, and what is next to them.
    near_ties = [(high << shift) + more for high in range(256, 512, 5) for shift in range(56) for more in (-1, 0, 1)]
    values = [limits.min, limits.max, *near_ties, *[-value for value in near_ties]]
    values = [value for value in values if limits.min <= value <= limits.max]
    expected = [reference.round_to_dtype(value, "bfloat16") for value in values]
    widened = (bits_from_integer(np.array(values, dtype)).astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert widened.tolist() == expected


@pytest.mark.parametrize("pair", [[np.array([1, 2]), np.array([3.0, 4.0])], [[1, 2], [3.0, 4.0]], [[1, 2, 3], [[1.0]]]])
def test_update_data_list_for_a_pair_says_what_it_is(pair):
    # Of four values, which a list of two by two has, too.
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=4)])
    for update in (pair, {"v": pair}):
        with pytest.raises(sa.InvalidArgumentError, match=r"'v': a list is a dense array; .* a tuple \(keys, rows\)"):
            update_data(spec, update)


def test_update_data_keys_in_a_list_may_be_any_of_64_bits():
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=0)])
    (data,) = update_data(spec, ([0, 2**64 - 1], [1.0, 2.0]))
    assert data.keys.tolist() == [0, 2**64 - 1]


def test_update_data_masked_entries_are_refused():
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=2)])
    values = np.ma.masked_array([1.0, 2.0], [True, False])
    for update in (values, ([0, 1], values), (np.ma.masked_array([0, 1], [True, False]), [1.0, 2.0])):
        with pytest.raises(
            sa.InvalidArgumentError, match=r"tensor 'v': cannot read .*: some of its entries are masked"
        ):
            update_data(spec, update)
    for update in ([0.0, np.ma.masked], [np.ma.masked_array(1.0, True), 2.0], ([np.ma.masked_array(0, True)], [1.0])):
        with pytest.raises(
            sa.InvalidArgumentError, match=r"tensor 'v': cannot read .*: some of its entries are masked"
        ):
            update_data(spec, update)
    (data,) = update_data(spec, np.ma.masked_array([1.0, 2.0], [False, False]))
    assert data.values.tolist() == [[1.0], [2.0]]


def test_tensor_data_of_a_matrix():
    spec = sa.TensorSpec("v", "float32", shape=(3, 2))
    rows = np.matrix([[1.0, 2.0], [3.0, 1e39]])
    with pytest.raises(
        sa.InvalidArgumentError, match=r"key 8, position 1, column 1: value 1e\+39 does not fit float32"
    ):
        tensor_data(sa.TensorSpec("v", "float32", num_rows=9, row_width=2), ([7, 8], rows))
    assert tensor_data(spec, np.matrix(np.ones((3, 2)))).values.tolist() == [[1.0, 1.0]] * 3


def test_batches_count_bytes_of_ids_not_characters():
    ids = [f"{'é' * 100}{n}" for n in range(40)]
    for batch in batches(ids, [], None, 1000, 1):
        assert len(batch.client_ids.encode()) <= 1000
    with pytest.raises(
        sa.InvalidArgumentError, match=r"a client id must be a string that UTF-8 can encode, got 'a\\ud800'"
    ):
        list(batches(["b", "a\ud800"], [], None, 1000, 1))


def test_tensor_data_longdouble_is_rounded_to_float16_once():
    tie = 1 + np.longdouble(2) ** -11  # between 1 and the next float16, which is odd
    if tie + np.longdouble(2) ** -60 == tie:
        pytest.skip("longdouble is float64 here")
    near = [tie, tie + np.longdouble(2) ** -60, tie - np.longdouble(2) ** -60, -tie - np.longdouble(2) ** -60]
    found = tensor_data(tensor("float16"), (np.arange(5), np.array([*near, np.longdouble(2) ** -30])))
    assert found.values.reshape(-1).tolist() == [1.0, 1 + 2**-10, 1.0, -1 - 2**-10, 0.0]
    for large in (np.longdouble(1e300) ** 10, np.longdouble(65520)):
        with pytest.raises(sa.InvalidArgumentError, match="does not fit float16"):
            tensor_data(tensor("float16"), ([0], np.array([large])))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_bfloat16_of_many_values_takes_little_memory_beside_them(dtype):
    values = (np.arange(-600_000, 600_000) * 37).astype(dtype).reshape(-1, 3)
    convert = bits_from_integer if dtype == "int64" else bits_from_float
    tracemalloc.start()
    bits = convert(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * bits.nbytes
    assert np.array_equal(bits[12_345::997], convert(values[12_345::997])), "blocks, and those of an array with strides"
    assert np.array_equal(bits.T, convert(values.T))


# ---- signed ids in tensors that take any 64-bit key: refused as they are, taken as their bits ----


ANY_KEYS = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=0)])
IDS = np.array([-1, 5, np.iinfo(np.int64).min, np.iinfo(np.int64).max], np.int64)
NEGATIVE = (
    r"tensor 'v': key -1 at position {} is negative; keys are unsigned, and signed 64-bit ids keep their bits as "
    r"uint64: keys\.view\(np\.uint64\)$"
)


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, None])
def test_negative_keys_are_refused_with_what_to_write_instead(client, dtype, at):
    keys = [7, 8, 9]
    keys[at] = -1
    update = (keys if dtype is None else np.array(keys, dtype), np.ones(3, np.float32))
    with pytest.raises(sa.InvalidArgumentError, match=NEGATIVE.format(at)):
        sa.aggregate({"a": update}, ANY_KEYS)
    with pytest.raises(sa.InvalidArgumentError, match=NEGATIVE.format(at)):
        client.aggregate({"a": update}, ANY_KEYS)
    with pytest.raises(sa.InvalidArgumentError, match=NEGATIVE.format(at)):
        tensor_data(ANY_KEYS.tensors[0], update)


def test_bits_of_signed_ids_come_back(client):
    update = {"v": (IDS.view(np.uint64), np.arange(4, dtype=np.float32))}
    for result in (sa.aggregate([update], ANY_KEYS)["v"], client.aggregate([update], ANY_KEYS)["v"]):
        ids = result.keys.view(np.int64)
        assert dict(zip(ids.tolist(), result.values.tolist())) == dict(zip(IDS.tolist(), range(4)))
        assert ids.tolist() == [5, IDS.max(), IDS.min(), -1], "in the order of uint64"
        with pytest.raises(sa.errors.FailedPreconditionError, match=r"keys\.view\(np\.int64\)"):
            _ = result.indices
