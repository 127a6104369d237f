// Bucket sort of a block's tuples while they are collected, for about evenly distributed keys.
#ifndef SPARSEAGG_HOST_CPU_MERGE_BUCKET_SORT_H_
#define SPARSEAGG_HOST_CPU_MERGE_BUCKET_SORT_H_

#include <cstddef>
#include <cstdint>

#include "host/base/column.h"
#include "host/cpu/simd/kernels.h"

namespace sparseagg::cpu {

// A tuple to sort, in one word: the offset of its key from the block's first key, and 32 bits of payload (the value, or
// the index of the tuple's term or row).
struct TupleWord {
  static TupleWord Make(uint64_t offset, uint32_t payload) { return {offset << 32 | payload}; }
  uint64_t offset() const { return word >> 32; }
  uint32_t payload() const { return static_cast<uint32_t>(word); }
  uint64_t word;
};

// Sort of one block's tuples by offset. The range of offsets is divided evenly among buckets of 16 cells
// (simd/kernels.h). Each tuple goes to the next free cell of its bucket; then sorting networks sort eight
// buckets at once. Buckets have about twice the cells they need on average, so nothing is counted beforehand and few
// overflow. Collecting and sorting takes three quarters of the time of collecting and radix sort.
//
// Offsets that crowd or repeat overflow the buckets. Such a block costs the attempt and then a radix sort. After a
// failure the next 1, 3, 7, … 63 blocks are not attempted. Owned by a TupleSort; one object serves all its blocks:
//
//   if (sort.ShouldTry(max_offset, n)) {
//     BucketSort::Writer writer = sort.Begin(max_offset, n);
//     for (…) writer.Put(offset, payload);              // n times
//     sort.Finish(/*ascending=*/true, sorted);
//   }
//
// Not thread-safe.
class BucketSort {
 public:
  // Puts tuples into cells. Keep it in a local variable, so that its fields stay in registers.
  class Writer {
   public:
    void Put(uint64_t offset, uint32_t payload) {
      const size_t bucket = (offset * factor_) >> 32;
      const uint32_t at = next_[bucket];
      const TupleWord word = TupleWord::Make(offset, payload);
      // `at` has left the bucket's group: the bucket is full, or marked with kOverflowed.
      if (at / kGroupCells != bucket / kGroupBuckets) [[unlikely]] {
        sort_->PutOverflow(bucket, word);
        return;
      }
      cells_[at] = word.word;
      next_[bucket] = at + kGroupBuckets;
    }

   private:
    friend class BucketSort;
    uint64_t factor_;
    uint32_t* next_;
    uint64_t* cells_;
    BucketSort* sort_;
  };

  // Returns: whether to sort `tuples` tuples with offsets up to `max_offset` in this way. To be called once a block.
  bool ShouldTry(uint64_t max_offset, uint64_t tuples);

  // Begins the sort of one block.
  // Requires: ShouldTry() with the same arguments.
  Writer Begin(uint64_t max_offset, uint64_t tuples);

  // Moves the tuples put since Begin to `out`, sorted by offset. `ascending`: the payloads were put in ascending order.
  // Requires: as many tuples were put as Begin was told.
  //
  // Three or more tuples of equal offset keep their order; so do two if `ascending`. Otherwise two may change places.
  // The sum cannot show that: a fold starts from its neutral element, and then a + b = b + a.
  void Finish(bool ascending, Column<TupleWord>& out);

 private:
  [[gnu::noinline]] void PutOverflow(size_t bucket, TupleWord word);
  size_t Bucket(TupleWord word) const { return (word.offset() * factor_) >> 32; }
  // Appends the sorted tuples of `group`, those in overflow_ too. `overflow`: the first tuple of overflow_ that is not
  // in `out` yet.
  void SortGroupByInsertion(size_t group, size_t& overflow, Column<TupleWord>& out);
  // Moves the tuples in the cells of `group` to the end of `out`, in the order they came.
  void MoveGroupTo(size_t group, Column<TupleWord>& out);

  uint64_t max_offset_ = 0;  // of the current block
  uint64_t tuples_ = 0;
  size_t num_groups_ = 0;
  uint64_t factor_ = 0;         // (offset · factor) >> 32 is the bucket
  Column<uint64_t> cells_;      // all free between Finish and Begin
  Column<uint32_t> next_;       // of each bucket, see BucketGroups
  Column<TupleWord> overflow_;  // tuples that found their bucket full, in the order they came
  Column<TupleWord> scratch_;
  uint64_t backoff_blocks_ = 0;  // blocks not attempted after the last failure; about doubled by each failure
  uint64_t blocks_to_skip_ = 0;  // of those, the ones still to come
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_BUCKET_SORT_H_
