"""Server optimisers: the equations, row by row in plain Python, and the rows that they leave alone."""

from __future__ import annotations

import io
import math
import pickle

import ml_dtypes
import numpy as np
import pytest
import sparseagg as sa
from sparseagg._internal.results.result import TensorResult
from sparseagg.optimizers import SGD, Assign, FedAdagrad, FedAdam, FedAvgM, FedYogi
from sparseagg.v1 import models_pb2

NUM_ROWS, WIDTH = 9, 3
OPTIMIZERS = {
    "sgd": lambda **options: SGD(learning_rate=0.6, **options),
    "fedavgm": lambda **options: FedAvgM(learning_rate=0.7, momentum=0.8, **options),
    "fedadagrad": lambda **options: FedAdagrad(learning_rate=0.3, tau=1e-2, **options),
    "fedadagrad-m": lambda **options: FedAdagrad(learning_rate=0.3, beta_1=0.6, tau=1e-2, **options),
    "fedadam": lambda **options: FedAdam(learning_rate=0.2, beta_1=0.8, beta_2=0.95, **options),
    "fedadam-paper": lambda **options: FedAdam(learning_rate=0.2, bias_correction=False, **options),
    "fedyogi": lambda **options: FedYogi(learning_rate=0.2, beta_1=0.8, beta_2=0.95, **options),
}


class Reference:
    """The values of a model with their m and v, by NumPy in float64, written from the paper and rounded once a step."""

    def __init__(self, kind: str, x: np.ndarray) -> None:
        self.kind, self.x = kind, x.copy()
        kept = np.float64 if x.dtype.itemsize > 4 else np.float32
        self.m, self.v = np.zeros(x.shape, kept), np.zeros(x.shape, kept)
        self.powers = self._betas()

    def _betas(self) -> tuple[float, float]:
        beta_1 = {"fedadagrad": 0.0, "fedadagrad-m": 0.6, "fedadam-paper": 0.9}.get(self.kind, 0.8)
        return beta_1, 0.99 if self.kind == "fedadam-paper" else 0.95

    def step(self, delta: np.ndarray, moved: np.ndarray) -> None:
        """``moved``: which rows the step takes; the others stay."""
        beta_1, beta_2 = self._betas()
        self.powers = (self.powers[0] * beta_1, self.powers[1] * beta_2)
        x, m, v = (array.astype(np.float64) for array in (self.x, self.m, self.v))
        d = delta.astype(np.float64)
        square = d * d
        if self.kind == "sgd":
            x = x + 0.6 * d
        elif self.kind == "fedavgm":
            m = 0.8 * m + d
            x = x + 0.7 * m
        else:
            rate, tau = (0.3, 1e-2) if self.kind.startswith("fedadagrad") else (0.2, 1e-3)
            if self.kind == "fedadam":
                rate = rate * (np.sqrt(1 - self.powers[1]) / (1 - self.powers[0]))
            m = beta_1 * m + (1 - beta_1) * d
            if self.kind.startswith("fedadagrad"):
                v = v + square
            elif self.kind.startswith("fedadam"):
                v = beta_2 * v + (1 - beta_2) * square
            else:
                v = v - (1 - beta_2) * square * np.sign(v - square)
            x = x + rate * m / (np.sqrt(v) + tau)
        for array, values in ((self.x, x), (self.m, m), (self.v, v)):
            array[moved] = values.astype(array.dtype)[moved]


def merged(keys, rows, dtype="float64", **options) -> TensorResult:
    spec = sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=NUM_ROWS, row_width=WIDTH)], **options)
    return sa.aggregate([(np.asarray(keys), np.asarray(rows, dtype))], spec)["v"]


def random_deltas(seed: int, num_rounds: int = 6):
    rng = np.random.default_rng(seed)
    for _ in range(num_rounds):
        keys = np.flatnonzero(rng.random(NUM_ROWS - 1) < 0.5)  # never the last key
        yield keys, rng.standard_normal((len(keys), WIDTH)) * 10.0 ** rng.integers(-3, 2)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_are_those_of_the_equations(kind: str, dense: bool, dtype: type) -> None:
    if kind == "sgd" and dense:
        pytest.skip("SGD has no dense form: it moves no row without a difference")
    table = np.random.default_rng(1).standard_normal((NUM_ROWS, WIDTH)).astype(dtype)
    reference = Reference(kind, table)
    optimizer = OPTIMIZERS[kind](**({"dense": True} if dense else {}))
    for keys, rows in random_deltas(2):
        optimizer.step("v", table, merged(keys, rows))
        delta, moved = np.zeros((NUM_ROWS, WIDTH)), np.full(NUM_ROWS, dense)
        delta[keys], moved[keys] = rows, True
        reference.step(delta, moved)
    assert table.tobytes() == reference.x.tobytes()


def test_gradients_are_the_negative_differences() -> None:
    for make in OPTIMIZERS.values():
        one, other = np.ones((2, NUM_ROWS, WIDTH), np.float32)
        of_gradients, optimizer = make(gradients=True), make()
        for keys, rows in random_deltas(3):
            of_gradients.step("v", one, (keys, rows))
            optimizer.step("v", other, (keys, -rows))
        assert one.tobytes() == other.tobytes()


def test_assign_sets_rows() -> None:
    table = np.ones((NUM_ROWS, WIDTH), ml_dtypes.bfloat16)
    Assign().step("v", table, (np.array([2]), np.full((1, WIDTH), 3.5)))
    assert table[2].tolist() == [3.5] * WIDTH
    assert (np.delete(table, 2, axis=0) == 1).all()


def test_a_model_gets_kind_and_options_and_refuses_the_dense_form() -> None:
    adam = FedAdam(learning_rate=0.25, bias_correction=False, gradients=True)._to_proto()
    assert adam == models_pb2.OptimizerSpec(
        kind="OPTIMIZER_KIND_FEDADAM",
        learning_rate=0.25,
        beta_1=0.9,
        beta_2=0.99,
        tau=1e-3,
        bias_correction=False,
        gradients=True,
    )
    assert Assign()._to_proto() == models_pb2.OptimizerSpec(kind="OPTIMIZER_KIND_ASSIGN")
    with pytest.raises(sa.InvalidArgumentError, match="moves touched rows only"):
        FedYogi(dense=True)._to_proto()


def through_a_file(optimizer, make):
    file = io.BytesIO()
    np.savez(file, **optimizer.state_dict())
    file.seek(0)
    other = make()
    with np.load(file, allow_pickle=False) as state:
        other.load_state_dict(state)
    return other


COPIES = {"pickle": lambda optimizer, make: pickle.loads(pickle.dumps(optimizer)), "file": through_a_file}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_saved_state_continues_with_the_same_bits(kind: str, dtype: type, copy: str) -> None:
    one, other = np.ones((2, NUM_ROWS, WIDTH), dtype)
    optimizer, resumed = OPTIMIZERS[kind](), OPTIMIZERS[kind]()
    for keys, rows in random_deltas(4):
        for name in ("v", "a:m"):
            optimizer.step(name, one, merged(keys, rows))
        resumed = COPIES[copy](resumed, OPTIMIZERS[kind])
        for name in ("v", "a:m"):
            resumed.step(name, other, merged(keys, rows))
    assert one.tobytes() == other.tobytes()


def test_saved_state_has_the_touched_rows_only_and_the_signs_of_zeros() -> None:
    optimizer, table = FedAvgM(momentum=0.5), np.zeros((100_000, 64), np.float32)
    optimizer.step("v", table, (np.array([7, 99_999]), np.full((2, 64), -1e-45, np.float32)))
    optimizer.step("v", table, (np.array([7, 99_999]), np.full((2, 64), -0.0, np.float32)))  # m is -0.0 now
    state = optimizer.state_dict()
    assert state["v:m:keys"].tolist() == [7, 99_999]
    assert np.signbit(state["v:m:rows"]).all()
    assert not state["v:m:rows"].any()
    assert len(pickle.dumps(optimizer)) < 10_000


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": np.array("FedYogi")}, "the state is of FedYogi, and cannot be loaded into FedAdam"),
        ({"kind": None}, "the state is of no optimiser, and"),
        ({"v:v:rows": None}, "incomplete or damaged: 'v:v:rows'"),
        ({"v:m:rows": np.zeros((1, WIDTH))}, r"'v' has m of float64 and shape \(1, 3\) at 2 keys"),
        ({"v:m:rows": np.array([["x"] * WIDTH] * 2)}, "'v' has m of <U1"),
        ({"v:m:keys": np.array([1, 9])}, r"'v': key 9 at position 1 is not in \[0, 9\)"),
        ({"v:m:num_rows": np.array(-1)}, "key 1 at position 0"),
        ({"v:powers": np.array([0.5])}, "incomplete or damaged"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, text: str) -> None:
    optimizer = FedAdam()
    optimizer.step("v", np.zeros((NUM_ROWS, WIDTH)), (np.array([1, 2]), ROWS))
    before = pickle.dumps(optimizer)
    state = {name: array for name, array in {**optimizer.state_dict(), **change}.items() if array is not None}
    with pytest.raises(sa.InvalidArgumentError, match=text):
        optimizer.load_state_dict(state)
    assert pickle.dumps(optimizer) == before


def test_blocks_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for block in (1, 4 * WIDTH, 1 << 18):
        monkeypatch.setattr("sparseagg.optimizers._BLOCK", block)
        for dense in (False, True):
            optimizer, table = FedYogi(dense=dense), np.ones((NUM_ROWS, WIDTH), np.float32)
            for keys, rows in random_deltas(5):
                optimizer.step("v", table, merged(keys, rows))
            results.append(table.tobytes())
    assert len(set(results[::2])) == len(set(results[1::2])) == 1
    assert results[0] != results[1]


def test_every_form_of_a_delta_is_taken() -> None:
    rng = np.random.default_rng(6)
    keys, rows = np.array([1, 4, 8]), rng.standard_normal((3, WIDTH))
    whole = np.zeros((NUM_ROWS, WIDTH))
    whole[keys] = rows
    expected = np.zeros((NUM_ROWS, WIDTH))
    FedAdagrad().step("v", expected, merged(keys, rows))
    forms = {
        "pair": (keys, rows),
        "unordered pair": (keys[::-1], rows[::-1]),
        "array": whole,  # Adagrad leaves rows of zeros alone
        "dense result": merged(keys, rows, result_layout="dense"),
        "gradients": (keys, -rows),
    }
    for form, delta in forms.items():
        table = np.zeros((NUM_ROWS, WIDTH))
        FedAdagrad().step("v", table, delta, alpha=-1.0 if form == "gradients" else 1.0)
        assert table.tobytes() == expected.tobytes(), form


def test_a_dense_result_with_counts_knows_the_rows_that_nobody_touched() -> None:
    for counts in (False, True):
        optimizer, table = FedAvgM(), np.zeros((NUM_ROWS, WIDTH))
        optimizer.step("v", table, merged([2], np.ones((1, WIDTH))))
        before = table.copy()
        optimizer.step("v", table, merged([3], np.ones((1, WIDTH)), result_layout="dense", return_counts=counts))
        assert np.flatnonzero((table != before).any(axis=1)).tolist() == ([3] if counts else [2, 3])


@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 2)])
def test_targets_of_any_shape_are_stepped(shape: tuple[int, ...]) -> None:
    table = np.zeros(shape)
    FedAvgM().step("v", table, np.ones(shape))
    assert table.shape == shape
    assert (table == 1).all()
    spec = sa.RoundSpec([sa.TensorSpec("v", "float64", num_rows=table.size)])  # element by element
    FedAvgM().step("v", table, sa.aggregate([([0], [2.0])], spec)["v"])
    assert table.reshape(-1)[0] == 3


def test_step_rows_is_step_without_the_table() -> None:
    optimizer, other, table = FedAdam(), FedAdam(), np.ones((NUM_ROWS, WIDTH), np.float32)
    for keys, rows in random_deltas(7):
        after = other.step_rows("v", NUM_ROWS, keys, table[keys], rows)
        optimizer.step("v", table, (keys, rows))
        assert after.tobytes() == table[keys].tobytes()
    with pytest.raises(sa.InvalidArgumentError, match="dense optimiser"):
        FedAdam(dense=True).step_rows("v", NUM_ROWS, keys, table[keys], rows)
    with pytest.raises(sa.InvalidArgumentError, match=r"'v': 1 keys, rows of shape \(2, 3\)"):
        other.step_rows("v", NUM_ROWS, [1], table[:2], table[:2])


ROWS = np.ones((2, WIDTH))
READ_ONLY = np.zeros((NUM_ROWS, WIDTH))
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("target", "delta", "text"),
    [
        (np.zeros((NUM_ROWS, 4)), merged([1], ROWS[:1]), r"num_rows 9 × row_width 3 does not fit .* \(9, 4\)"),
        (np.zeros((NUM_ROWS, WIDTH)), ([1, 9], ROWS), r"key 9 at position 1 is not in \[0, 9\)"),
        (np.zeros((NUM_ROWS, WIDTH)), ([-1, 2], ROWS), r"key -1 at position 0 is not in \[0, 9\)"),
        (np.zeros((NUM_ROWS, WIDTH)), ([4, 4], ROWS), "key 4 is given twice"),
        (np.zeros((NUM_ROWS, WIDTH)), ([4.0, 5.0], ROWS), "keys must be integers"),
        (np.zeros((NUM_ROWS, WIDTH)), ([4], ROWS), r"rows of shape \(2, 3\) do not go with 1 keys"),
        (np.zeros((NUM_ROWS, WIDTH)), ([4, 5], ROWS[:, :2]), r"rows of shape \(2, 2\) do not go with 2 keys"),
        (np.zeros((NUM_ROWS, WIDTH)), np.ones((WIDTH, NUM_ROWS)), r"shape \(3, 9\) do not fit .* \(9, 3\)"),
        (np.zeros((WIDTH, NUM_ROWS)).T, ([4, 5], ROWS), "not C-contiguous: give a copy"),
        (READ_ONLY, ([4, 5], ROWS), "not writable: give a copy"),
        (np.zeros((NUM_ROWS, WIDTH), np.int64), ([4, 5], ROWS), "must have floats of 16 to 64 bits, got int64"),
        ([[0.0] * WIDTH] * NUM_ROWS, ([4, 5], ROWS), "NumPy array or a torch tensor, got list"),
        (np.zeros((NUM_ROWS, WIDTH)), merged([1], ROWS[:1], op="union"), "a union has no values"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(target, delta, text: str) -> None:
    optimizer = FedAvgM()
    with pytest.raises(sa.InvalidArgumentError, match=f"tensor 'v': .*{text}"):
        optimizer.step("v", target, delta)
    assert not np.any(target)
    table = np.zeros((NUM_ROWS, WIDTH))
    optimizer.step("v", table, (np.array([1, 2]), ROWS))
    assert table.sum() == 2 * WIDTH


def test_a_tensor_keeps_its_shape() -> None:
    optimizer = FedAdam()
    optimizer.step("v", np.zeros((NUM_ROWS, WIDTH)), np.ones((NUM_ROWS, WIDTH)))
    with pytest.raises(sa.InvalidArgumentError, match="3 rows of 9 values, but the steps before had 9 of 3"):
        optimizer.step("v", np.zeros((WIDTH, NUM_ROWS)), np.ones((WIDTH, NUM_ROWS)))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: FedAvgM(momentum=1.0), "momentum must be a number from 0 to below 1, got 1.0"),
        (lambda: FedAdam(beta_2=-0.1), "beta_2"),
        (lambda: FedYogi(learning_rate=math.nan), "learning_rate .* got nan"),
        (lambda: FedAdagrad(tau=0), "tau must be a number above 0"),
        (lambda: FedAdagrad(beta_1="0.9"), "beta_1 .* got '0.9'"),
    ],
)
def test_parameters_outside_their_range_are_refused(make, text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=text):
        make()


def test_torch_tensors_are_stepped_in_place() -> None:
    torch = pytest.importorskip("torch")
    embedding = torch.nn.Embedding(NUM_ROWS, WIDTH)
    expected = embedding.weight.detach().numpy().copy()
    FedAdam().step("v", expected, (np.array([1, 2]), ROWS))
    FedAdam().step("v", embedding.weight, (torch.tensor([1, 2]), torch.ones(2, WIDTH)))
    assert embedding.weight.detach().numpy().tobytes() == expected.tobytes()
