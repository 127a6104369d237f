"""What a round computes: tensors, operators, numerics and limits."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

from sparseagg._internal.base import extension
from sparseagg._internal.base.arguments import checked_integer, checked_text, did_you_mean, shown
from sparseagg._internal.base.durations import Seconds, duration, seconds_of
from sparseagg._internal.base.fields import enum_name
from sparseagg._internal.base.plain_text import html_table
from sparseagg._internal.base.types import DTypeLike, Layout
from sparseagg._internal.spec.clip_spec import ClipSpec, checked_clip
from sparseagg._internal.spec.cluster_spec import ClusterSpec, checked_cluster
from sparseagg._internal.spec.of_model import Names, tensor_fields
from sparseagg._internal.spec.options import (
    DTYPES,
    ORDER_OPS,
    Aggregation,
    OptionArguments,
    Options,
    dtype_name,
    key_bytes,
    options_from_proto,
    set_fields,
    words_of,
)
from sparseagg._internal.spec.privacy_spec import DP, checked_privacy
from sparseagg._internal.spec.shapes import checked_shape, sizes_of
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "DTYPES",
    "ORDER_OPS",
    "Aggregation",
    "RoundSpec",
    "TensorSpec",
    "checked_spec",
    "dtype_name",
    "has_norms",
    "is_weighted",
    "key_bytes",
    "words_of",
]

# Sizes of a TensorSpec: name, description, bounds. On the wire, a row_width of 0 means 1.
_NUM_ROWS = ("num_rows must be a number of rows from 0 to 2^64 - 1, 0 for all of uint64", 0, (1 << 64) - 1)
_ROW_WIDTH = ("row_width must be a number of values from 1 to 2^32 - 1", 1, (1 << 32) - 1)

# Fields of RoundSpec that are numbers.
_LIMITS = ("min_submissions", "max_submissions", "max_tuples_per_submission", "max_bytes_per_submission")


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class TensorSpec(Options):
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
    shape: tuple[int, ...] | None = None
    layout: str = "sparse"
    modular: bool = False
    clip: ClipSpec | None = None

    def __init__(
        self,
        name: str,
        dtype: DTypeLike,
        *,
        shape: Iterable[SupportsIndex] | None = None,
        num_rows: SupportsIndex | None = None,
        row_width: SupportsIndex | None = None,
        layout: Layout = "sparse",
        modular: bool = False,
        clip: ClipSpec | None = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        checked_text("a tensor's name", name)
        if layout not in ("sparse", "dense"):
            raise InvalidArgumentError(f"tensor {shown(name)}: unknown layout {layout!r}; known: sparse, dense")
        try:
            super().__init__(**options)
            self._set(name=name, dtype=dtype_name(dtype), layout=layout, modular=modular, clip=checked_clip(clip))
            self._set(**_sizes(layout, shape, num_rows, row_width))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"tensor {shown(name)}: {error}") from error

    def __repr__(self) -> str:
        return self._shown(
            {"name": self.name, "dtype": self.dtype, "num_rows": self.num_rows, "row_width": self.row_width}
        )

    @property
    def key_bytes(self) -> int:
        """Bytes of one key on the wire: 4 where num_rows allows, else 8."""
        return key_bytes(self.num_rows)

    def to_proto(self) -> pb.TensorSpec:
        """Returns the message. Fields of None stay unset.

        Raises:
            InvalidArgumentError: a field's value does not fit the message.
        """
        try:
            proto = pb.TensorSpec(
                dtype="DTYPE_" + self.dtype.upper(),
                layout=pb.TENSOR_LAYOUT_DENSE if self.layout == "dense" else pb.TENSOR_LAYOUT_SPARSE,
                aggregation=self._options_to_proto(),
            )
            set_fields(proto, self, ("name", "num_rows", "row_width", "modular"))
            if self.shape is not None:
                proto.shape.CopyFrom(pb.Shape(sizes=self.shape))
            if self.clip is not None:
                proto.clip.CopyFrom(self.clip.to_proto())
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"tensor {shown(self.name)}: {error}") from error
        return proto

    @classmethod
    def from_proto(cls, proto: pb.TensorSpec) -> TensorSpec:
        """Returns the spec of a message; ``InvalidArgumentError`` if its dtype is missing or unknown."""
        if proto.dtype == pb.DTYPE_UNSPECIFIED:
            raise InvalidArgumentError(f"tensor {proto.name!r} has no dtype; known: {', '.join(DTYPES)}")
        sizes: dict[str, Any] = {"num_rows": proto.num_rows, "row_width": proto.row_width or 1}
        if proto.HasField("shape"):  # no size is 0 then; a file may give the shape alone
            sizes = {
                field: size for field, size in (("num_rows", proto.num_rows), ("row_width", proto.row_width)) if size
            }
            sizes["shape"] = tuple(proto.shape.sizes)
        return cls(
            name=proto.name,
            dtype=enum_name(pb.DType.DESCRIPTOR, proto.dtype),
            **sizes,
            layout="dense" if proto.layout == pb.TENSOR_LAYOUT_DENSE else "sparse",
            modular=proto.modular,
            clip=ClipSpec.from_proto(proto.clip) if proto.HasField("clip") else None,
            **options_from_proto(proto.aggregation),
        )


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class RoundSpec(Options):
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
        numerics: by default "canonical": float64, folded per key in order of client id. "fixed_point": int64 multiples
            of 2^-s, added exactly on arrival; needs ``value_bound`` and ``max_submissions``. With either one, the same
            submissions give the same bits in any order of arrival.
        return_counts: adds |C(i)|, uint32; False by default; always with "union".
        return_weights: adds Σ_{C(i)} w_k, float64; False by default.
        min_contributors: leaves out keys that fewer submissions list; 1 by default.
        prune_zeros: leaves out keys whose whole row, rounded, is zero; False by default.
        fill: value of absent keys in a dense result; None for 0.
        dense_threshold: density, in (0, 1], from which on "auto" is dense.
        result_dtype: "float32" or "float64"; None for the tensor's dtype, and for int64 if that is int32.
        on_nonfinite: "reject" (default) refuses submissions with NaN or ±Inf; "propagate" follows IEEE arithmetic.
        on_bound: "reject" (default) refuses submissions with |w·v| > ``value_bound``; "clip" makes the term
            ±``value_bound``.
        on_empty: what a round without submissions means for a tensor of dense layout, which has no mean of nothing:
            "fail" (default) makes the round fail; "keep" gives a sparse result without rows, so that ``add_to``
            changes nothing.
        mean_divisor: what "mean" divides by: "weights" (default), Σ w_k of all submissions; "submissions", their
            number; or "fixed", the ``fixed_divisor``, a constant that tells nothing of the submissions.
        fixed_divisor: the constant of ``mean_divisor`` "fixed".
        value_bound: the largest |w·v| with "fixed_point".
        weight_bound: the largest weight with "fixed_point" and "by_weight".
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
        privacy: differential privacy of the results, such as ``DP(noise_multiplier=1.0, …)``. Experimental. None: no
            noise.
        certificate: whether the server signs a certificate of the round, with proofs for its clients. Needs a server
            with ``--certificate-key``; not together with ``privacy``. docs/certificates.md says what it proves.
        allow_export: with ``certificate``: whether coordinators may read the submissions, once the round is done, to
            compute it again elsewhere. Needs a server with ``--data-dir``.
        keep_submissions: keep all submissions until the close, also of tensors that are merged on arrival otherwise, so
            that ``Round.withdraw`` and ``Round.export_submissions`` have them. A server with a GPU's engine may still
            merge these early.
        cluster: the servers that take the round's submissions together; ``sparseagg.cluster.Cluster`` sets it. None:
            the one server that has the round.
        accept_partials: clients may send partials (``Round.add_partial``), which count as all submissions in them; only
            their senders vouch for these. For tensors whose result does not depend on the order of submissions; without
            ``clip``, ``privacy``, ``certificate`` and ``keep_submissions``.
        stay_open: the round does not close itself at ``max_submissions``; further submissions are refused. For rounds
            that are parts of a larger one, as in ``sparseagg.cluster``.

    Raises:
        InvalidArgumentError: an option is unknown, out of range or without effect, or excludes another one; the message
            names tensor and option.
    """

    tensors: tuple[TensorSpec, ...] = ()
    min_submissions: int = 0
    max_submissions: int | None = None
    deadline: Seconds | None = None
    result_ttl: Seconds | None = None
    max_tuples_per_submission: int | None = None
    max_bytes_per_submission: int | None = None
    clip: ClipSpec | None = None
    privacy: DP | None = None
    certificate: bool = False
    allow_export: bool = False
    keep_submissions: bool = False
    cluster: ClusterSpec | None = None
    accept_partials: bool = False
    stay_open: bool = False

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
        privacy: DP | None = None,
        certificate: bool = False,
        allow_export: bool = False,
        keep_submissions: bool = False,
        cluster: ClusterSpec | None = None,
        accept_partials: bool = False,
        stay_open: bool = False,
        **options: Unpack[OptionArguments],
    ) -> None:
        made = tuple(tensors) if isinstance(tensors, Iterable) else None
        if made is None or not all(isinstance(tensor, TensorSpec) for tensor in made):
            raise InvalidArgumentError(f"tensors must be a list of TensorSpec, got {shown(tensors)}")
        super().__init__(**options)
        if not isinstance(certificate, bool) or not isinstance(allow_export, bool):
            raise InvalidArgumentError(
                f"certificate and allow_export must be bools, got {shown(certificate)} and {shown(allow_export)}"
            )
        if allow_export and not certificate:
            raise InvalidArgumentError("allow_export is for rounds with a certificate: certificate must be True")
        self._set(
            tensors=made,
            min_submissions=min_submissions,
            max_submissions=max_submissions,
            deadline=deadline,
            result_ttl=result_ttl,
            max_tuples_per_submission=max_tuples_per_submission,
            max_bytes_per_submission=max_bytes_per_submission,
            clip=checked_clip(clip),
            privacy=checked_privacy(privacy),
            certificate=certificate,
            allow_export=allow_export,
            keep_submissions=bool(keep_submissions),
            cluster=checked_cluster(cluster),
            accept_partials=bool(accept_partials),
            stay_open=bool(stay_open),
        )
        self._check()

    def _check(self) -> None:
        """Raises ``InvalidArgumentError`` for what no round can be. Without the engine, the server refuses it later."""
        engine = extension.find()
        if engine is None:
            return
        with extension.errors():
            engine.check_spec(self.to_proto().SerializeToString())

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
        if not own:
            return self._by_layout[tensor.layout]
        return Aggregation(**{"result_layout": tensor.layout, **self.given_options, **own})

    @functools.cached_property
    def table_columns(self) -> dict[str, list[Any]]:
        """The names of the value columns, by tensor, in order: those of the first table that was given for it.

        Each round and aggregator has a spec of its own, so that names bind there alone.
        """
        return {}

    @functools.cached_property
    def _by_layout(self) -> dict[str, Aggregation]:
        """How tensors without options are aggregated: one object for all, since there may be thousands of them."""
        return {
            layout: Aggregation(**{"result_layout": layout, **self.given_options}) for layout in ("sparse", "dense")
        }

    def clips(self, tensor: TensorSpec) -> bool:
        """Returns whether bounds apply to ``tensor``: its own, or those of the round."""
        if self.clip is None and tensor.clip is None:
            return False
        how = self.aggregation_of(tensor)
        return "float" in tensor.dtype and how.op != "union" and (self.clip or ClipSpec()).covers(tensor.clip)

    def to_proto(self) -> pb.RoundSpec:
        """Returns the message. Fields of None stay unset.

        Raises:
            InvalidArgumentError: a field's value does not fit the message.
        """
        proto = pb.RoundSpec(
            tensors=[tensor.to_proto() for tensor in self.tensors],
            aggregation=self._options_to_proto(),
            deadline=duration("deadline", self.deadline),
            result_ttl=duration("result_ttl", self.result_ttl),
            clip=None if self.clip is None else self.clip.to_proto(),
            privacy=None if self.privacy is None else self.privacy.to_proto(),
            certificate=pb.CertificateSpec(allow_export=self.allow_export) if self.certificate else None,
            keep_submissions=self.keep_submissions,
            cluster=None if self.cluster is None else self.cluster.to_proto(),
            accept_partials=self.accept_partials,
            stay_open=self.stay_open,
        )
        set_fields(proto, self, _LIMITS)
        return proto

    @classmethod
    def from_proto(cls, proto: pb.RoundSpec) -> RoundSpec:
        """Returns the spec of a message; ``InvalidArgumentError`` if a tensor's dtype is missing or unknown."""
        made = object.__new__(cls)  # not checked: another release may have made the message
        made._set(
            tensors=tuple(TensorSpec.from_proto(tensor) for tensor in proto.tensors),
            min_submissions=proto.min_submissions,
            max_submissions=proto.max_submissions or None,
            deadline=seconds_of(proto.deadline) if proto.HasField("deadline") else None,
            result_ttl=seconds_of(proto.result_ttl) if proto.HasField("result_ttl") else None,
            max_tuples_per_submission=proto.max_tuples_per_submission or None,
            max_bytes_per_submission=proto.max_bytes_per_submission or None,
            clip=ClipSpec.from_proto(proto.clip) if proto.HasField("clip") else None,
            privacy=DP.from_proto(proto.privacy) if proto.HasField("privacy") else None,
            certificate=proto.HasField("certificate"),
            allow_export=proto.certificate.allow_export,
            keep_submissions=proto.keep_submissions,
            cluster=ClusterSpec.from_proto(proto.cluster) if proto.HasField("cluster") else None,
            accept_partials=proto.accept_partials,
            stay_open=proto.stay_open,
            **options_from_proto(proto.aggregation),
        )
        return made


def has_norms(tensor: TensorSpec, how: Aggregation) -> bool:
    """Whether ``result_top_k`` and ``result_min_norm`` are for the tensor: its result is sparse, with norms of rows."""
    return how.result_layout == "sparse" and how.op != "union" and not tensor.modular


def is_weighted(spec: RoundSpec) -> bool:
    """Whether a tensor is weighted "by_weight", so that submissions may have weights."""
    return any((tensor.weighting or spec.weighting) == "by_weight" for tensor in spec.tensors)


def checked_spec(spec: Any) -> RoundSpec:
    """Returns ``spec``; ``InvalidArgumentError`` if ``spec`` is no ``RoundSpec``."""
    if not isinstance(spec, RoundSpec):
        raise InvalidArgumentError(f"spec must be a RoundSpec, got {shown(spec)}")
    return spec


def _sizes(
    layout: str, shape: Iterable[SupportsIndex] | None, num_rows: SupportsIndex | None, row_width: SupportsIndex | None
) -> dict[str, Any]:
    """Returns shape, num_rows and row_width, in Python's integers: NumPy's overflow in products."""
    rows = None if num_rows is None else checked_integer(_NUM_ROWS[0], num_rows, *_NUM_ROWS[1:])
    width = None if row_width is None else checked_integer(_ROW_WIDTH[0], row_width, *_ROW_WIDTH[1:])
    if shape is None:
        if rows is None:
            raise InvalidArgumentError("neither num_rows nor shape is given; num_rows 0 is for any 64-bit keys")
        return {"num_rows": rows, "row_width": 1 if width is None else width}
    sizes = checked_shape(shape)
    rows, width = sizes_of(sizes, layout, rows, width)
    checked_integer(_ROW_WIDTH[0], width, *_ROW_WIDTH[1:])
    return {"shape": sizes, "num_rows": rows, "row_width": width}
