// Merge of blocks of keys by one thread.
#ifndef SPARSEAGG_HOST_CPU_MERGE_BLOCK_MERGER_H_
#define SPARSEAGG_HOST_CPU_MERGE_BLOCK_MERGER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "host/base/status_macros.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/combine_rows.h"
#include "host/cpu/merge/sort_fold.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/merge/table_fold.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/folded_rows.h"

namespace sparseagg::cpu {

// A part of a block: the keys from `first` to `last`.
template <typename Key>
struct KeyRange {
  Key first = 0;
  Key last = 0;
  bool is_last = true;  // the last range of its block
};

// Merger of blocks, owned by one thread of a merge. It folds each block by the planned method, table fold or sort fold;
// both do the same arithmetic in the same order at every key, so the result does not show which one ran. Call
// MergeBlock for blocks in ascending order; other threads may merge the blocks between. Unusable after an error;
// discard it. Not thread-safe.
template <typename Key, typename Fold>
class BlockMerger {
 public:
  using Rows = FoldedRows<Key, Fold>;

  BlockMerger(const MergeInput<Key, Fold>& input, const Blocks<Key>& blocks)
      : input_(input),
        blocks_(blocks.blocks),
        sources_(input),
        table_fold_(input, sources_),
        sort_fold_(input, sources_) {}

  // Folds block `index`, in one or more ascending key ranges without gaps, and gives the rows of each range to the row
  // sink. A row sink has these members:
  //   WriteRows(rows, range)      takes unfinished rows, which it may change
  //   AcceptsDirectOutput()       whether this merger may finish and write rows itself; it then calls, for each range,
  //     OutputFor(n, range)         for a DirectOutput with place for n rows, or an error; and when they are written
  //     OutputWritten(range)
  //   kPlacesRowsByKey            whether the place of a row depends on its key alone; if so, also
  //     AcceptsAllSlots()           whether untouched keys may be written as rows, too, to
  //     SlotOutput(range)           for the first NumSlots(range) keys of the range
  // Errors: those of the sink; RESOURCE_EXHAUSTED.
  template <typename RowSink>
  absl::Status MergeBlock(size_t index, RowSink& sink) {
    const Block<Key>& block = blocks_[index];
    // Other threads merge the blocks between.
    if (block.first > next_key_) sources_.SkipTo(block.first);
    next_key_ = static_cast<Key>(block.last + 1);
    const uint64_t span_minus_one = static_cast<uint64_t>(block.last) - block.first;
    if (block.method == Method::kSort) {
      RETURN_IF_ERROR(sort_fold_.Collect(block));
      return WriteSorted({block.first, block.last, true}, sink);
    }
    const uint64_t window = block.window_keys;
    for (uint64_t offset = 0;; offset += window) {
      const bool is_last = span_minus_one - offset < window;
      const uint64_t span = is_last ? span_minus_one - offset + 1 : window;
      const auto first = static_cast<Key>(block.first + offset);
      RETURN_IF_ERROR(MergeWindow({first, static_cast<Key>(first + (span - 1)), is_last}, span, sink));
      if (is_last) return absl::OkStatus();
    }
  }

 private:
  // Folds one window of `span` keys with the table.
  template <typename RowSink>
  absl::Status MergeWindow(const KeyRange<Key>& range, uint64_t span, RowSink& sink) {
    table_fold_.Add(range.first, span);
    if constexpr (RowSink::kPlacesRowsByKey) {
      if (sink.AcceptsAllSlots() && table_fold_.CanWriteAllSlots()) {
        table_fold_.WriteAllSlotsTo(sink.SlotOutput(range), sink.NumSlots(range));
        return absl::OkStatus();
      }
    }
    if (sink.AcceptsDirectOutput() && table_fold_.IsWordTable()) return WriteDirect(table_fold_, range, sink);
    table_fold_.MoveTo(rows_);
    return sink.WriteRows(rows_, range);
  }

  // Folds the tuples that the sort fold has collected. The base's rows are sorted already: they are combined with the
  // folded rows, unless the sort fold has collected them, too.
  template <typename RowSink>
  absl::Status WriteSorted(const KeyRange<Key>& range, RowSink& sink) {
    Cursor<Key>& base = sources_.base;
    const bool has_base = base.Advance(range.last) > 0;  // false if the sort fold has collected the base's rows
    if (!has_base && sink.AcceptsDirectOutput() && sort_fold_.IsDirect()) return WriteDirect(sort_fold_, range, sink);
    sort_fold_.FoldInto(rows_);
    if constexpr (Fold::kAnyOrder) {
      if (has_base) {
        CombineRows<Fold, Rows>({*input_.base, base.position, base.stop}, {rows_, 0, rows_.size()}, input_.shape,
                                combined_);
        base.position = base.stop;
        return sink.WriteRows(combined_, range);
      }
    }
    return sink.WriteRows(rows_, range);
  }

  // Lets a fold write its rows to the sink's direct output.
  template <typename Folder, typename RowSink>
  static absl::Status WriteDirect(Folder& folder, const KeyRange<Key>& range, RowSink& sink) {
    const size_t rows = folder.CountRows();
    ASSIGN_OR_RETURN(const DirectOutput<Key> output, sink.OutputFor(rows, range));
    folder.WriteTo(output, rows);
    sink.OutputWritten(range);
    return absl::OkStatus();
  }

  const MergeInput<Key, Fold>& input_;
  const std::vector<Block<Key>>& blocks_;
  Key next_key_ = 0;  // the cursors stand at their first key from here on
  Sources<Key, Fold> sources_;
  TableFold<Key, Fold> table_fold_;
  SortFold<Key, Fold> sort_fold_;
  Rows rows_;
  Rows combined_;  // rows_ combined with the base's rows
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_BLOCK_MERGER_H_
