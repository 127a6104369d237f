#include "host/cpu/merge/slot_sort.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "host/base/column.h"
#include "host/cpu/prepare/radix_sort.h"
#include "host/cpu/simd/slot_kernels.h"
#include "host/cpu/tuning.h"

namespace sparseagg::cpu {
namespace {

// Fewer are sorted by comparing; with more the slots leave the L2 cache.
constexpr uint64_t kMinTuples = kTiny ? 8 : 512;
constexpr uint64_t kMaxTuples = uint64_t{1} << 16;
// Tuples a bucket should get. Of evenly spread ones, it then gets more than it has slots for once in 1000 times.
constexpr uint64_t kMeanTuples = 7;
// With fewer keys for each tuple, three of a key are too many.
constexpr uint64_t kMinKeysPerTuple = 4;

size_t FirstSlot(size_t bucket) { return bucket / kGroupBuckets * kGroupSlots + bucket % kGroupBuckets; }

}  // namespace

bool SlotSort::Wants(uint64_t max_offset, uint64_t tuples) {
  if (tuples < kMinTuples || tuples > kMaxTuples) return false;
  if (max_offset > kMaxSlotOffset || max_offset < kMinKeysPerTuple * tuples || !HasSlotKernel()) return false;
  if (skips_ == 0) return true;
  --skips_;
  return false;
}

SlotSort::Writer SlotSort::Begin(uint64_t max_offset, uint64_t tuples) {
  max_offset_ = max_offset;
  tuples_ = tuples;
  num_groups_ = tuples / kMeanTuples / kGroupBuckets + 1;
  const size_t num_buckets = num_groups_ * kGroupBuckets;
  factor_ = (uint64_t{num_buckets} << 32) / (max_offset + 1);  // rounded down: the last offset has a bucket too
  if (const size_t had = slots_.size(); had < num_groups_ * kGroupSlots) {
    slots_.resize(num_groups_ * kGroupSlots);
    for (size_t i = had; i < slots_.size(); ++i) slots_[i] = FreeSlot(i % kGroupSlots / kGroupBuckets);
  }
  next_.resize(num_buckets);
  for (size_t b = 0; b < num_buckets; ++b) next_[b] = static_cast<uint32_t>(FirstSlot(b));
  spills_.clear();
  Writer writer;
  writer.factor_ = factor_;
  writer.next_ = next_.data();
  writer.slots_ = slots_.data();
  writer.sort_ = this;
  return writer;
}

void SlotSort::Spill(size_t bucket, TupleWord word) {
  next_[bucket] |= kSpilled;
  spills_.push_back(word);
}

void SlotSort::Empty(size_t group, Column<TupleWord>& out) {
  for (size_t b = group * kGroupBuckets; b < (group + 1) * kGroupBuckets; ++b) {
    const size_t end = next_[b] & ~kSpilled;
    for (size_t i = FirstSlot(b), s = 0; i < end; i += kGroupBuckets, ++s) {
      out.push_back({slots_[i]});
      slots_[i] = FreeSlot(s);
    }
  }
}

void SlotSort::SortSlowly(size_t group, size_t& spill, Column<TupleWord>& out) {
  const size_t begin = out.size();
  Empty(group, out);
  // Behind the words that came before them.
  while (spill < spills_.size() && Bucket(spills_[spill]) / kGroupBuckets == group) out.push_back(spills_[spill++]);
  for (size_t i = begin + 1; i < out.size(); ++i) {
    const TupleWord word = out[i];
    size_t to = i;
    for (; to > begin && out[to - 1].offset() > word.offset(); --to) out[to] = out[to - 1];
    out[to] = word;
  }
}

void SlotSort::Finish(bool ascending, Column<TupleWord>& out) {
  static_assert(sizeof(TupleWord) == sizeof(uint64_t));
  const int offset_bits = std::bit_width(max_offset_);
  const auto offset_of = [](TupleWord word) { return word.offset(); };
  out.resize(0);
  out.reserve(tuples_ + kBucketSlots);
  size_t group = 0;
  size_t spill = 0;
  if (spills_.size() <= tuples_ / 64) {
    StableSortByKey(spills_, scratch_, offset_bits, offset_of);
    const SlotGroups groups{slots_.data(), next_.data(), ascending};
    // A slow group takes some five times as long.
    for (size_t slow = 0; slow <= num_groups_ / 8; ++slow) {
      size_t written = out.size();
      group = SortGroups(groups, group, num_groups_, reinterpret_cast<uint64_t*>(out.data()), written);
      out.resize(written);
      if (group == num_groups_) {
        pause_ = 0;
        return;
      }
      SortSlowly(group++, spill, out);
    }
  }
  for (; group < num_groups_; ++group) Empty(group, out);
  out.Append(spills_.data() + spill, spills_.size() - spill);
  StableSortByKey(out, scratch_, offset_bits, offset_of);
  pause_ = std::min<uint64_t>(2 * pause_ + 1, 63);
  skips_ = pause_;
}

}  // namespace sparseagg::cpu
