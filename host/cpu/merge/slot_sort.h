// Sorts a block's tuples as they are collected, where their keys are spread about evenly.
#ifndef SPARSEAGG_HOST_CPU_MERGE_SLOT_SORT_H_
#define SPARSEAGG_HOST_CPU_MERGE_SLOT_SORT_H_

#include <cstddef>
#include <cstdint>

#include "host/base/column.h"
#include "host/cpu/simd/slot_kernels.h"

namespace sparseagg::cpu {

// A key's offset from its block's first key, below 2^32, and what it carries, in one word.
struct TupleWord {
  static TupleWord Make(uint64_t offset, uint32_t carried) { return {offset << 32 | carried}; }
  uint64_t offset() const { return word >> 32; }
  uint32_t carried() const { return static_cast<uint32_t>(word); }
  uint64_t word;
};

// The offsets are divided evenly among buckets of slots (slot_kernels.h), each word goes to the next free slot of its
// bucket, and all buckets are sorted by networks. Buckets have about twice the room they need, so that nothing has to
// be counted beforehand and few spill. Collecting and sorting then takes three quarters of what it takes with a radix
// sort. Offsets that are not so spread, or that come often, cost the try and then a radix sort, and after that fewer
// tries. Used by one thread.
class SlotSort {
 public:
  // Puts words into slots; to be kept in a local variable, so that the compiler may keep its fields in registers.
  class Writer {
   public:
    void Put(uint64_t offset, uint32_t carried) {
      const size_t bucket = (offset * factor_) >> 32;
      const uint32_t at = next_[bucket];
      const TupleWord word = TupleWord::Make(offset, carried);
      if (at / kGroupSlots != bucket / kGroupBuckets) [[unlikely]] {  // full, or marked as spilled
        sort_->Spill(bucket, word);
        return;
      }
      slots_[at] = word.word;
      next_[bucket] = at + kGroupBuckets;
    }

   private:
    friend class SlotSort;
    uint64_t factor_;
    uint32_t* next_;
    uint64_t* slots_;
    SlotSort* sort_;
  };

  // Whether to sort `tuples` tuples with offsets up to `max_offset` in this way.
  bool Wants(uint64_t max_offset, uint64_t tuples);
  // Begins to, after Wants().
  Writer Begin(uint64_t max_offset, uint64_t tuples);
  // Takes what has been put since, as many words, and sorts it by offset. Words of equal offsets keep their order
  // where there are more than two, or where what they carry ascends (`ascending`). Two others may change places, which
  // no fold tells from the result: each starts from its neutral element, and its first step commutes.
  void Finish(bool ascending, Column<TupleWord>& out);

 private:
  [[gnu::noinline]] void Spill(size_t bucket, TupleWord word);
  size_t Bucket(TupleWord word) const { return (word.offset() * factor_) >> 32; }
  // Sorts `group` and appends it to out, word by word. `spill` is the first of spills_ that is not out yet.
  void SortSlowly(size_t group, size_t& spill, Column<TupleWord>& out);
  // Moves all words of `group` to the end of `out`.
  void Empty(size_t group, Column<TupleWord>& out);

  uint64_t max_offset_ = 0;  // as begun with
  uint64_t tuples_ = 0;
  size_t num_groups_ = 0;
  uint64_t factor_ = 0;       // (offset · factor) >> 32 is the bucket
  Column<uint64_t> slots_;    // all free between Finish and Begin
  Column<uint32_t> next_;     // as of SlotGroups
  Column<TupleWord> spills_;  // what found its bucket full, in the order it came
  Column<TupleWord> scratch_;
  uint64_t pause_ = 0;  // blocks that are not tried once this one has failed: doubled by each failure
  uint64_t skips_ = 0;  // of them, those still to come
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_SLOT_SORT_H_
