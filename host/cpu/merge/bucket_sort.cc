#include "host/cpu/merge/bucket_sort.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "host/base/column.h"
#include "host/cpu/prepare/radix_sort.h"
#include "host/cpu/simd/kernels.h"
#include "host/cpu/tuning.h"

namespace sparseagg::cpu {
namespace {

// Fewer tuples are sorted faster by comparison. With more, the cells do not fit the L2 cache.
constexpr uint64_t kMinTuples = kTiny ? 8 : 512;
constexpr uint64_t kMaxTuples = uint64_t{1} << 16;
// Tuples a bucket gets on average. With uniform keys, one bucket in 1000 then gets more than its 16 cells hold.
constexpr uint64_t kMeanTuples = 7;
// With fewer keys per tuple, too many keys come three times or more, which the networks cannot sort stably.
constexpr uint64_t kMinKeysPerTuple = 4;

// Returns: the word of cell 0 of `bucket`, see simd/kernels.h.
size_t FirstCell(size_t bucket) { return bucket / kGroupBuckets * kGroupCells + bucket % kGroupBuckets; }

}  // namespace

bool BucketSort::ShouldTry(uint64_t max_offset, uint64_t tuples) {
  if (tuples < kMinTuples || tuples > kMaxTuples) return false;
  if (max_offset > kMaxBucketOffset || max_offset < kMinKeysPerTuple * tuples || !HasBucketKernel()) return false;
  if (blocks_to_skip_ == 0) return true;
  --blocks_to_skip_;
  return false;
}

BucketSort::Writer BucketSort::Begin(uint64_t max_offset, uint64_t tuples) {
  max_offset_ = max_offset;
  tuples_ = tuples;
  num_groups_ = tuples / kMeanTuples / kGroupBuckets + 1;
  const size_t num_buckets = num_groups_ * kGroupBuckets;
  factor_ = (uint64_t{num_buckets} << 32) / (max_offset + 1);  // rounded down, so that max_offset is in the last bucket
  if (const size_t had = cells_.size(); had < num_groups_ * kGroupCells) {
    cells_.resize(num_groups_ * kGroupCells);
    for (size_t i = had; i < cells_.size(); ++i) cells_[i] = FreeCell(i % kGroupCells / kGroupBuckets);
  }
  next_.resize(num_buckets);
  for (size_t b = 0; b < num_buckets; ++b) next_[b] = static_cast<uint32_t>(FirstCell(b));
  overflow_.clear();
  Writer writer;
  writer.factor_ = factor_;
  writer.next_ = next_.data();
  writer.cells_ = cells_.data();
  writer.sort_ = this;
  return writer;
}

void BucketSort::PutOverflow(size_t bucket, TupleWord word) {
  next_[bucket] |= kOverflowed;
  overflow_.push_back(word);
}

void BucketSort::MoveGroupTo(size_t group, Column<TupleWord>& out) {
  for (size_t b = group * kGroupBuckets; b < (group + 1) * kGroupBuckets; ++b) {
    const size_t end = next_[b] & ~kOverflowed;
    for (size_t i = FirstCell(b), s = 0; i < end; i += kGroupBuckets, ++s) {
      out.push_back({cells_[i]});
      cells_[i] = FreeCell(s);
    }
  }
}

void BucketSort::SortGroupByInsertion(size_t group, size_t& overflow, Column<TupleWord>& out) {
  const size_t begin = out.size();
  MoveGroupTo(group, out);
  // A bucket's overflow came after the tuples in its cells; appended behind them, equal offsets stay in order.
  while (overflow < overflow_.size() && Bucket(overflow_[overflow]) / kGroupBuckets == group) {
    out.push_back(overflow_[overflow++]);
  }
  for (size_t i = begin + 1; i < out.size(); ++i) {
    const TupleWord word = out[i];
    size_t to = i;
    for (; to > begin && out[to - 1].offset() > word.offset(); --to) out[to] = out[to - 1];
    out[to] = word;
  }
}

void BucketSort::Finish(bool ascending, Column<TupleWord>& out) {
  static_assert(sizeof(TupleWord) == sizeof(uint64_t));
  const int offset_bits = std::bit_width(max_offset_);
  const auto offset_of = [](TupleWord word) { return word.offset(); };
  out.resize(0);
  out.reserve(tuples_ + kBucketCells);
  size_t group = 0;
  size_t overflow = 0;
  if (overflow_.size() <= tuples_ / 64) {
    StableSortByKey(overflow_, scratch_, offset_bits, offset_of);
    const BucketGroups groups{cells_.data(), next_.data(), ascending};
    // Insertion takes about five times as long as the networks. Give up if many groups need it.
    for (size_t slow = 0; slow <= num_groups_ / 8; ++slow) {
      size_t written = out.size();
      group = SortGroups(groups, group, num_groups_, reinterpret_cast<uint64_t*>(out.data()), written);
      out.resize(written);
      if (group == num_groups_) {
        backoff_blocks_ = 0;
        return;
      }
      SortGroupByInsertion(group++, overflow, out);
    }
  }
  // The cells did not suit these tuples: radix sort. The next blocks are not attempted.
  for (; group < num_groups_; ++group) MoveGroupTo(group, out);
  out.Append(overflow_.data() + overflow, overflow_.size() - overflow);
  StableSortByKey(out, scratch_, offset_bits, offset_of);
  backoff_blocks_ = std::min<uint64_t>(2 * backoff_blocks_ + 1, 63);
  blocks_to_skip_ = backoff_blocks_;
}

}  // namespace sparseagg::cpu
