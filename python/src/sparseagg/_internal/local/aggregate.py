"""All updates at once: the same merge as on a server, and the same bits, in this process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal, SupportsIndex, overload

from sparseagg._internal.base.foreign import has_device_arrays
from sparseagg._internal.base.types import Updates
from sparseagg._internal.local import cuda_plugin
from sparseagg._internal.local.aggregator import Aggregator
from sparseagg._internal.results.forms import DeviceTensorResult
from sparseagg._internal.results.result import Result
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec, checked_spec
from sparseagg._internal.updates.contributors import checked_updates
from sparseagg._internal.updates.inference import with_spec
from sparseagg.errors import InvalidArgumentError


def placed(updates: Any) -> tuple[Any, str]:
    """Returns the updates, and the device to merge on: the GPU, if its engine works here and updates have arrays there.

    Looks at all updates in a list or dictionary, and at the first one otherwise.
    """
    seen = updates
    if isinstance(updates, Mapping):
        seen = updates.values() if isinstance(updates, dict) else itertools.islice(updates.values(), 1)
    elif not isinstance(updates, list):
        updates = iter(updates)
        seen = list(itertools.islice(updates, 1))
        updates = itertools.chain(seen, updates)
    on_gpu = any(map(has_device_arrays, seen)) and cuda_plugin.works()
    return updates, "cuda" if on_gpu else "cpu"


@overload
def aggregate(
    updates: Updates, spec: RoundSpec | None = None, *, result_device: Literal["cpu"] | None = None, **options: Any
) -> Result: ...
@overload
def aggregate(
    updates: Updates, spec: RoundSpec | None = None, *, result_device: Literal["cuda"], **options: Any
) -> dict[str, DeviceTensorResult]: ...
@overload
def aggregate(
    updates: Updates, spec: RoundSpec | None = None, *, result_device: str, **options: Any
) -> Result | dict[str, DeviceTensorResult]: ...
def aggregate(
    updates: Updates,
    spec: RoundSpec | None = None,
    *,
    threads: SupportsIndex | None = None,
    memory_limit: SupportsIndex | None = None,
    device: str | None = None,
    noise_key: bytes | None = None,
    release_id: bytes | None = None,
    result_device: str | None = None,
    **options: Any,
) -> Result | dict[str, DeviceTensorResult]:
    """Merges updates in this process. The result is that of ``Client.aggregate``, bit for bit.

        sa.aggregate({"a": {"w": ([1, 2], rows)}, "b": {"w": ([2], row)}}, op="mean")["w"].values

    Values of the tensor's dtype, and most keys, are not copied: they are read where they are until the result is there.
    Do not change them while this runs, for the sums would be wrong; memory stays safe.
    Arrays of another dtype are converted as ``Round.submit`` does. Other threads of Python run meanwhile.

    Args:
        updates: a mapping from client ids to updates, or an iterable of updates, whose positions become the ids; an
            update is what ``Round.submit`` takes, or a pair (update, weight), for a spec with "by_weight". An iterator
            has to make new arrays for each update, for arrays are read later: an iterator that fills the same arrays
            again gives wrong sums. (Gradients of a module are copied.) The updates of a list or mapping are read twice
            if a sum of floats is not finite or keys are not in order, and have to be the same both times.
        spec: what to compute. Its deadline and result_ttl have no meaning here. None: all updates have the tensors of
            the first one, of its dtypes and widths, and ``Result.spec`` says what that is. Keys of pairs (keys, rows)
            and of tables have no bound; an array, dense or sparse, gives the tensor its shape. A single tensor has the
            name "0", the arrays of a list "0", "1", …. Sums and means are "by_weight" if the first update has a weight.
        threads: that prepare and merge; 1024 at most, by default one per core. They leave no trace in the result.
        memory_limit: in bytes, as of ``Aggregator``; by default there is none. Updates that an iterator makes are asked
            for one at a time then, so that there may be more of them than fit the memory; of those in a list or mapping
            that have to be converted, up to a sixteenth of it is at a time. No trace in the result.
        device: "cuda" or "cpu", as of ``Aggregator``. None: "cuda" if that engine works here and one of the updates in
            a list or dictionary, or the first one otherwise, has arrays in the memory of a GPU; else "cpu". No trace in
            the result.
        noise_key, release_id: as of ``Aggregator``.
        result_device: "cuda": the results stay in the memory of the GPU that merges them, as of
            ``Aggregator.finish_on_device``, by name. "updates": so they do if the merge is on a GPU because updates
            have arrays there. "cpu" and None: a ``Result``, in host memory.
        options: without a spec, those of ``RoundSpec``, such as ``op``; "sum" by default.

    Raises:
        EngineMissingError, UnavailableError: as of ``Aggregator``. UnimplementedError, UnavailableError,
            ResourceExhaustedError: for results on a GPU, also as of ``Aggregator.finish_on_device``.
        InvalidArgumentError: the spec or one of the updates is wrong; the message names client, tensor, key and value.
            Without a spec, also if an update has another name, dtype, width or shape than the first.
        FailedPreconditionError, OutOfRangeError: the merge failed; the message names tensor and key.
        ResourceExhaustedError: beyond a limit of the spec, or the merged rows alone are beyond ``memory_limit``.
    """
    if result_device not in (None, "cpu", "cuda", "updates"):
        raise InvalidArgumentError(f"result_device must be 'cpu', 'cuda', 'updates' or None, got {result_device!r}")
    updates, spec = with_spec(updates, spec, options)
    stays = result_device == "cuda"
    if stays and device is None:
        device = "cuda"
    if stays and device == "cpu":
        raise InvalidArgumentError("result_device is 'cuda', but device is 'cpu': the CPU's results are in host memory")
    if device is None and cuda_plugin.find() is not None:
        updates, device = placed(checked_updates(updates))
        stays = result_device == "updates" and device == "cuda"
    elif result_device == "updates" and device == "cuda":
        updates, place = placed(checked_updates(updates))
        stays = place == "cuda"
    given: dict[str, Any] = {
        "threads": threads,
        "memory_limit": memory_limit,
        "device": device,
        "noise_key": noise_key,
        "release_id": release_id,
    }
    if isinstance(updates, (list, Mapping)) and device != "cuda":  # which can be read twice
        # A first merge takes values of any kind, for a finite sum proves that they were finite, and keys that seem to
        # be in order, which it checks itself. If a sum is not finite or keys are not in order, a second merge looks at
        # everything beforehand, and names the first thing that is bad.
        summed, unscanned = left_to_sums(spec)
        if summed:
            aggregator = Aggregator(unscanned, **given)
            aggregator._add_all(updates, are_all=True, leaves_keys=True)
            aggregator.spec = spec
            result = aggregator._finish(summed)
            if result is not None:
                return result
    aggregator = Aggregator(spec, **given)
    aggregator._add_all(updates, are_all=True)
    return aggregator.finish_on_device() if stays else aggregator.finish()


def left_to_sums(spec: RoundSpec) -> tuple[list[int], RoundSpec]:
    """Returns which tensors' results show whether all of their terms were finite, and a spec that leaves that to them.

    Sums do, since no finite one has an infinite term, or one that is no number.
    Rows that ``min_contributors`` drops, or a cut of the result, would hide theirs, and a ``fill`` may not be finite
    itself.
    """

    def tells(tensor: TensorSpec) -> bool:
        how = spec.aggregation_of(tensor)
        is_sum = how.op in ("sum", "mean", "coordinate_mean")
        is_whole = how.min_contributors in (0, 1) and not (how.fill or how.result_top_k or how.result_min_norm)
        is_checked = how.on_nonfinite == "reject" and not spec.clips(tensor)  # norms need finite values
        return "float" in tensor.dtype and is_sum and is_whole and is_checked

    telling = [index for index, tensor in enumerate(checked_spec(spec).tensors) if tells(tensor)]
    if len(telling) == len(spec.tensors) and not any(tensor.on_nonfinite for tensor in spec.tensors):
        return telling, spec.with_options(on_nonfinite="propagate")
    tensors = list(spec.tensors)
    for index in telling:
        tensors[index] = tensors[index].with_options(on_nonfinite="propagate")
    return telling, spec.with_options(tensors=tuple(tensors))
