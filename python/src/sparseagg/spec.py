"""What a round computes: tensors, operators, numerics and limits."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

from sparseagg.arguments import checked_integer, checked_text, shown
from sparseagg.durations import Seconds, duration, seconds_of
from sparseagg.errors import InvalidArgument
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = [
    "DTYPES",
    "Aggregation",
    "RoundSpec",
    "TensorSpec",
    "checked_spec",
    "dtype_name",
    "enum_name",
    "key_bytes",
    "words_of",
]

# Bytes of one value, by dtype name.
DTYPES: dict[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float64": 8,
    "int32": 4,
    "int64": 8,
    "uint32": 4,
    "uint64": 8,
}

# Fields of AggregationSpec in the proto that are enums: our name, its name, and the prefix of its values.
_ENUMS = {
    "op": ("op", pb.Op, "OP_"),
    "weighting": ("weighting", pb.Weighting, "WEIGHTING_"),
    "result": ("result_layout", pb.ResultLayout, "RESULT_LAYOUT_"),
    "numerics": ("numerics", pb.Numerics, "NUMERICS_"),
    "on_nonfinite": ("on_nonfinite", pb.OnNonfinite, "ON_NONFINITE_"),
    "on_bound": ("on_bound", pb.OnBound, "ON_BOUND_"),
    "result_dtype": ("result_dtype", pb.DType, "DTYPE_"),
}
_SCALARS = (
    "return_counts",
    "return_weights",
    "min_contributors",
    "prune_zeros",
    "fill",
    "dense_threshold",
    "value_bound",
    "weight_bound",
)

# Fields of TensorSpec that are integers: name, description, bounds. On the wire, a width of 0 means 1.
_SIZES = (
    ("dimension", "a number of rows from 0 to 2^64 - 1, 0 for all of uint64", 0, (1 << 64) - 1),
    ("width", "a number of values from 1 to 2^32 - 1", 1, (1 << 32) - 1),
)

# Fields of RoundSpec that are numbers.
_LIMITS = ("min_submissions", "max_submissions", "max_tuples_per_submission", "max_bytes_per_submission")


def dtype_name(dtype: Any) -> str:
    """Returns the name of a dtype given as a name, a numpy dtype or type, or a torch, TensorFlow or JAX dtype.

    Raises:
        InvalidArgument: ``dtype`` is none of ``DTYPES``.
    """
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = str(name).rpartition(".")[2]  # torch.float32
    if name not in DTYPES:
        raise InvalidArgument(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    return name


def key_bytes(dimension: int) -> int:
    """Returns the bytes of one key on the wire and in results: 4 where the dimension allows, else 8."""
    return 4 if 0 < dimension <= 1 << 32 else 8


def words_of(field: str) -> list[str]:
    """Returns the values of an option that is a word, such as "sum" and "mean" for "op"."""
    _, enum, prefix = _ENUMS[field]
    return [name[len(prefix) :].lower() for name, number in enum.items() if number]


def _enum_value(field: str, value: str | None) -> int:
    if value is None:
        return 0
    known = words_of(field)
    if value not in known:
        raise InvalidArgument(f"unknown {field} {value!r}; known: {', '.join(known)}")
    _, enum, prefix = _ENUMS[field]
    return int(enum.Value(prefix + value.upper()))


def enum_name(enum: Any, prefix: str, number: int) -> str:
    """Returns our name of an enumerator: "done" for ROUND_STATE_DONE, "round_state_9" for an unknown number."""
    name = str(enum.Name(number))[len(prefix) :] if number in enum.values() else f"{prefix}{number}"
    return name.lower()


def _enum_name(field: str, number: int) -> str | None:
    _, enum, prefix = _ENUMS[field]
    return None if number == 0 else enum_name(enum, prefix, number)


def _set_fields(proto: Any, spec: Any, fields: Iterable[str]) -> None:
    """Copies fields of the spec into the message. Fields of None stay unset."""
    for field in fields:
        value = getattr(spec, field)
        if value is None:
            continue
        try:
            setattr(proto, field, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(f"{field} cannot be {shown(value)}: {error}") from error


@dataclasses.dataclass(frozen=True)
class Aggregation:
    """How one tensor is aggregated, with all defaults filled in. From ``RoundSpec.aggregation_of``."""

    op: str = "sum"
    weighting: str = "uniform"
    result: str = "sparse"
    numerics: str = "canonical"
    return_counts: bool = False
    return_weights: bool = False
    min_contributors: int = 1
    prune_zeros: bool = False
    fill: float = 0.0
    dense_threshold: float | None = None
    result_dtype: str | None = None
    on_nonfinite: str = "reject"
    on_bound: str = "reject"
    value_bound: float | None = None
    weight_bound: float | None = None


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options that a round sets and a tensor may override. None: not set."""

    def _check_words(self) -> None:
        """Raises ``InvalidArgument`` for unknown words. Words that ``enum_name`` makes for unknown numbers are fine."""
        for field, (_, _, prefix) in _ENUMS.items():
            value = getattr(self, field)
            if not isinstance(value, str) or re.fullmatch(rf"{prefix.lower()}\d+", value) is None:
                _enum_value(field, value)

    def _options_to_proto(self) -> pb.AggregationSpec:
        proto = pb.AggregationSpec()
        for field, (name, _, _) in _ENUMS.items():
            setattr(proto, name, _enum_value(field, getattr(self, field)))
        _set_fields(proto, self, _SCALARS)
        return proto

    def _options(self) -> dict[str, Any]:
        names = [*_ENUMS, *_SCALARS]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def _options_from_proto(proto: pb.AggregationSpec) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for field, (name, _, _) in _ENUMS.items():
        options[field] = _enum_name(field, getattr(proto, name))
    for field in _SCALARS:
        options[field] = getattr(proto, field) if proto.HasField(field) else None
    return options


@dataclasses.dataclass(frozen=True)
class TensorSpec(_Options):
    """One tensor of a round.

    Args:
        name: 1–256 bytes in UTF-8, unique in the round.
        dtype: of the values in updates: one of ``DTYPES``, or a NumPy or torch dtype of that name.
        dimension: number of rows; keys are below it. 0: keys are any uint64 (hashed keys).
        width: values per key.
        layout: "sparse", or "dense" when every update carries all ``dimension`` rows.
        modular: true for uint32 and uint64, whose sums wrap (secure aggregation).
        op: this and the following arguments override those of ``RoundSpec`` for this tensor.
    """

    name: str
    dtype: Any  # its name, once __post_init__ has run
    dimension: int
    width: int = 1
    layout: str = "sparse"
    modular: bool = False
    op: str | None = None
    weighting: str | None = None
    result: str | None = None
    numerics: str | None = None
    return_counts: bool | None = None
    return_weights: bool | None = None
    min_contributors: int | None = None
    prune_zeros: bool | None = None
    fill: float | None = None
    dense_threshold: float | None = None
    result_dtype: Any = None
    on_nonfinite: str | None = None
    on_bound: str | None = None
    value_bound: float | None = None
    weight_bound: float | None = None

    def __post_init__(self) -> None:
        checked_text("a tensor's name", self.name)
        try:
            object.__setattr__(self, "dtype", dtype_name(self.dtype))
            # Python's integers: NumPy's overflow in products.
            for field, what, least, most in _SIZES:
                size = checked_integer(f"{field} is {what}", getattr(self, field), least, most)
                object.__setattr__(self, field, size)
            if self.result_dtype is not None:
                object.__setattr__(self, "result_dtype", dtype_name(self.result_dtype))
            self._check_words()
        except InvalidArgument as error:
            raise InvalidArgument(f"tensor {shown(self.name)}: {error}") from error
        if self.layout not in ("sparse", "dense"):
            raise InvalidArgument(f"tensor {self.name!r}: unknown layout {self.layout!r}; known: sparse, dense")

    @property
    def key_bytes(self) -> int:
        """Bytes of one key on the wire: 4 where the dimension allows, else 8."""
        return key_bytes(self.dimension)

    def to_proto(self) -> pb.TensorSpec:
        """Returns the message. Fields of None stay unset.

        Raises:
            InvalidArgument: a field's value does not fit the message.
        """
        try:
            proto = pb.TensorSpec(
                dtype="DTYPE_" + self.dtype.upper(),
                layout=pb.TENSOR_LAYOUT_DENSE if self.layout == "dense" else pb.TENSOR_LAYOUT_SPARSE,
                aggregation=self._options_to_proto(),
            )
            _set_fields(proto, self, ("name", "dimension", "width", "modular"))
        except InvalidArgument as error:
            raise InvalidArgument(f"tensor {shown(self.name)}: {error}") from error
        return proto

    @classmethod
    def from_proto(cls, proto: pb.TensorSpec) -> TensorSpec:
        """Returns the spec of a message; ``InvalidArgument`` if its dtype is missing or unknown."""
        if proto.dtype == pb.DTYPE_UNSPECIFIED:
            raise InvalidArgument(f"tensor {proto.name!r} has no dtype; known: {', '.join(DTYPES)}")
        return cls(
            name=proto.name,
            dtype=enum_name(pb.DType, "DTYPE_", proto.dtype),
            dimension=proto.dimension,
            width=proto.width or 1,
            layout="dense" if proto.layout == pb.TENSOR_LAYOUT_DENSE else "sparse",
            modular=proto.modular,
            **_options_from_proto(proto.aggregation),
        )


@dataclasses.dataclass(frozen=True)
class RoundSpec(_Options):
    """The tensors of a round, how they are aggregated, and when the round ends.

    v_k(i) is the row of submission k at key i, w_k the submission's weight (1 with ``weighting`` "uniform"), and C(i)
    the set of submissions that list key i. The result has the keys for which C(i) is not empty.

    Args:
        tensors: the tensors, with distinct names.
        op: "sum": Σ_{C(i)} w_k·v_k(i). "mean": that sum over Σ w_k of all submissions, so that an absent key counts as
            0. "coordinate_mean": that sum over Σ_{C(i)} w_k, so that an absent key does not vote. "union": keys and
            counts, without values. "min", "max": element-wise over C(i), unweighted.
        weighting: "uniform" or "by_weight". With "by_weight", every submission has a weight of 0 or more.
        result: "sparse", "dense", or "auto" for the smaller of the two. None: the layout of the tensor.
        numerics: "canonical": float64, folded per key in order of client id. "fixed_point": int64 multiples of 2^-s,
            added exactly on arrival; needs ``value_bound`` and ``max_submissions``. With either one, the same
            submissions give the same bits in any order of arrival.
        return_counts: adds |C(i)|, uint32; always with "union".
        return_weights: adds Σ_{C(i)} w_k, float64.
        min_contributors: leaves out keys that fewer submissions list.
        prune_zeros: leaves out keys whose whole row, rounded, is zero.
        fill: value of absent keys in a dense result; None for 0.
        dense_threshold: density, in (0, 1], from which on "auto" is dense.
        result_dtype: "float32" or "float64"; None for the tensor's dtype, and for int64 if that is int32.
        on_nonfinite: "reject" refuses submissions with NaN or ±Inf; "propagate" follows IEEE arithmetic.
        on_bound: "reject" refuses submissions with |w·v| > ``value_bound``; "clip" makes the term ±``value_bound``.
        value_bound: the largest |w·v| with "fixed_point".
        weight_bound: the largest weight with "fixed_point" and "by_weight".
        min_submissions: a round that closes with fewer submissions fails.
        max_submissions: the round closes itself at this number. None: the server's limit.
        deadline: the round closes itself this long after its creation, in seconds or as a timedelta. None: never.
        result_ttl: how long the server keeps the ended round, in seconds or as a timedelta. None: the server's limit.
        max_tuples_per_submission: limit over all tensors. None: the server's limit.
        max_bytes_per_submission: limit of keys and values. None: the server's limit.
    """

    tensors: Sequence[TensorSpec]
    op: str | None = None
    weighting: str | None = None
    result: str | None = None
    numerics: str | None = None
    return_counts: bool | None = None
    return_weights: bool | None = None
    min_contributors: int | None = None
    prune_zeros: bool | None = None
    fill: float | None = None
    dense_threshold: float | None = None
    result_dtype: Any = None
    on_nonfinite: str | None = None
    on_bound: str | None = None
    value_bound: float | None = None
    weight_bound: float | None = None
    min_submissions: int = 0
    max_submissions: int | None = None
    deadline: Seconds | None = None
    result_ttl: Seconds | None = None
    max_tuples_per_submission: int | None = None
    max_bytes_per_submission: int | None = None

    def __post_init__(self) -> None:
        tensors = tuple(self.tensors) if isinstance(self.tensors, Iterable) else None
        if tensors is None or not all(isinstance(tensor, TensorSpec) for tensor in tensors):
            raise InvalidArgument(f"tensors is a list of TensorSpec, not {shown(self.tensors)}")
        object.__setattr__(self, "tensors", tensors)
        if self.result_dtype is not None:
            object.__setattr__(self, "result_dtype", dtype_name(self.result_dtype))
        self._check_words()

    def tensor(self, name: str) -> TensorSpec:
        """Returns the tensor with this name.

        Raises:
            InvalidArgument: there is no such tensor; the message lists the tensors.
        """
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        known = ", ".join(repr(tensor.name) for tensor in self.tensors)
        raise InvalidArgument(f"unknown tensor {name!r}; this round has {known or 'none'}")

    def aggregation_of(self, tensor: TensorSpec) -> Aggregation:
        """Returns how ``tensor`` is aggregated: the tensor's options, then the round's options, then the defaults."""
        defaults = {"result": tensor.layout}
        return Aggregation(**{**defaults, **self._options(), **tensor._options()})

    def to_proto(self) -> pb.RoundSpec:
        """Returns the message. Fields of None stay unset.

        Raises:
            InvalidArgument: a field's value does not fit the message.
        """
        proto = pb.RoundSpec(
            tensors=[tensor.to_proto() for tensor in self.tensors],
            aggregation=self._options_to_proto(),
            deadline=duration("deadline", self.deadline),
            result_ttl=duration("result_ttl", self.result_ttl),
        )
        _set_fields(proto, self, _LIMITS)
        return proto

    @classmethod
    def from_proto(cls, proto: pb.RoundSpec) -> RoundSpec:
        """Returns the spec of a message; ``InvalidArgument`` if a tensor's dtype is missing or unknown."""
        return cls(
            tensors=[TensorSpec.from_proto(tensor) for tensor in proto.tensors],
            min_submissions=proto.min_submissions,
            max_submissions=proto.max_submissions or None,
            deadline=seconds_of(proto.deadline) if proto.HasField("deadline") else None,
            result_ttl=seconds_of(proto.result_ttl) if proto.HasField("result_ttl") else None,
            max_tuples_per_submission=proto.max_tuples_per_submission or None,
            max_bytes_per_submission=proto.max_bytes_per_submission or None,
            **_options_from_proto(proto.aggregation),
        )


def checked_spec(spec: Any) -> RoundSpec:
    """Returns ``spec``; ``InvalidArgument`` if ``spec`` is no ``RoundSpec``."""
    if not isinstance(spec, RoundSpec):
        raise InvalidArgument(f"spec is a RoundSpec, not {shown(spec)}")
    return spec
