"""The options that a round sets and a tensor may override, and the names of dtypes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

from sparseagg._internal.base.arguments import did_you_mean, shown
from sparseagg._internal.base.fields import enum_name
from sparseagg._internal.base.types import (
    Absent,
    DTypeLike,
    MeanDivisor,
    Numerics,
    OnBound,
    OnEmpty,
    OnNonfinite,
    Op,
    ResultLayout,
    Weighting,
)
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = [
    "DTYPES",
    "ORDER_OPS",
    "Aggregation",
    "OptionArguments",
    "Options",
    "dtype_name",
    "key_bytes",
    "options_from_proto",
    "outside_key_space",
    "set_fields",
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

ORDER_OPS = ("median", "trimmed_mean", "quantile")  # order statistics

_FIELDS = pb.AggregationSpec.DESCRIPTOR.fields
# The options that are words, with their enums and the prefixes of the values; and the others.
_ENUMS = {
    field.name: (getattr(pb, field.enum_type.name), field.enum_type.values[0].name.removesuffix("UNSPECIFIED"))
    for field in _FIELDS
    if field.enum_type is not None
}
_SCALARS = [field.name for field in _FIELDS if field.enum_type is None]
_NAMES = [*_ENUMS, *_SCALARS]


def dtype_name(dtype: DTypeLike) -> str:
    """Returns the name of a dtype given as a name, a numpy dtype or type, or a torch, TensorFlow or JAX dtype.

    Raises:
        InvalidArgumentError: ``dtype`` is none of ``DTYPES``.
    """
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = str(name).rpartition(".")[2]  # torch.float32
    if name not in DTYPES:
        meant = did_you_mean(name, DTYPES)
        raise InvalidArgumentError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}{meant}")
    return name


def key_bytes(num_rows: int) -> int:
    """Returns the bytes of one key on the wire and in results: 4 where num_rows allows, else 8."""
    return 4 if 0 < num_rows <= 1 << 32 else 8


def outside_key_space(num_rows: int) -> str:
    """Returns what is wrong with a key that is negative or not below num_rows: the end of an error's text."""
    if num_rows:
        return f"is not in [0, {num_rows})"
    return "is negative; keys are unsigned, and signed 64-bit ids keep their bits as uint64: keys.view(np.uint64)"


def words_of(field: str) -> list[str]:
    """Returns the values of an option that is a word, such as "sum" and "mean" for "op"."""
    return list(_numbers_of(field))


@functools.cache
def _numbers_of(field: str) -> dict[str, int]:
    enum, prefix = _ENUMS[field]
    return {name[len(prefix) :].lower(): number for name, number in enum.items() if number}


def _enum_value(field: str, value: str | None) -> int:
    if value is None:
        return 0
    number = _numbers_of(field).get(value) if isinstance(value, str) else None
    if number is None:
        words = words_of(field)
        raise InvalidArgumentError(f"unknown {field} {value!r}; known: {', '.join(words)}{did_you_mean(value, words)}")
    return number


def _enum_name(field: str, number: int) -> str | None:
    return None if number == 0 else enum_name(_ENUMS[field][0].DESCRIPTOR, number)


def set_fields(proto: Any, spec: Any, fields: Iterable[str], where: str = "") -> None:
    """Copies fields of the spec into the message. Fields of None stay unset. ``where`` goes before names in errors."""
    for field in fields:
        value = getattr(spec, field)
        if value is None:
            continue
        try:
            setattr(proto, field, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"{where}{field} cannot be {shown(value)}: {error}") from error


@dataclasses.dataclass(frozen=True)
class Aggregation:
    """How one tensor is aggregated, with all defaults filled in. From ``RoundSpec.aggregation_of``."""

    op: str = "sum"
    weighting: str = "uniform"
    result_layout: str = "sparse"
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
    on_empty: str = "fail"
    mean_divisor: str = "weights"
    fixed_divisor: float | None = None
    value_bound: float | None = None
    weight_bound: float | None = None
    trim_fraction: float | None = None
    quantile: float | None = None
    absent: str = "skip"
    result_top_k: int = 0
    result_min_norm: float = 0.0
    return_moments: bool = False


class OptionArguments(TypedDict, total=False):
    """The options as arguments of ``TensorSpec`` and ``RoundSpec``, which ``RoundSpec`` documents."""

    op: Op | None
    weighting: Weighting | None
    result_layout: ResultLayout | None
    numerics: Numerics | None
    return_counts: bool | None
    return_weights: bool | None
    min_contributors: int | None
    prune_zeros: bool | None
    fill: float | None
    dense_threshold: float | None
    result_dtype: DTypeLike | None
    on_nonfinite: OnNonfinite | None
    on_bound: OnBound | None
    on_empty: OnEmpty | None
    mean_divisor: MeanDivisor | None
    fixed_divisor: float | None
    value_bound: float | None
    weight_bound: float | None
    trim_fraction: float | None
    quantile: float | None
    absent: Absent | None
    result_top_k: int | None
    result_min_norm: float | None
    return_moments: bool | None


@dataclasses.dataclass(frozen=True, init=False)
class Options:
    """The options that a round sets and a tensor may override. None: not set."""

    op: str | None
    weighting: str | None
    result_layout: str | None
    numerics: str | None
    return_counts: bool | None
    return_weights: bool | None
    min_contributors: int | None
    prune_zeros: bool | None
    fill: float | None
    dense_threshold: float | None
    result_dtype: str | None
    on_nonfinite: str | None
    on_bound: str | None
    on_empty: str | None
    mean_divisor: str | None
    fixed_divisor: float | None
    value_bound: float | None
    weight_bound: float | None
    trim_fraction: float | None
    quantile: float | None
    absent: str | None
    result_top_k: int | None
    result_min_norm: float | None
    return_moments: bool | None

    def __init_subclass__(cls) -> None:
        """Gives the class the signature that has each option, for ``help``, notebooks and editors."""
        own = [
            each for each in inspect.signature(cls.__init__).parameters.values() if each.kind is not each.VAR_KEYWORD
        ]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind.__forward_arg__)
            for name, kind in OptionArguments.__annotations__.items()
        ]
        vars(cls.__init__)["__signature__"] = inspect.Signature([*own, *options], return_annotation="None")

    def __init__(self, **options: Unpack[OptionArguments]) -> None:
        names = OptionArguments.__annotations__
        for name in options:
            if name not in names:
                meant = did_you_mean(name, [field.name for field in dataclasses.fields(self)])
                raise TypeError(f"{type(self).__name__} has no argument {name!r}{meant}")
        self._set(**{name: options.get(name) for name in names})
        if self.result_dtype is not None:
            self._set(result_dtype=dtype_name(self.result_dtype))
        self._check_words()

    def _set(self, **fields: Any) -> None:
        """Sets fields of a new object. Dataclasses that are frozen refuse assignments."""
        vars(self).update(fields)

    def _check_words(self) -> None:
        """Raises ``InvalidArgumentError`` for an unknown word, unless ``enum_name`` made it of an unknown number."""
        for field, (_, prefix) in _ENUMS.items():
            value = getattr(self, field)
            if value is None or (isinstance(value, str) and value in _numbers_of(field)):
                continue
            if not isinstance(value, str) or re.fullmatch(rf"{prefix.lower()}\d+", value) is None:
                _enum_value(field, value)

    def _options_to_proto(self) -> pb.AggregationSpec:
        proto = pb.AggregationSpec()
        for field, value in self.given_options.items():
            if field in _ENUMS:
                setattr(proto, field, _enum_value(field, value))
            else:
                set_fields(proto, self, [field])
        return proto

    def _shown(self, always: dict[str, Any]) -> str:
        """Returns the text of ``__repr__``: these fields, and those that are not as they are by default."""
        options = dict.fromkeys(OptionArguments.__annotations__)  # None by default, and shown last
        defaults = {each.name: each.default for each in dataclasses.fields(self) if each.name not in options}
        defaults = {name: default for name, default in {**defaults, **options}.items() if name not in always}
        given = {name: getattr(self, name) for name, default in defaults.items() if getattr(self, name) != default}
        shown = {**always, **given}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @functools.cached_property
    def given_options(self) -> dict[str, Any]:
        """The options that are set. Rounds may have thousands of tensors, whose options are read several times."""
        mine = vars(self)
        return {name: mine[name] for name in _NAMES if mine[name] is not None}

    def with_options(self, **options: Any) -> Self:
        """Returns a copy that has these options, which are right: they are not checked."""
        made = object.__new__(type(self))  # without what is cached
        made._set(**{each.name: getattr(self, each.name) for each in dataclasses.fields(self)})
        made._set(**options)
        return made


def options_from_proto(proto: pb.AggregationSpec) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for field in _ENUMS:
        options[field] = _enum_name(field, getattr(proto, field))
    for field in _SCALARS:
        options[field] = getattr(proto, field) if proto.HasField(field) else None
    return options
