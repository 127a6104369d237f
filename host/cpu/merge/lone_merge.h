// Merge of a single update whose rows are not folded yet.
#ifndef SPARSEAGG_HOST_CPU_MERGE_LONE_MERGE_H_
#define SPARSEAGG_HOST_CPU_MERGE_LONE_MERGE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "host/base/status_macros.h"
#include "host/cpu/merge/block_merger.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/cpu/prepare/repeat_fold.h"
#include "host/cpu/prepare/sorted_tuples.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/tuning.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Merger of the blocks of one update alone, owned by one thread of a merge. Rows go from the update to the result,
// without a folded copy of the update between. Blocks are ranges of the update's sorted tuples, cut between keys.
// Unusable after an error; discard it. Not thread-safe.
template <typename Key>
class LoneMerger {
 public:
  using Rows = FoldedRows<Key, SumFloat>;

  // Returns: the number of blocks.
  static size_t NumBlocks(const TensorSpec& spec, const CpuUpdate& update) {
    const size_t step = StepOf(spec);
    return (Tuples(update).size() + step - 1) / step;
  }

  // Requires: update.unfolded is not null.
  LoneMerger(const TensorSpec& spec, const RowShape& shape, const CpuUpdate& update)
      : shape_(shape),
        tuples_(Tuples(update)),
        step_(StepOf(spec)),
        fold_(tuples_, {update.values, tuples_.size() * spec.row_width, {}, update.dtype},
              {update.factor, update.weight}) {}

  // The same as BlockMerger::MergeBlock.
  template <typename RowSink>
  absl::Status MergeBlock(size_t block, RowSink& sink) {
    fold_.Collect(tuples_.NextKey(block * step_), tuples_.NextKey((block + 1) * step_));
    const KeyRange<Key> range;  // the last of its block
    if (sink.AcceptsDirectOutput()) {
      ASSIGN_OR_RETURN(const DirectOutput<Key> output, sink.OutputFor(fold_.num_keys(), range));
      fold_.WriteTo(output);
      sink.OutputWritten(range);
      return absl::OkStatus();
    }
    rows_.resize(0, shape_);
    rows_.resize(fold_.num_keys(), shape_);
    fold_.WriteTo(UnfinishedOutput(shape_, rows_));
    return sink.WriteRows(rows_, range);
  }

 private:
  static const SortedTuples<Key>& Tuples(const CpuUpdate& update) {
    return *static_cast<const SortedTuples<Key>*>(update.unfolded);
  }
  static size_t StepOf(const TensorSpec& spec) {
    return std::max<size_t>(1, CurrentTuning().block_values / spec.row_width);
  }

  const RowShape shape_;
  const SortedTuples<Key>& tuples_;
  const size_t step_;  // tuples of a block, but for the cut
  RepeatFold<Key> fold_;
  Rows rows_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_LONE_MERGE_H_
