"""The options that a round sets and a tensor may override, dtypes, and how the axes of a shape make keys."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from sparseagg._internal.base.arguments import did_you_mean, shown
from sparseagg._internal.base.fields import enum_name, words, write
from sparseagg._internal.base.types import DTypeLike
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self


# As NumPy 1 and the server allow.
MOST_AXES = 32


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Returns the ``shape`` of an array or tensor of any library as a tuple of Python's integers; () is a scalar's.

    Raises ``InvalidArgumentError`` for a size below 1, or more axes or values than an array can have.
    """
    try:
        sizes = tuple(-1 if isinstance(size, bool) else operator.index(size) for size in shape)
    except TypeError:
        cure = f"; ({shape},) has one axis" if isinstance(shape, int) else ""
        raise InvalidArgumentError(f"shape must be a tuple of integers, got {shown(shape)}{cure}") from None
    if len(sizes) > MOST_AXES:
        raise InvalidArgumentError(f"shape must have {MOST_AXES} axes at most, got {len(sizes)}")
    if any(size < 0 for size in sizes):
        raise InvalidArgumentError(f"shape must be a tuple of integers from 1 on, got {shown(shape)}")
    if 0 in sizes:
        raise InvalidArgumentError(f"shape {sizes} has no values, and a tensor has one at least")
    if math.prod(sizes) >= 1 << 64:
        raise InvalidArgumentError(f"shape {sizes} has more values than there are keys")
    return sizes


def sizes_of(shape: tuple[int, ...], layout: str, num_rows: int | None, row_width: int | None) -> tuple[int, int]:
    """Returns num_rows and row_width of a tensor of a checked shape; None: what the shape and the other one leave.

    Where both are None, keys are along the first axis of a sparse tensor, and at each value of a dense one. Raises
    ``InvalidArgumentError`` if no two such sizes multiply to the number of values.
    """
    size = math.prod(shape)
    sizes = {"num_rows": num_rows, "row_width": row_width}
    given = " × ".join(f"{what} {n}" for what, n in sizes.items() if n is not None)
    if not given:
        num_rows = size if layout == "dense" else shape[0] if shape else 1
    if num_rows is None and row_width:
        num_rows = size // row_width
    elif row_width is None and num_rows:
        row_width = size // num_rows
    if num_rows and row_width and num_rows * row_width == size:
        return num_rows, row_width
    raise InvalidArgumentError(f"shape {shape} has {size} values, which {given} does not make")


def key_axes(shape: Sequence[int], num_rows: int) -> int | None:
    """Returns how many first axes make the keys, one if there is a choice; None if no number of axes does."""
    counts = (*range(1, len(shape) + 1), 0)
    return next((num_axes for num_axes in counts if math.prod(shape[:num_axes]) == num_rows), None)


def shape_of_rows(num_rows: int, row_width: int) -> tuple[int, ...] | None:
    """Returns the shape of all rows as an array; None if num_rows is 0, which sets no limit."""
    if num_rows == 0:
        return None
    return (num_rows,) if row_width == 1 else (num_rows, row_width)


def is_like(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Returns whether two shapes differ in axes of length 1 alone, which libraries add and drop, as of a scalar."""
    return [size for size in shape if size != 1] == [size for size in other if size != 1]


_Message = TypeVar("_Message", bound=Message)

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

OPTIONS = tuple(field.name for field in pb.AggregationSpec.DESCRIPTOR.fields)


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
    return list(words(pb.AggregationSpec.DESCRIPTOR.fields_by_name[field].enum_type))


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
    on_empty: str = "fail"
    mean_divisor: str = "weights"
    fixed_divisor: float | None = None
    trim_fraction: float | None = None
    quantile: float | None = None
    absent: str = "skip"
    result_top_k: int = 0
    result_min_norm: float = 0.0
    return_moments: bool = False


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class Described:
    """A round's or tensor's description: a message, whose fields are read when they are first asked for.

    Subclasses annotate their fields, and implement ``_build`` and ``_read``. All have these options; None: not set.
    """

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
    on_empty: str | None
    mean_divisor: str | None
    fixed_divisor: float | None
    trim_fraction: float | None
    quantile: float | None
    absent: str | None
    result_top_k: int | None
    result_min_norm: float | None
    return_moments: bool | None

    if TYPE_CHECKING:
        message: Any  # nobody may change it
    else:

        def __getattr__(self, name: str) -> Any:
            if name not in type(self).__dataclass_fields__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            vars(self).update({**dict.fromkeys(OPTIONS), **self.given_options, **self._read()})
            return vars(self)[name]

    def _build(self, given: dict[str, Any]) -> None:
        """Makes the message from the arguments of ``__init__``."""
        raise NotImplementedError

    def _read(self) -> dict[str, Any]:
        """Returns the attributes that the message has, but the options."""
        raise NotImplementedError

    @classmethod
    def of(cls, message: Any) -> Self:
        """Returns the description that a message is, which is complete, and which nobody may change."""
        made = object.__new__(cls)
        vars(made)["message"] = message
        return made

    def _to_proto(self) -> Any:
        """Returns a copy of the message. Fields of None are not set."""
        return copy_of(self.message)

    @functools.cached_property
    def given_options(self) -> dict[str, Any]:
        """The options that are set."""
        fields = self.message.aggregation.ListFields()
        return {
            field.name: value if field.enum_type is None else enum_name(field.enum_type, value)
            for field, value in fields
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and bool(self.message == other.message)

    def __hash__(self) -> int:
        return hash(self.message.SerializeToString(deterministic=True))

    def __reduce__(self) -> Any:
        return _unpickled, (type(self), type(self.message), self.message.SerializeToString())

    def _shown(self, always: dict[str, Any]) -> str:
        """Returns the text of ``__repr__``: these fields, and those that are not as they are by default."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in OPTIONS}
        given = {name: value for name, value in own.items() if value not in (None, False, "sparse")}
        shown = {**always, **{k: v for k, v in {**given, **self.given_options}.items() if k not in always}}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def with_options(self, **options: Any) -> Self:
        """Returns a copy that has these fields, which are right: combinations are not checked."""
        made = object.__new__(type(self))
        if options:
            made._build({**{name: getattr(self, name) for name in self.__dataclass_fields__}, **options})
        else:
            vars(made).update({name: value for name, value in vars(self).items() if name != "table_columns"})
        return made


def aggregation_message(given: dict[str, Any]) -> pb.AggregationSpec:
    """Returns the message of those options that are not None."""
    options = {name: given[name] for name in OPTIONS}
    if options["result_dtype"] is not None:
        options["result_dtype"] = dtype_name(options["result_dtype"])
    message = pb.AggregationSpec()
    write(message, options)
    return message


def copy_of(message: _Message) -> _Message:
    """Returns a message that may be changed."""
    made = type(message)()
    made.CopyFrom(message)
    return made


def _unpickled(cls: Any, message: Any, data: bytes) -> Any:
    return cls._from_proto(message.FromString(data))
