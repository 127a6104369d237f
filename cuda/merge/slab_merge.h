// Merges and finishes a round slab by slab (SlabPlan), so that copies in, merges and copies out overlap.
#ifndef SPARSEAGG_CUDA_MERGE_SLAB_MERGE_H_
#define SPARSEAGG_CUDA_MERGE_SLAB_MERGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/merge/batch.h"
#include "cuda/merge/finisher.h"
#include "cuda/merge/tensor_shape.h"
#include "cuda/transfer/session.h"
#include "cuda/tuning.h"
#include "host/base/host_threads.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// A slab is a range of keys with all tuples of all updates, and all earlier rows, that have these keys. So slabs are
// merged and finished one by one, in ascending order of keys, and none depends on another. A plan borrows its input.
// Immutable. Deterministic; and no result depends on where the cuts are.
class SlabPlan {
 public:
  // Cuts all tuples into about `num_slabs` slabs of about the same size, with at most `max_entries` tuples and rows in
  // each. `halves_last`: the last slabs are halved, and the very last one once more, since nothing overlaps with the
  // last copy out. Requires: there are tuples; the keys of all updates and of `base` (null: none) strictly ascend.
  // Returns: no plan if it would have one slab, or if a single key has more entries than a slab may have.
  static std::optional<SlabPlan> Make(HostThreads& threads, const TensorShape& shape, const UnfinishedRows* base,
                                      const std::vector<const ValidatedUpdate*>& updates, uint64_t num_slabs,
                                      uint64_t max_entries, bool halves_last);

  size_t num_slabs() const { return cuts_.size(); }
  // The parts of the updates in the slab, in order of the updates, without empty ones.
  std::vector<UpdateRange> RangesOf(size_t slab) const;
  // The rows of the base, which is not null, in the slab.
  RowRange RowsOf(size_t slab) const;

 private:
  // Where a slab begins: its smallest possible key, and for each source the number of its keys below that. Sources are
  // the updates, and at last the base.
  struct Cut {
    uint64_t key = 0;
    std::vector<uint64_t> positions;
  };

  SlabPlan(const std::vector<const ValidatedUpdate*>& updates, const UnfinishedRows* base, uint32_t key_bytes);

  uint64_t KeyAt(size_t source, uint64_t index) const;
  Cut CutAt(HostThreads& threads, uint64_t key) const;
  const std::vector<uint64_t>& EndOf(size_t slab) const;
  uint64_t EntriesOf(size_t slab) const;
  // Keys that divide all tuples into about equal parts, from evenly spaced samples. Ascending, without repeats.
  std::vector<uint64_t> ChooseKeys(uint64_t num_parts, bool halves_last) const;
  // Halves the key ranges of slabs that have too many entries. Returns: false if a single key has.
  bool CutOversized(HostThreads& threads, uint64_t max_entries);

  const std::vector<const ValidatedUpdate*>& updates_;
  const UnfinishedRows* base_;
  uint32_t key_bytes_;
  std::vector<Cut> cuts_;      // the first at key 0
  std::vector<uint64_t> end_;  // all keys of each
  uint64_t num_tuples_ = 0;
  uint64_t largest_key_ = 0;
};

// While one slab is merged, the next one is copied to the device, and the previous slab's results are copied back. The
// device holds few slabs at once, so that a round of any size fits.
//
// `shrink`: as of Merger. `total_weight`: as of FinishRows. Returns: nothing if the round is not cut: keys do not
// strictly ascend, or are on the device, the result is not sparse, there are several bases, Tuning::slab_bytes is 0,
// one slab would do, or a single key has too many tuples. Errors: of the device only. Blocks: until the result is in
// host memory. Deterministic: the bits of Merger and FinishRows.
absl::StatusOr<std::optional<Finished>> MergeInSlabs(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                                     int shrink, double total_weight,
                                                     absl::Span<const UnfinishedRows> bases,
                                                     const std::vector<const ValidatedUpdate*>& updates);

// Returns: up to `max_parts` ranges of keys, with about as many tuples each, and at least Tuning::slab_bytes. Nothing
// if there would be one, or keys do not strictly ascend, or are in device memory.
std::optional<SlabPlan> PlanParts(HostThreads& threads, const TensorShape& shape,
                                  const std::vector<const ValidatedUpdate*>& updates, size_t max_parts,
                                  const Tuning& tuning);

// Returns: the ranges as updates, which borrow their keys and values. Requires: unique keys in host memory.
std::vector<ValidatedUpdate> SlicesOf(const TensorShape& shape, const std::vector<UpdateRange>& ranges);

// Joins the sparse results of ascending ranges of keys, and lays them out as the spec says. Returns the first failed
// part, if any.
Finished JoinParts(const TensorSpec& spec, std::vector<Finished> parts);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_SLAB_MERGE_H_
