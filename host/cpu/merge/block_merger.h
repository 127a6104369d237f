// Folds the tuples of all updates, block of keys by block of keys.
#ifndef SPARSEAGG_HOST_CPU_MERGE_BLOCK_MERGER_H_
#define SPARSEAGG_HOST_CPU_MERGE_BLOCK_MERGER_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "host/base/status_macros.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/combine_rows.h"
#include "host/cpu/merge/merge_input.h"
#include "host/cpu/merge/sort_fold.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/merge/table_fold.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/folded_rows.h"

namespace sparseagg::cpu {

// A part of a block: keys from first to last.
template <typename Key>
struct KeyRange {
  Key first = 0;
  Key last = 0;
  bool is_last = true;  // of its block
};

// One cursor a source walks its keys in ascending order, block by block. A block is swept or gathered, as it was
// planned; both do the same arithmetic in the same order at every key. Used by one thread.
template <typename Key, typename Fold>
class BlockMerger {
 public:
  using Rows = FoldedRows<Key, typename Fold::Acc>;

  explicit BlockMerger(const MergeInput<Key, Fold>& input)
      : input_(input), sources_(input), table_fold_(input, sources_), sort_fold_(input, sources_) {}

  // Folds the keys of one block, in one or more ascending pieces without gaps between, which go to the sink:
  //   Take(rows, range) takes them before they are finished, and may change them;
  //   TakesDirect() tells whether it would rather give Room(n, range), a DirectOutput for n finished rows or an error;
  //   Written(range) tells that they are there;
  //   a sink with kAtKeys may also have them slot by slot (Slots, NumSlots) where it TakesSlots().
  // FAILED_PRECONDITION: KeysChanged.
  // Blocks are merged in ascending order; some may be left out.
  template <typename RowSink>
  absl::Status MergeBlock(const Block<Key>& block, RowSink& sink) {
    // Other threads' blocks may lie between.
    if (block.first > next_key_) sources_.SkipTo(block.first);
    next_key_ = static_cast<Key>(block.last + 1);
    const uint64_t span_minus_one = static_cast<uint64_t>(block.last) - block.first;
    if (block.method == Method::kSort) {
      ASSIGN_OR_RETURN(const uint64_t tuples, sort_fold_.Collect(block));
      RETURN_IF_ERROR(Count(tuples));
      return Gather({block.first, block.last, true}, sink);
    }
    const uint64_t window = block.window_keys;
    for (uint64_t offset = 0;; offset += window) {
      const bool is_last = span_minus_one - offset < window;
      const uint64_t span = is_last ? span_minus_one - offset + 1 : window;
      const auto first = static_cast<Key>(block.first + offset);
      RETURN_IF_ERROR(Sweep({first, static_cast<Key>(first + (span - 1)), is_last}, span, sink));
      if (is_last) return absl::OkStatus();
    }
  }

  // The tuples of updates in all blocks so far.
  uint64_t tuples() const { return tuples_; }

 private:
  absl::Status Count(uint64_t tuples) {
    if (tuples == kOutOfOrder) return KeysChanged(*input_.spec);
    tuples_ += tuples;
    return absl::OkStatus();
  }

  template <typename RowSink>
  absl::Status Sweep(const KeyRange<Key>& range, uint64_t span, RowSink& sink) {
    RETURN_IF_ERROR(Count(table_fold_.Add(range.first, span)));
    if constexpr (RowSink::kAtKeys) {
      if (sink.TakesSlots() && table_fold_.HasEqualSlots()) {
        table_fold_.SpreadTo(sink.Slots(range), sink.NumSlots(range));
        return absl::OkStatus();
      }
    }
    if (sink.TakesDirect() && table_fold_.IsWordTable()) return WriteDirect(table_fold_, range, sink);
    table_fold_.MoveTo(rows_);
    return sink.Take(rows_, range);
  }

  // What was merged before is sorted already, and joins what has been collected only when that is folded; unless it has
  // to come first, and was collected, too.
  template <typename RowSink>
  absl::Status Gather(const KeyRange<Key>& range, RowSink& sink) {
    Cursor<Key>& base = sources_.base;
    const bool has_base = base.Advance(range.last) > 0;  // none is left where it was collected
    if (!has_base && sink.TakesDirect() && sort_fold_.IsDirect()) return WriteDirect(sort_fold_, range, sink);
    sort_fold_.FoldInto(rows_);
    if constexpr (Fold::kAnyOrder) {
      if (has_base) {
        CombineRows<Fold, Rows>({*input_.base, base.position, base.stop}, {rows_, 0, rows_.size()}, input_.shape,
                                combined_);
        base.position = base.stop;
        return sink.Take(combined_, range);
      }
    }
    return sink.Take(rows_, range);
  }

  template <typename Folder, typename RowSink>
  static absl::Status WriteDirect(Folder& folder, const KeyRange<Key>& range, RowSink& sink) {
    const size_t rows = folder.CountRows();
    ASSIGN_OR_RETURN(const DirectOutput<Key> output, sink.Room(rows, range));
    folder.WriteTo(output, rows);
    sink.Written(range);
    return absl::OkStatus();
  }

  const MergeInput<Key, Fold>& input_;
  Key next_key_ = 0;  // the cursors stand before it
  uint64_t tuples_ = 0;
  Sources<Key, Fold> sources_;
  TableFold<Key, Fold> table_fold_;
  SortFold<Key, Fold> sort_fold_;
  Rows rows_;
  Rows combined_;  // with those merged before
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_BLOCK_MERGER_H_
