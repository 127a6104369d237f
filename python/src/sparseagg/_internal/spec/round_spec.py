"""What a round computes: tensors, operators, numerics and limits."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable
from typing import Any, SupportsIndex

from sparseagg._internal.base import extension
from sparseagg._internal.base.arguments import checked_integer, checked_text, did_you_mean, shown
from sparseagg._internal.base.fields import Seconds, enum_name, seconds_of, write
from sparseagg._internal.base.text import html_table
from sparseagg._internal.base.types import (
    Absent,
    DTypeLike,
    Layout,
    MeanDivisor,
    Numerics,
    OnEmpty,
    OnNonfinite,
    Op,
    ResultLayout,
    Weighting,
)
from sparseagg._internal.spec.bounds import ClipSpec, ClusterSpec, PrivacySpec, checked
from sparseagg._internal.spec.of_model import Names, tensor_fields
from sparseagg._internal.spec.options import (
    DTYPES,
    Aggregation,
    Described,
    aggregation_message,
    checked_shape,
    copy_of,
    dtype_name,
    key_bytes,
    sizes_of,
)
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

# Sizes of a TensorSpec: name, description, bounds. On the wire, a row_width of 0 means 1.
_NUM_ROWS = ("num_rows must be a number of rows from 0 to 2^64 - 1, 0 for all of uint64", 0, (1 << 64) - 1)
_ROW_WIDTH = ("row_width must be a number of values from 1 to 2^32 - 1", 1, (1 << 32) - 1)

_DTYPE_NUMBERS = set(pb.DType.values())

# Fields of RoundSpec by kind. The limits are None if they are 0 in the message.
_LIMITS = ("max_submissions", "max_tuples_per_submission", "max_bytes_per_submission")
_TIMES = ("deadline", "result_ttl")
_FLAGS = ("keep_submissions", "accept_partials", "stay_open")
_PARTS: dict[str, Any] = {"clip": ClipSpec, "privacy": PrivacySpec, "cluster": ClusterSpec}


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class TensorSpec(Described):
    """One tensor of a round.

        sa.TensorSpec("embedding", "float32", shape=(50_000, 16))  # an update has some of the 50,000 rows
        sa.TensorSpec("bias", "float32", shape=(16,), layout="dense")  # an update has all values
        sa.TensorSpec("hashed", "float32", num_rows=0, row_width=16)  # keys are any 64-bit numbers

    Args:
        name: 1–256 bytes in UTF-8 without control characters, unique in the round.
        dtype: of the values in updates: "float32", "float16", "bfloat16", "float64", "int32", "int64", "uint32" or
            "uint64", or a dtype of NumPy, torch, TensorFlow or JAX of that name.
        shape: of the caller's array; () for a scalar. The result's ``dense()`` has it. Alone, it makes the keys of a
            sparse tensor those of the first axis, and each value of a dense tensor a row. ``row_width=1`` gives a
            sparse tensor of several axes a key for each element: the element's position, row after row.
        num_rows: number of rows; keys are below it. 0: keys are any uint64 (hashed keys; of signed ids
            ``ids.view(np.uint64)``). None: as ``shape`` says.
        row_width: values per key. None: as ``shape`` says, and 1 without a shape.
        layout: "sparse", or "dense" when every update carries all ``num_rows`` rows.
        modular: true for uint32 and uint64, whose sums wrap (secure aggregation).
        clip: bounds of this tensor, each of which overrides that of the round.
        options: ``op``, ``weighting`` and the other options of ``RoundSpec``, for this tensor. None: the round's.

    Raises:
        InvalidArgumentError: a size or a word is wrong; the message names the tensor and the argument.
    """

    name: str
    dtype: str
    num_rows: int
    row_width: int
    shape: tuple[int, ...] | None
    layout: str
    modular: bool
    clip: ClipSpec | None

    def __init__(
        self,
        name: str,
        dtype: DTypeLike,
        shape: Iterable[SupportsIndex] | None = None,
        *,
        num_rows: SupportsIndex | None = None,
        row_width: SupportsIndex | None = None,
        layout: Layout = "sparse",
        modular: bool = False,
        clip: ClipSpec | None = None,
        op: Op | None = None,
        weighting: Weighting | None = None,
        result_layout: ResultLayout | None = None,
        numerics: Numerics | None = None,
        return_counts: bool | None = None,
        return_weights: bool | None = None,
        min_contributors: int | None = None,
        prune_zeros: bool | None = None,
        fill: float | None = None,
        dense_threshold: float | None = None,
        result_dtype: DTypeLike | None = None,
        on_nonfinite: OnNonfinite | None = None,
        on_empty: OnEmpty | None = None,
        mean_divisor: MeanDivisor | None = None,
        fixed_divisor: float | None = None,
        trim_fraction: float | None = None,
        quantile: float | None = None,
        absent: Absent | None = None,
        result_top_k: int | None = None,
        result_min_norm: float | None = None,
        return_moments: bool | None = None,
    ) -> None:
        self._build(locals())

    def _build(self, given: dict[str, Any]) -> None:
        name, layout = checked_text("a tensor's name", given["name"]), given["layout"]
        try:
            rows, width, shape = _sizes(layout, given["shape"], given["num_rows"], given["row_width"])
            message = pb.TensorSpec(name=name, num_rows=rows, row_width=width, aggregation=aggregation_message(given))
            write(message, {"dtype": dtype_name(given["dtype"]), "layout": layout, "modular": given["modular"]})
            if shape is not None:
                message.shape.CopyFrom(pb.Shape(sizes=shape))
            clip = checked(ClipSpec, "clip", given["clip"])
            if clip is not None:
                message.clip.CopyFrom(clip._to_proto())
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"tensor {shown(name)}: {error}") from error
        vars(self)["message"] = message

    def _read(self) -> dict[str, Any]:
        message = self.message
        return {
            "name": message.name,
            "dtype": enum_name(pb.DType.DESCRIPTOR, message.dtype),
            "num_rows": message.num_rows,
            "row_width": message.row_width,
            "shape": tuple(message.shape.sizes) if message.HasField("shape") else None,
            "layout": "dense" if message.layout == pb.TENSOR_LAYOUT_DENSE else "sparse",
            "modular": message.modular,
            "clip": ClipSpec._from_proto(message.clip) if message.HasField("clip") else None,
        }

    @classmethod
    def _from_proto(cls, proto: pb.TensorSpec) -> TensorSpec:
        """Returns the spec of a message; ``InvalidArgumentError`` if its dtype is missing or its shape is wrong."""
        return cls.of(_completed(copy_of(proto)))

    def __repr__(self) -> str:
        return self._shown(
            {"name": self.name, "dtype": self.dtype, "num_rows": self.num_rows, "row_width": self.row_width}
        )

    def _repr_html_(self) -> str:
        """Sizes and options as a table, which notebooks show."""
        shown: dict[str, Any] = {"tensor": self.name, "layout": self.layout, "dtype": self.dtype}
        shown.update({"rows": self.num_rows or "any", "values of a row": self.row_width})
        shown.update({"shape": str(self.shape)} if self.shape else {}, **self.given_options)
        return html_table(list(shown), [list(shown.values())])

    @functools.cached_property
    def key_bytes(self) -> int:
        """Bytes of one key on the wire: 4 where num_rows allows, else 8."""
        return key_bytes(self.num_rows)


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class RoundSpec(Described):
    """The tensors of a round, how they are aggregated, and when the round ends.

    v_k(i) is the row of submission k at key i, w_k the submission's weight (1 with ``weighting`` "uniform"), and C(i)
    the set of submissions that list key i. The result has the keys for which C(i) is not empty.

    An option of None has its default, which ``aggregation_of`` tells. An option that no tensor uses, such as a ``fill``
    where all results are sparse, is refused.

    Args:
        tensors: the tensors, with distinct names.
        op: by default "sum": Σ_{C(i)} w_k·v_k(i). "mean": that sum over Σ w_k of all submissions, so that an absent
            key counts as 0. "coordinate_mean": that sum over Σ_{C(i)} w_k; a missing key is excluded from the average.
            "union": keys and counts, without values. "min", "max": element-wise over C(i), unweighted.
            "median", "trimmed_mean", "quantile": order statistics, element-wise over C(i) (docs/robust.md).
        weighting: "uniform" (default) or "by_weight". With "by_weight", every submission has a weight of 0 or more;
            without, a submission with another weight than 1 is refused.
        result_layout: "sparse", "dense", or "auto" for the smaller of the two. None: the layout of the tensor.
        numerics: by default "canonical": float64, folded per key in order of client id. "binned": integers in bins by
            magnitude, added on arrival; for sums and means of floats; other tensors of the round stay canonical. With
            both, the same submissions give the same bits in any order of arrival.
        return_counts: adds |C(i)|, uint32; False by default; always with "union".
        return_weights: adds Σ_{C(i)} w_k, float64; False by default.
        min_contributors: leaves out keys that fewer submissions list; 1 by default.
        prune_zeros: leaves out keys whose whole row, rounded, is zero; False by default.
        fill: value of absent keys in a dense result; None for 0.
        dense_threshold: density, in (0, 1], from which on "auto" is dense.
        result_dtype: "float32" or "float64"; None for the tensor's dtype, and for int64 if that is int32.
        on_nonfinite: "reject" (default) refuses submissions with NaN or ±Inf; "propagate" follows IEEE arithmetic.
        on_empty: what a round without submissions means for a tensor of dense layout, which has no mean of nothing:
            "fail" (default) makes the round fail; "keep" gives a sparse result without rows, so that ``add_to``
            changes nothing.
        mean_divisor: what "mean" divides by: "weights" (default), Σ w_k of all submissions; "submissions", their
            number; or "fixed", the ``fixed_divisor``, a constant that tells nothing of the submissions.
        fixed_divisor: the constant of ``mean_divisor`` "fixed".
        trim_fraction: of "trimmed_mean", how many of n values are dropped at either end: the b = ⌊trim_fraction·n⌋
            lowest and highest; in [0, 0.5).
        quantile: of "quantile", which one; in [0, 1].
        absent: of order statistics, whether a submission without a key votes there: "skip" (default), or "zero", for 0.
        result_top_k: the finished result keeps so many rows, those of the largest L2 norm; of equal norms, those of the
            lower keys. 0: all. For results of the layout "sparse", with values and not modular: an option of the round
            leaves other tensors as they are, and one of such a tensor is refused. ``RoundInfo.results`` says how many
            rows were cut.
        result_min_norm: the finished result keeps the rows of this L2 norm or more; 0, or 2^-500 to 2^500. 0: all.
        return_moments: also return Σ_{C(i)} w_k·v_k(i)² of each key and column, in float64 and not divided; False by
            default. For "sum", "mean" and "coordinate_mean" with "canonical" numerics, not for modular tensors.
        min_submissions: a round that closes with fewer submissions fails.
        max_submissions: the round closes itself at this number. None: the server's limit.
        deadline: the round closes itself this long after its creation, in seconds or as a timedelta. None: never.
        result_ttl: how long the server keeps the ended round, in seconds or as a timedelta. None: the server's limit.
        max_tuples_per_submission: limit over all tensors. None: the server's limit.
        max_bytes_per_submission: limit of keys and values. None: the server's limit.
        clip: bounds on each submission, such as ``ClipSpec(l2=1.0)``. None: no bounds.
        privacy: differential privacy of the results, such as ``PrivacySpec(noise_multiplier=1.0, …)``. Experimental.
            None: no noise.
        certificate: whether the server signs a certificate of the round, with proofs for its clients. Needs a server
            with ``--certificate-key``; not together with ``privacy``. docs/certificates.md says what it proves.
        allow_export: with ``certificate``: whether coordinators may read the submissions, once the round is done, to
            compute it again elsewhere. Needs a server with ``--data-dir``.
        keep_submissions: keep all submissions until the close, also of tensors that are merged on arrival otherwise, so
            that ``Round.withdraw`` and ``cluster.export_submissions`` have them. A server with a GPU's engine may still
            merge these early.
        cluster: the servers that take the round's submissions together; ``sparseagg.cluster.Cluster`` sets it. None:
            the one server that has the round.
        accept_partials: clients may send partials (``cluster.add_partial``), which count as all submissions in
            them; only their senders vouch for these. For tensors whose result does not depend on the order of
            submissions; without ``clip``, ``privacy``, ``certificate`` and ``keep_submissions``.
        stay_open: the round does not close itself at ``max_submissions``; further submissions are refused. For rounds
            that are parts of a larger one, as in ``sparseagg.cluster``.

    Raises:
        InvalidArgumentError: an option is unknown, out of range or without effect, or excludes another one; the message
            names tensor and option.
    """

    tensors: tuple[TensorSpec, ...]
    min_submissions: int
    max_submissions: int | None
    deadline: float | None
    result_ttl: float | None
    max_tuples_per_submission: int | None
    max_bytes_per_submission: int | None
    clip: ClipSpec | None
    privacy: PrivacySpec | None
    certificate: bool
    allow_export: bool
    keep_submissions: bool
    cluster: ClusterSpec | None
    accept_partials: bool
    stay_open: bool

    def __init__(
        self,
        tensors: Iterable[TensorSpec],
        *,
        min_submissions: int = 0,
        max_submissions: int | None = None,
        deadline: Seconds | None = None,
        result_ttl: Seconds | None = None,
        max_tuples_per_submission: int | None = None,
        max_bytes_per_submission: int | None = None,
        clip: ClipSpec | None = None,
        privacy: PrivacySpec | None = None,
        certificate: bool = False,
        allow_export: bool = False,
        keep_submissions: bool = False,
        cluster: ClusterSpec | None = None,
        accept_partials: bool = False,
        stay_open: bool = False,
        op: Op | None = None,
        weighting: Weighting | None = None,
        result_layout: ResultLayout | None = None,
        numerics: Numerics | None = None,
        return_counts: bool | None = None,
        return_weights: bool | None = None,
        min_contributors: int | None = None,
        prune_zeros: bool | None = None,
        fill: float | None = None,
        dense_threshold: float | None = None,
        result_dtype: DTypeLike | None = None,
        on_nonfinite: OnNonfinite | None = None,
        on_empty: OnEmpty | None = None,
        mean_divisor: MeanDivisor | None = None,
        fixed_divisor: float | None = None,
        trim_fraction: float | None = None,
        quantile: float | None = None,
        absent: Absent | None = None,
        result_top_k: int | None = None,
        result_min_norm: float | None = None,
        return_moments: bool | None = None,
    ) -> None:
        self._build(locals())
        self._check()

    def _build(self, given: dict[str, Any]) -> None:
        tensors = tuple(given["tensors"]) if isinstance(given["tensors"], Iterable) else None
        if tensors is None or not all(isinstance(tensor, TensorSpec) for tensor in tensors):
            given_text = shown(given["tensors"])
            raise InvalidArgumentError(
                f"tensors must be a list of TensorSpec, got {given_text}; RoundSpec.like makes one of arrays"
            )
        certificate, allow_export = given["certificate"], given["allow_export"]
        if not isinstance(certificate, bool) or not isinstance(allow_export, bool):
            raise InvalidArgumentError(
                f"certificate and allow_export must be bools, got {shown(certificate)} and {shown(allow_export)}"
            )
        if allow_export and not certificate:
            raise InvalidArgumentError("allow_export is for rounds with a certificate: certificate must be True")
        message = pb.RoundSpec(tensors=[tensor.message for tensor in tensors], aggregation=aggregation_message(given))
        write(message, {name: given[name] for name in ("min_submissions", *_LIMITS, *_TIMES)})
        for name in _FLAGS:
            setattr(message, name, bool(given[name]))
        for name, kind in _PARTS.items():
            part = checked(kind, name, given[name])
            if part is not None:
                getattr(message, name).CopyFrom(part._to_proto())
        if certificate:
            message.certificate.CopyFrom(pb.CertificateSpec(allow_export=allow_export))
        vars(self).update(message=message, tensors=tensors)

    def _read(self) -> dict[str, Any]:
        message = self.message
        return {
            "tensors": vars(self).get("tensors") or tuple(map(TensorSpec.of, message.tensors)),
            "min_submissions": message.min_submissions,
            **{name: getattr(message, name) or None for name in _LIMITS},
            **{name: seconds_of(getattr(message, name)) if message.HasField(name) else None for name in _TIMES},
            **{name: getattr(message, name) for name in _FLAGS},
            **{n: kind._from_proto(getattr(message, n)) if message.HasField(n) else None for n, kind in _PARTS.items()},
            "certificate": message.HasField("certificate"),
            "allow_export": message.certificate.allow_export,
        }

    @classmethod
    def _from_proto(cls, proto: pb.RoundSpec) -> RoundSpec:
        """Returns the spec of a message. Combinations are not checked: a later release may allow more."""
        message = copy_of(proto)
        message.aggregation.SetInParent()
        for tensor in message.tensors:
            _completed(tensor)
        return cls.of(message)

    def _check(self) -> None:
        """Raises ``InvalidArgumentError`` for what no round can be. Without the engine, the server refuses it later."""
        engine = extension.find()
        if engine is None:
            return
        with extension.errors():
            engine.check_spec(self.message.SerializeToString())

    def __repr__(self) -> str:
        default = Aggregation()
        how = {name: getattr(self, name) or getattr(default, name) for name in ("op", "weighting", "numerics")}
        return self._shown({"tensors": list(self.tensors), **how})

    def _repr_html_(self) -> str:
        """The tensors and how each is merged, as a table, which notebooks show."""
        heads = ("tensor", "layout", "dtype", "rows", "values of a row", "op", "weighting", "numerics")
        rows = []
        for each in self.tensors:
            how = self.aggregation_of(each)
            sizes = (each.num_rows or "any", each.row_width)
            rows.append((each.name, each.layout, each.dtype, *sizes, how.op, how.weighting, how.numerics))
        return html_table(heads, rows)

    @classmethod
    def like(
        cls,
        model: Any,
        sparse: Names = None,
        *,
        elements: Names = None,
        skip: Names = None,
        buffers: bool = False,
        **options: Any,
    ) -> RoundSpec:
        """Returns a spec with a tensor for each array of a model, of its name, dtype and shape.

        Arrays are dense, unless ``sparse`` or ``elements`` names them. Only dtypes and shapes are read, and of arrays
        of one memory under several names (tied weights) the addresses: a name in ``sparse`` or ``elements`` stands for
        all of them. A torch module has the first of the names only, and takes the others for it.

            RoundSpec.like(module, sparse=["embedding.weight"], op="mean", weighting="by_weight")

        Args:
            model: a torch module, whose trained parameters count; a state dict or another mapping from names to arrays;
                or a list of arrays, whose names are "0", "1", ….
            sparse: the arrays that updates have some rows of: names, patterns such as "*.embedding.weight", or a
                function of name and array. None: the weights of a torch module's ``Embedding(sparse=True)``.
            elements: the arrays that updates have single elements of, such as the largest ones, named likewise. A key
                is an element's position, row after row.
            skip: the arrays to leave out, named likewise.
            buffers: take the buffers of a torch module, too.
            options: of the round, such as ``op``.

        Raises:
            InvalidArgumentError: a name is no array's; or an array has a dtype that is not summed, such as bool or
                int8, or no values. The message names the array.
        """
        fields = tensor_fields(model, sparse, elements, skip, buffers)
        return cls([TensorSpec(**each) for each in fields], **options)

    def tensor(self, name: str) -> TensorSpec:
        """Returns the tensor with this name.

        Raises:
            InvalidArgumentError: there is no such tensor; the message lists the tensors.
        """
        tensor = self._by_name.get(name)
        if tensor is not None:
            return tensor
        known = ", ".join(repr(tensor.name) for tensor in self.tensors)
        meant = did_you_mean(name, self._by_name)
        raise InvalidArgumentError(f"unknown tensor {name!r}; this round has {known or 'none'}{meant}")

    @functools.cached_property
    def _by_name(self) -> dict[str, TensorSpec]:
        """The tensors by name. Of several with one name, which no server takes, it has the first."""
        return {tensor.name: tensor for tensor in reversed(self.tensors)}

    def aggregation_of(self, tensor: TensorSpec) -> Aggregation:
        """Returns how ``tensor`` is aggregated: the tensor's options, then the round's options, then the defaults."""
        own = tensor.given_options
        return (
            self._combined(tensor.layout, tensor.modular, "float" in tensor.dtype, own)
            if own
            else self._by_kind[tensor.layout, tensor.modular, "float" in tensor.dtype]
        )

    @functools.cached_property
    def table_columns(self) -> dict[str, list[Any]]:
        """The names of the value columns, by tensor, in order: those of the first table that was given for it.

        Each round and aggregator has a spec of its own, so that names bind there alone.
        """
        return {}

    @functools.cached_property
    def _by_kind(self) -> dict[tuple[str, bool, bool], Aggregation]:
        """How tensors without options are aggregated: one object for all, since there may be thousands of them."""
        kinds = itertools.product(("sparse", "dense"), (False, True), (False, True))
        return {kind: self._combined(*kind, {}) for kind in kinds}

    def _combined(self, layout: str, modular: bool, is_float: bool, own: dict[str, Any]) -> Aggregation:
        how = {"result_layout": layout, **self.given_options, **own}
        unused = [] if how.get("mean_divisor") == "fixed" else ["fixed_divisor"]
        if modular or how["result_layout"] != "sparse" or how.get("op") == "union":  # without norms of rows
            unused += ["result_top_k", "result_min_norm"]
        is_sum = how.get("op", "sum") in ("sum", "mean", "coordinate_mean")
        if how.get("numerics") == "binned" and not (is_sum and is_float):
            unused.append("numerics")
        return Aggregation(**{name: value for name, value in how.items() if name in own or name not in unused})

    def clips(self, tensor: TensorSpec) -> bool:
        """Returns whether bounds apply to ``tensor``: its own, or those of the round."""
        if self.clip is None and tensor.clip is None:
            return False
        how = self.aggregation_of(tensor)
        return "float" in tensor.dtype and how.op != "union" and (self.clip or ClipSpec()).covers(tensor.clip)


def is_weighted(spec: RoundSpec) -> bool:
    """Whether a tensor is weighted "by_weight", so that submissions may have weights."""
    return any((tensor.weighting or spec.weighting) == "by_weight" for tensor in spec.tensors)


def checked_spec(spec: Any) -> RoundSpec:
    """Returns ``spec``; ``InvalidArgumentError`` if ``spec`` is no ``RoundSpec``."""
    if not isinstance(spec, RoundSpec):
        raise InvalidArgumentError(
            f"spec must be a RoundSpec, got {shown(spec)}; create_round(like=update) makes one of an update"
        )
    return spec


def _completed(message: pb.TensorSpec) -> pb.TensorSpec:
    """Sets what a message may leave out: sizes that its shape gives, a row_width of 1, and the layout."""
    if message.dtype == pb.DTYPE_UNSPECIFIED:
        raise InvalidArgumentError(f"tensor {message.name!r} has no dtype; known: {', '.join(DTYPES)}")
    if message.dtype not in _DTYPE_NUMBERS:
        dtype_name(enum_name(pb.DType.DESCRIPTOR, message.dtype))  # which raises
    if message.layout == pb.TENSOR_LAYOUT_UNSPECIFIED:
        message.layout = pb.TENSOR_LAYOUT_SPARSE
    if message.HasField("shape"):  # no size is 0 then
        layout = "dense" if message.layout == pb.TENSOR_LAYOUT_DENSE else "sparse"
        sizes = (message.num_rows or None, message.row_width or None)
        try:
            message.num_rows, message.row_width, _ = _sizes(layout, message.shape.sizes, *sizes)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"tensor {shown(message.name)}: {error}") from error
    message.row_width = message.row_width or 1
    message.aggregation.SetInParent()
    return message


def _sizes(
    layout: str, shape: Iterable[SupportsIndex] | None, num_rows: SupportsIndex | None, row_width: SupportsIndex | None
) -> tuple[int, int, tuple[int, ...] | None]:
    """Returns num_rows, row_width and the shape, in Python's integers: NumPy's overflow in products."""
    rows = None if num_rows is None else checked_integer(_NUM_ROWS[0], num_rows, *_NUM_ROWS[1:])
    width = None if row_width is None else checked_integer(_ROW_WIDTH[0], row_width, *_ROW_WIDTH[1:])
    if shape is None:
        if rows is None:
            raise InvalidArgumentError("neither num_rows nor shape is given; num_rows 0 is for any 64-bit keys")
        return rows, 1 if width is None else width, None
    sizes = checked_shape(shape)
    rows, width = sizes_of(sizes, layout, rows, width)
    return rows, checked_integer(_ROW_WIDTH[0], width, *_ROW_WIDTH[1:]), sizes
