// Cuts a round into ranges of keys for several devices, and joins their results.
#ifndef SPARSEAGG_CUDA_MERGE_KEY_PARTS_H_
#define SPARSEAGG_CUDA_MERGE_KEY_PARTS_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "cuda/merge/batch.h"
#include "cuda/merge/finisher.h"
#include "cuda/merge/slab_plan.h"
#include "cuda/merge/tensor_shape.h"
#include "cuda/tuning.h"
#include "host/base/host_threads.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// Returns: up to `max_parts` ranges of keys, with about as many tuples each, and at least Tuning::slab_bytes. Nothing
// if there would be one, or keys do not strictly ascend, or are in device memory.
std::optional<SlabPlan> PlanParts(HostThreads& threads, const TensorShape& shape,
                                  const std::vector<const ValidatedUpdate*>& updates, size_t max_parts,
                                  const Tuning& tuning);

// Returns: the ranges as updates, which borrow their keys and values. Requires: unique keys in host memory.
std::vector<ValidatedUpdate> SlicesOf(const TensorShape& shape, const std::vector<UpdateRange>& ranges);

// Joins the sparse results of ranges of keys, which are in ascending order, and lays them out as the spec says. The
// failure of the first one that has failed is that of the whole.
Finished JoinParts(const TensorSpec& spec, std::vector<Finished> parts);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_KEY_PARTS_H_
