#include "host/cpu/simd/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/simd/bucket_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes it again for each target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

#if HWY_MAX_BYTES == 64 && !HWY_HAVE_SCALABLE
bool HasBucketKernelOf() { return true; }

namespace hn = hwy::HWY_NAMESPACE;

// One cell of each bucket of a group.
using Slots = hn::FixedTag<uint64_t, kGroupBuckets>;
using SlotVec = hn::Vec<Slots>;

// All cells of a group: v3 holds cell 3 of each of its eight buckets.
struct Columns {
  SlotVec v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15;
};

HWY_INLINE void Order(SlotVec& a, SlotVec& b) {
  const SlotVec smaller = hn::Min(a, b);
  b = hn::Max(a, b);
  a = smaller;
}

// Sorts each bucket by Green's network of 60 comparators (Knuth, The Art of Computer Programming 3, 5.3.4).
HWY_INLINE void SortColumns(Columns& c) {
  Order(c.v0, c.v1), Order(c.v2, c.v3), Order(c.v4, c.v5), Order(c.v6, c.v7);
  Order(c.v8, c.v9), Order(c.v10, c.v11), Order(c.v12, c.v13), Order(c.v14, c.v15);
  Order(c.v0, c.v2), Order(c.v1, c.v3), Order(c.v4, c.v6), Order(c.v5, c.v7);
  Order(c.v8, c.v10), Order(c.v9, c.v11), Order(c.v12, c.v14), Order(c.v13, c.v15);
  Order(c.v0, c.v4), Order(c.v1, c.v5), Order(c.v2, c.v6), Order(c.v3, c.v7);
  Order(c.v8, c.v12), Order(c.v9, c.v13), Order(c.v10, c.v14), Order(c.v11, c.v15);
  Order(c.v0, c.v8), Order(c.v1, c.v9), Order(c.v2, c.v10), Order(c.v3, c.v11);
  Order(c.v4, c.v12), Order(c.v5, c.v13), Order(c.v6, c.v14), Order(c.v7, c.v15);
  Order(c.v5, c.v10), Order(c.v6, c.v9), Order(c.v3, c.v12), Order(c.v13, c.v14);
  Order(c.v4, c.v8), Order(c.v7, c.v11), Order(c.v1, c.v2);
  Order(c.v1, c.v4), Order(c.v7, c.v13), Order(c.v2, c.v8), Order(c.v11, c.v14);
  Order(c.v2, c.v4), Order(c.v5, c.v6), Order(c.v9, c.v10), Order(c.v11, c.v13);
  Order(c.v3, c.v8), Order(c.v7, c.v12);
  Order(c.v6, c.v8), Order(c.v10, c.v12), Order(c.v3, c.v5), Order(c.v7, c.v9);
  Order(c.v3, c.v4), Order(c.v5, c.v6), Order(c.v7, c.v8), Order(c.v9, c.v10), Order(c.v11, c.v12);
  Order(c.v6, c.v7), Order(c.v8, c.v9);
}

// Returns: whether one of the sorted buckets has three words with equal upper halves. In sorted order it is enough to
// compare each word with the one two places on.
HWY_INLINE bool HasTriple(const Columns& c) {
  const Slots d;
  const auto closest = [&](SlotVec x, SlotVec y, SlotVec z, SlotVec xx, SlotVec yy, SlotVec zz) {
    return hn::Min(hn::Min(hn::Xor(x, xx), hn::Xor(y, yy)), hn::Xor(z, zz));
  };
  const SlotVec a = closest(c.v0, c.v1, c.v2, c.v2, c.v3, c.v4);
  const SlotVec b = closest(c.v3, c.v4, c.v5, c.v5, c.v6, c.v7);
  const SlotVec e = closest(c.v6, c.v7, c.v8, c.v8, c.v9, c.v10);
  const SlotVec f = closest(c.v9, c.v10, c.v11, c.v11, c.v12, c.v13);
  const SlotVec g = hn::Min(hn::Xor(c.v12, c.v14), hn::Xor(c.v13, c.v15));
  const SlotVec least = hn::Min(hn::Min(hn::Min(a, b), hn::Min(e, f)), g);
  return !hn::AllFalse(d, hn::Lt(least, hn::Set(d, uint64_t{1} << 32)));
}

// Transposes eight vectors, of one cell of eight buckets each, into eight vectors of one bucket each.
HWY_INLINE void Transpose(SlotVec& r0, SlotVec& r1, SlotVec& r2, SlotVec& r3, SlotVec& r4, SlotVec& r5, SlotVec& r6,
                          SlotVec& r7) {
  const Slots d;
  // Blocks of two cells of one bucket: bucket 2k is in block k of `even…`, bucket 2k + 1 in block k of `odd…`.
  const SlotVec even01 = hn::InterleaveLower(d, r0, r1), odd01 = hn::InterleaveUpper(d, r0, r1);
  const SlotVec even23 = hn::InterleaveLower(d, r2, r3), odd23 = hn::InterleaveUpper(d, r2, r3);
  const SlotVec even45 = hn::InterleaveLower(d, r4, r5), odd45 = hn::InterleaveUpper(d, r4, r5);
  const SlotVec even67 = hn::InterleaveLower(d, r6, r7), odd67 = hn::InterleaveUpper(d, r6, r7);
  const auto blocks = [&](SlotVec b01, SlotVec b23, SlotVec b45, SlotVec b67, SlotVec& to0, SlotVec& to1, SlotVec& to2,
                          SlotVec& to3) {
    const SlotVec low01 = hn::ConcatLowerLower(d, b45, b01), low23 = hn::ConcatLowerLower(d, b67, b23);
    const SlotVec high01 = hn::ConcatUpperUpper(d, b45, b01), high23 = hn::ConcatUpperUpper(d, b67, b23);
    to0 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(low23), low01);
    to1 = hn::OddEvenBlocks(low23, hn::SwapAdjacentBlocks(low01));
    to2 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(high23), high01);
    to3 = hn::OddEvenBlocks(high23, hn::SwapAdjacentBlocks(high01));
  };
  blocks(even01, even23, even45, even67, r0, r2, r4, r6);
  blocks(odd01, odd23, odd45, odd67, r1, r3, r5, r7);
}

HWY_INLINE Columns LoadColumns(const uint64_t* from) {
  const Slots d;
  const auto at = [&](size_t s) { return hn::Load(d, from + s * kGroupBuckets); };
  return {at(0), at(1), at(2),  at(3),  at(4),  at(5),  at(6),  at(7),
          at(8), at(9), at(10), at(11), at(12), at(13), at(14), at(15)};
}

HWY_INLINE void FreeColumns(uint64_t* to) {
  const Slots d;
  for (size_t s = 0; s < kBucketCells; ++s) {
    hn::Store(hn::Set(d, FreeCell(s)), d, to + s * kGroupBuckets);
  }
}

size_t SortGroupsOf(const BucketGroups& groups, size_t begin, size_t end, uint64_t* out, size_t& written) {
  const Slots d;
  uint64_t* to = out + written;
  size_t group = begin;
  for (; group < end; ++group) {
    uint64_t* const cells = groups.cells + group * kGroupCells;
    const uint32_t* const next = groups.next + group * kGroupBuckets;
    uint32_t flags = 0;
    size_t sizes[kGroupBuckets];
    for (size_t b = 0; b < kGroupBuckets; ++b) {
      flags |= next[b];
      sizes[b] = (next[b] - group * kGroupCells) / kGroupBuckets;
    }
    if ((flags & kOverflowed) != 0) break;
    uint64_t* at = to;
    Columns c = LoadColumns(cells);
    SortColumns(c);
    if (!groups.stable && HasTriple(c)) break;
    FreeColumns(cells);
    Transpose(c.v0, c.v1, c.v2, c.v3, c.v4, c.v5, c.v6, c.v7);
    Transpose(c.v8, c.v9, c.v10, c.v11, c.v12, c.v13, c.v14, c.v15);
    // Stores whole vectors: the free cells behind a bucket's words are overwritten by the next bucket's words.
    const auto put = [&](SlotVec low, SlotVec high, size_t size) {
      hn::StoreU(low, d, at);
      hn::StoreU(high, d, at + 8);
      at += size;
    };
    put(c.v0, c.v8, sizes[0]), put(c.v1, c.v9, sizes[1]), put(c.v2, c.v10, sizes[2]), put(c.v3, c.v11, sizes[3]);
    put(c.v4, c.v12, sizes[4]), put(c.v5, c.v13, sizes[5]), put(c.v6, c.v14, sizes[6]), put(c.v7, c.v15, sizes[7]);
    to = at;
  }
  written = static_cast<size_t>(to - out);
  return group;
}
#else
bool HasBucketKernelOf() { return false; }
size_t SortGroupsOf(const BucketGroups& /*groups*/, size_t begin, size_t /*end*/, uint64_t* /*out*/,
                    size_t& /*written*/) {
  return begin;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::cpu {

HWY_EXPORT(HasBucketKernelOf);
HWY_EXPORT(SortGroupsOf);

bool HasBucketKernel() { return HWY_DYNAMIC_DISPATCH(HasBucketKernelOf)(); }

size_t SortGroups(const BucketGroups& groups, size_t begin, size_t end, uint64_t* out, size_t& written) {
  return HWY_DYNAMIC_DISPATCH(SortGroupsOf)(groups, begin, end, out, written);
}

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
