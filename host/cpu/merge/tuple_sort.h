// Sort of one block's tuples by key, whatever the width of its range of keys.
#ifndef SPARSEAGG_HOST_CPU_MERGE_TUPLE_SORT_H_
#define SPARSEAGG_HOST_CPU_MERGE_TUPLE_SORT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "host/base/column.h"
#include "host/cpu/merge/bucket_sort.h"
#include "host/cpu/prepare/radix_sort.h"

namespace sparseagg::cpu {

// Sorted tuples of one block, one word each: a number of the key in the upper half, and 32 bits of payload. The number
// is the offset from the block's first key if all offsets have 32 bits, else the key's rank among the block's keys.
//
// In the second case the words hold the leading bits of the offset and the order of collection while they are sorted.
// Neighbours that agree in these bits are rare, unless keys crowd; whole offsets decide between them.
//
//   sort.Sort(first, last, n, ascending, [&](auto put) { … put(offset, payload) … });  // n times
//   for (TupleWord word : sort.words()) Use(sort.KeyOf(word), word.payload());
//
// Owned by one thread of a merge; one object serves all its blocks. Not thread-safe.
template <typename Key>
class TupleSort {
 public:
  // Sorts the tuples of the block from `first` to `last` stably; see BucketSort::Finish for the one exception, which
  // `ascending` (payloads are put in ascending order) rules out. Calls `collect` once.
  template <typename Collect>
  void Sort(Key first, Key last, uint64_t tuples, bool ascending, Collect collect) {
    const uint64_t max_offset = static_cast<uint64_t>(last) - first;
    const int bits = std::bit_width(max_offset);
    first_ = first;
    is_ranked_ = sizeof(Key) > sizeof(uint32_t) && bits > 32;
    if (!is_ranked_) return SortWords(max_offset, tuples, ascending, collect);
    const int cut = bits - kPrefixBits;
    offsets_.resize(tuples);
    payloads_.resize(tuples);
    uint64_t* const offsets = offsets_.data();
    uint32_t* const payloads = payloads_.data();
    SortWords(max_offset >> cut, tuples, /*ascending=*/true, [&](auto put) {
      uint32_t index = 0;
      collect([&](uint64_t offset, uint32_t payload) {
        offsets[index] = offset;
        payloads[index] = payload;
        put(offset >> cut, index++);
      });
    });
    if (tuples == 0 || Rank()) return;
    const auto offset_of = [offsets](TupleWord word) { return offsets[word.payload()]; };
    if (!internal::SortByInsertion(words_, tuples / 8, offset_of)) StableSortByKey(words_, scratch_, bits, offset_of);
    Rank();
  }

  const Column<TupleWord>& words() const { return words_; }
  Key KeyOf(TupleWord word) const {
    return is_ranked_ ? keys_[word.offset()] : static_cast<Key>(first_ + word.offset());
  }
  // Returns: the distinct keys, in order, if the words hold ranks; else null.
  const Key* RankedKeys() const { return is_ranked_ ? keys_.data() : nullptr; }
  Key first() const { return first_; }

 private:
  static constexpr int kPrefixBits = 31;  // at most kMaxBucketOffset

  template <typename Collect>
  void SortWords(uint64_t max_offset, uint64_t tuples, bool ascending, Collect collect) {
    if (bucket_sort_.ShouldTry(max_offset, tuples)) {
      BucketSort::Writer writer = bucket_sort_.Begin(max_offset, tuples);
      collect([&writer](uint64_t offset, uint32_t payload) { writer.Put(offset, payload); });
      return bucket_sort_.Finish(ascending, words_);
    }
    words_.resize(0);
    words_.resize(tuples);
    TupleWord* out = words_.data();
    collect([&out](uint64_t offset, uint32_t payload) { *out++ = TupleWord::Make(offset, payload); });
    StableSortByKey(words_, scratch_, std::bit_width(max_offset), [](TupleWord word) { return word.offset(); });
  }

  // Makes words of ranks and payloads, and the keys.
  // Returns: false if the words are not in order of the whole offsets; they are unchanged then.
  bool Rank() {
    const size_t n = words_.size();
    scratch_.resize(n);
    keys_.resize(n);
    uint64_t rank = 0;
    uint64_t before = offsets_[words_[0].payload()];
    bool ascends = true;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t index = words_[i].payload();
      const uint64_t offset = offsets_[index];
      ascends &= before <= offset;
      rank += before != offset ? 1 : 0;
      keys_[rank] = static_cast<Key>(first_ + offset);
      scratch_[i] = TupleWord::Make(rank, payloads_[index]);
      before = offset;
    }
    if (ascends) std::swap(words_, scratch_);
    return ascends;
  }

  BucketSort bucket_sort_;
  // The current block.
  Key first_ = 0;
  bool is_ranked_ = false;
  Column<TupleWord> words_;
  Column<TupleWord> scratch_;
  // If the words hold ranks: in the order of collection, and of ranks.
  Column<uint64_t> offsets_;
  Column<uint32_t> payloads_;
  Column<Key> keys_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_TUPLE_SORT_H_
