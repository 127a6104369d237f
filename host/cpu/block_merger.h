// Folds the tuples of all updates, block of keys by block of keys.
#ifndef SPARSEAGG_HOST_CPU_BLOCK_MERGER_H_
#define SPARSEAGG_HOST_CPU_BLOCK_MERGER_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "host/cpu/blocks.h"
#include "host/cpu/combine_rows.h"
#include "host/cpu/folded_rows.h"
#include "host/cpu/gatherer.h"
#include "host/cpu/merge_input.h"
#include "host/cpu/plain_output.h"
#include "host/cpu/sources.h"
#include "host/cpu/sweeper.h"
#include "host/status_macros.h"

namespace sparseagg::cpu {

// A part of a block: keys from first to last.
template <typename Key>
struct Piece {
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
      : input_(input), sources_(input), sweeper_(input, sources_), gatherer_(input, sources_) {}

  // Folds the keys of one block, in one or more ascending pieces without gaps between, which go to the taker:
  //   Take(rows, piece) takes them before they are finished, and may change them;
  //   TakesPlain() tells whether it would rather give Room(n, piece), a PlainOutput for n finished rows or an error;
  //   Written(piece) tells that they are there;
  //   a taker with kAtKeys may also have them slot by slot (Slots, NumSlots) where it TakesSlots().
  // FAILED_PRECONDITION: KeysChanged.
  // Blocks are merged in ascending order; some may be left out.
  template <typename Taker>
  absl::Status MergeBlock(const Block<Key>& block, Taker& taker) {
    // Other threads' blocks may lie between.
    if (block.first > next_key_) sources_.SkipTo(block.first);
    next_key_ = static_cast<Key>(block.last + 1);
    const uint64_t span_minus_one = static_cast<uint64_t>(block.last) - block.first;
    if (block.method == Method::kGather) {
      ASSIGN_OR_RETURN(const uint64_t tuples, gatherer_.Collect(block));
      RETURN_IF_ERROR(Count(tuples));
      return Gather({block.first, block.last, true}, taker);
    }
    const uint64_t window = block.window_keys;
    for (uint64_t offset = 0;; offset += window) {
      const bool is_last = span_minus_one - offset < window;
      const uint64_t span = is_last ? span_minus_one - offset + 1 : window;
      const auto first = static_cast<Key>(block.first + offset);
      RETURN_IF_ERROR(Sweep({first, static_cast<Key>(first + (span - 1)), is_last}, span, taker));
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

  template <typename Taker>
  absl::Status Sweep(const Piece<Key>& piece, uint64_t span, Taker& taker) {
    RETURN_IF_ERROR(Count(sweeper_.Add(piece.first, span)));
    if constexpr (Taker::kAtKeys) {
      if (taker.TakesSlots() && sweeper_.HasEqualSlots()) {
        sweeper_.SpreadTo(taker.Slots(piece), taker.NumSlots(piece));
        return absl::OkStatus();
      }
    }
    if (taker.TakesPlain() && sweeper_.IsWordTable()) return WritePlain(sweeper_, piece, taker);
    sweeper_.MoveTo(rows_);
    return taker.Take(rows_, piece);
  }

  // What was merged before is sorted already, and joins what has been collected only when that is folded; unless it has
  // to come first, and was collected, too.
  template <typename Taker>
  absl::Status Gather(const Piece<Key>& piece, Taker& taker) {
    Cursor<Key>& base = sources_.base;
    const bool has_base = base.Advance(piece.last) > 0;  // none is left where it was collected
    if (!has_base && taker.TakesPlain() && gatherer_.IsPlain()) return WritePlain(gatherer_, piece, taker);
    gatherer_.FoldInto(rows_);
    if constexpr (Fold::kAnyOrder) {
      if (has_base) {
        CombineRows<Fold, Rows>({*input_.base, base.position, base.stop}, {rows_, 0, rows_.size()}, input_.shape,
                                combined_);
        base.position = base.stop;
        return taker.Take(combined_, piece);
      }
    }
    return taker.Take(rows_, piece);
  }

  template <typename Folder, typename Taker>
  static absl::Status WritePlain(Folder& folder, const Piece<Key>& piece, Taker& taker) {
    const size_t rows = folder.CountRows();
    ASSIGN_OR_RETURN(const PlainOutput<Key> output, taker.Room(rows, piece));
    folder.WriteTo(output, rows);
    taker.Written(piece);
    return absl::OkStatus();
  }

  const MergeInput<Key, Fold>& input_;
  Key next_key_ = 0;  // the cursors stand before it
  uint64_t tuples_ = 0;
  Sources<Key, Fold> sources_;
  Sweeper<Key, Fold> sweeper_;
  Gatherer<Key, Fold> gatherer_;
  Rows rows_;
  Rows combined_;  // with those merged before
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_BLOCK_MERGER_H_
