#include "host/cpu/simd/compact_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/simd/compact_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes them again for each target.
#include "host/cpu/simd/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

// Moves the lanes chosen by `mask` to the front. Highway 1.0's own for 64-bit lanes of AVX-512 goes through a table
// that it copies to the stack at each call; the instruction is there.
HWY_INLINE hn::Vec<Longs> CompressLongs(hn::Vec<Longs> v, hn::Mask<Longs> mask) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::Vec<Longs>{_mm512_maskz_compress_epi64(mask.raw, v.raw)};
#else
  return hn::Compress(v, mask);
#endif
}

// The counts of Lanes(Longs) slots, widened; the slots' are set to 0.
template <class Count>
HWY_INLINE hn::Vec<Longs> TakeCounts(Count* counts) {
  const hn::Rebind<Count, Doubles> d;
  const auto taken = hn::LoadU(d, counts);
  hn::StoreU(hn::Zero(d), d, counts);
  if constexpr (sizeof(Count) < sizeof(uint32_t)) {
    return hn::PromoteTo(Longs(), hn::PromoteTo(Words(), taken));
  } else {
    return hn::PromoteTo(Longs(), taken);
  }
}

// Calls take(keys, accs, counts, weights, n) with the n touched slots of each vector of slots from `slot` on at the
// front, and makes those fresh. (They are compressed in registers: the compressing store to memory is slow on some
// machines. There is one call only, so that it is inlined: slots behind the last one are as good as untouched ones.)
template <class Count, bool kWeighed, class Key, class Take>
HWY_INLINE void TakeTouched(const SlotTable& table, size_t slot, Key first, Take take) {
  constexpr bool kCounted = !std::is_same_v<Count, NoCount>;
  auto* slot_bits = static_cast<uint64_t*>(table.accs);
  auto* slot_counts = static_cast<Count*>(table.counts);
  const Longs d;
  const auto fresh = hn::Set(d, table.untouched);
  const size_t lanes = hn::Lanes(d);
  auto key = hn::Iota(d, first + slot);
  const auto step = hn::Set(d, lanes);
  for (; slot < table.slots; slot += lanes) {
    const auto acc = hn::LoadU(d, slot_bits + slot);
    auto count = hn::Zero(d);
    if constexpr (kCounted) count = TakeCounts(slot_counts + slot);
    const auto touched = kCounted ? hn::Ne(count, hn::Zero(d)) : hn::Ne(acc, fresh);
    hn::StoreU(fresh, d, slot_bits + slot);
    if constexpr (kCounted) count = CompressLongs(count, touched);
    auto weight = hn::Zero(d);
    if constexpr (kWeighed) {
      weight = CompressLongs(hn::LoadU(d, table.weights + slot), touched);
      hn::StoreU(hn::Zero(d), d, table.weights + slot);
    }
    take(CompressLongs(key, touched), CompressLongs(acc, touched), count, weight, hn::CountTrue(d, touched));
    key = hn::Add(key, step);
  }
}

// Whole vectors are stored: what lies behind the last row is overwritten by the next store, and the caller's slack
// takes the last one.
template <class Count, class Key>
HWY_INLINE size_t CompactT(const SlotTable& table, Key first, Key* keys, void* accs, uint32_t* counts) {
  const Longs d;
  const Words dw;
  auto* out = static_cast<uint64_t*>(accs);
  size_t rows = 0;
  TakeTouched<Count, false>(table, 0, first,
                            [&](hn::Vec<Longs> key, hn::Vec<Longs> acc, hn::Vec<Longs> count, hn::Vec<Longs>, size_t n)
                                HWY_ATTR {
                                  StoreKeys(key, hn::Lanes(d), keys + rows);
                                  hn::StoreU(acc, d, out + rows);
                                  if (!std::is_same_v<Count, NoCount> && counts != nullptr) {
                                    hn::StoreU(hn::TruncateTo(dw, count), dw, counts + rows);
                                  }
                                  rows += n;
                                });
  return rows;
}

template <class Key>
HWY_INLINE size_t CompactAny(const SlotTable& table, Key first, Key* keys, void* accs, uint32_t* counts) {
  switch (table.count_bytes) {
    case CountBytes::kNone:
      return CompactT<NoCount>(table, first, keys, accs, counts);
    case CountBytes::kOne:
      return CompactT<uint8_t>(table, first, keys, accs, counts);
    case CountBytes::kTwo:
      return CompactT<uint16_t>(table, first, keys, accs, counts);
    case CountBytes::kFour:
      return CompactT<uint32_t>(table, first, keys, accs, counts);
  }
  return 0;
}

size_t Compact32(const SlotTable& table, uint32_t first, uint32_t* keys, void* accs, uint32_t* counts) {
  return CompactAny(table, first, keys, accs, counts);
}
size_t Compact64(const SlotTable& table, uint64_t first, uint64_t* keys, void* accs, uint32_t* counts) {
  return CompactAny(table, first, keys, accs, counts);
}

template <class T>
HWY_INLINE size_t CountOthers(const void* table, size_t slots, T untouched) {
  const hn::ScalableTag<T> d;
  const auto* values = static_cast<const T*>(table);
  const auto fresh = hn::Set(d, untouched);
  const size_t lanes = hn::Lanes(d);
  size_t others = 0;
  size_t slot = 0;
  for (; slot + lanes <= slots; slot += lanes) {
    others += hn::CountTrue(d, hn::Ne(hn::LoadU(d, values + slot), fresh));
  }
  for (; slot < slots; ++slot) {
    T value;  // copied as bytes: the slots may be of some other type
    __builtin_memcpy(&value, values + slot, sizeof(value));
    others += value != untouched;
  }
  return others;
}

size_t CountTouchedAny(const SlotTable& table) {
  switch (table.count_bytes) {
    case CountBytes::kNone:
      return CountOthers<uint64_t>(table.accs, table.slots, table.untouched);
    case CountBytes::kOne:
      return CountOthers<uint8_t>(table.counts, table.slots, 0);
    case CountBytes::kTwo:
      return CountOthers<uint16_t>(table.counts, table.slots, 0);
    case CountBytes::kFour:
      return CountOthers<uint32_t>(table.counts, table.slots, 0);
  }
  return 0;
}

#if HWY_TARGET == HWY_SCALAR
// No vector is twice as long as another.
HWY_INLINE size_t CompactFloats(const SlotTable&, uint32_t, size_t, const DirectOutput<uint32_t>&, size_t*) {
  return 0;
}
#else
// As many lanes as there are in two vectors of Doubles.
using ManyFloats = hn::Twice<Floats>;
using ManyWords = hn::Twice<Words>;

HWY_INLINE hn::Mask<ManyWords> JoinMasks(hn::Mask<Longs> low, hn::Mask<Longs> high) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::Mask<ManyWords>{static_cast<__mmask16>(low.raw | high.raw << 8)};
#else
  const Longs d;
  const Words dw;
  return hn::MaskFromVec(hn::Combine(ManyWords(), hn::TruncateTo(dw, hn::VecFromMask(d, high)),
                                     hn::TruncateTo(dw, hn::VecFromMask(d, low))));
#endif
}

// The case to be fast in: float64 sums, or means of all submissions, without counters, 32-bit keys, float32 results.
// Keys and results are half as long as sums, so twice as many slots are compressed at a time. Works as long as whole
// vectors may be written; returns the slots done, and the rows written.
HWY_INLINE size_t CompactFloats(const SlotTable& table, uint32_t first, size_t rows,
                                const DirectOutput<uint32_t>& output, size_t* written) {
  const Longs d;
  const Doubles dd;
  const ManyFloats df;
  const ManyWords dw;
  const size_t lanes = hn::Lanes(d);
  auto* slot_bits = static_cast<uint64_t*>(table.accs);
  auto* values = reinterpret_cast<float*>(output.values);
  const auto fresh = hn::Set(d, table.untouched);
  const bool divides = output.divided_by == DividedBy::kTotal;
  const auto total = hn::Set(dd, output.total);
  const auto finish = [&](hn::Vec<Longs> acc) HWY_ATTR {
    const auto sums = hn::BitCast(dd, acc);
    return RoundToFloats(divides ? hn::Div(sums, total) : sums);
  };
  const auto step = hn::Set(dw, static_cast<uint32_t>(2 * lanes));
  auto keys = hn::Iota(dw, first);
  size_t row = 0;
  size_t slot = 0;
  for (; slot < table.slots && row + 2 * lanes <= rows; slot += 2 * lanes) {
    const auto low = hn::LoadU(d, slot_bits + slot);
    const auto high = hn::LoadU(d, slot_bits + slot + lanes);
    hn::StoreU(fresh, d, slot_bits + slot);
    hn::StoreU(fresh, d, slot_bits + slot + lanes);
    const auto touched = JoinMasks(hn::Ne(low, fresh), hn::Ne(high, fresh));
    const auto sums = hn::Combine(df, finish(high), finish(low));
    hn::StoreU(hn::Compress(keys, touched), dw, output.keys + row);
    hn::StoreU(hn::Compress(sums, hn::RebindMask(df, touched)), df, values + row);
    row += hn::CountTrue(dw, touched);
    keys = hn::Add(keys, step);
  }
  *written = row;
  return slot;
}
#endif
HWY_INLINE size_t CompactFloats(const SlotTable&, uint64_t, size_t, const DirectOutput<uint64_t>&, size_t*) {
  return 0;
}

template <class Acc, class Count, bool kWeighed, class Key>
HWY_NOINLINE void CompactToT(const SlotTable& table, Key first, size_t rows, const DirectOutput<Key>& output) {
  size_t done = 0;
  size_t written = 0;
  // Without counts or weights there is nothing else to divide by.
  if constexpr (std::is_same_v<Acc, double> && std::is_same_v<Count, NoCount> && !kWeighed) {
    if (output.dtype == DType::kFloat32) {
      done = CompactFloats(table, first, rows, output, &written);
    }
  }
  PlainWriter<Key> writer(output, rows, written);
  TakeTouched<Count, kWeighed>(table, done, first,
                               [&](hn::Vec<Longs> key, hn::Vec<Longs> acc, hn::Vec<Longs> count, hn::Vec<Longs> weight,
                                   size_t n) HWY_ATTR { writer.template Write<Acc>(key, acc, count, weight, n); });
}

template <class Acc, class Key>
HWY_INLINE void CompactToAny(const SlotTable& table, Key first, size_t rows, const DirectOutput<Key>& output) {
  if (table.weights != nullptr) {
    return table.count_bytes == CountBytes::kNone ? CompactToT<Acc, NoCount, true>(table, first, rows, output)
                                                  : CompactToT<Acc, uint32_t, true>(table, first, rows, output);
  }
  switch (table.count_bytes) {
    case CountBytes::kNone:
      return CompactToT<Acc, NoCount, false>(table, first, rows, output);
    case CountBytes::kOne:
      return CompactToT<Acc, uint8_t, false>(table, first, rows, output);
    case CountBytes::kTwo:
      return CompactToT<Acc, uint16_t, false>(table, first, rows, output);
    case CountBytes::kFour:
      return CompactToT<Acc, uint32_t, false>(table, first, rows, output);
  }
}

void CompactTo32(const SlotTable& table, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output) {
  table.fixed ? CompactToAny<int64_t>(table, first, rows, output) : CompactToAny<double>(table, first, rows, output);
}
void CompactTo64(const SlotTable& table, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output) {
  table.fixed ? CompactToAny<int64_t>(table, first, rows, output) : CompactToAny<double>(table, first, rows, output);
}

template <class Acc, class Count, bool kWeighed>
HWY_NOINLINE void SpreadToT(const SlotTable& table, const DirectValues& output) {
  constexpr bool kCounted = !std::is_same_v<Count, NoCount>;
  auto* slot_bits = static_cast<uint64_t*>(table.accs);
  auto* slot_counts = static_cast<Count*>(table.counts);
  const Longs d;
  const Doubles dd;
  const Words dw;
  const auto fresh = hn::Set(d, table.untouched);
  const bool divides_each = output.divided_by == DividedBy::kCount || output.divided_by == DividedBy::kWeight;
  for (size_t slot = 0; slot < table.slots; slot += hn::Lanes(d)) {
    const size_t n = HWY_MIN(hn::Lanes(d), table.slots - slot);
    const auto acc = hn::LoadU(d, slot_bits + slot);
    hn::StoreU(fresh, d, slot_bits + slot);
    auto count = hn::Zero(d);
    auto weight = hn::Zero(d);
    if constexpr (kCounted) {
      count = TakeCounts(slot_counts + slot);
      if (output.counts != nullptr) StoreSome(hn::TruncateTo(dw, count), dw, n, output.counts + slot);
    }
    if constexpr (kWeighed) {
      weight = hn::LoadU(d, table.weights + slot);
      hn::StoreU(hn::Zero(d), d, table.weights + slot);
      if (output.weights != nullptr) StoreSome(weight, d, n, output.weights + slot);
    }
    auto divisors = DivisorsOf<Acc>(output, count, weight);
    if (divides_each) {
      const auto touched = kCounted ? hn::Ne(count, hn::Zero(d)) : hn::Ne(acc, fresh);
      divisors = hn::IfThenElse(hn::RebindMask(dd, touched), divisors, hn::Set(dd, 1.0));
    }
    WriteValues<Acc>(acc, divisors, output, slot, n);
  }
}

template <class Acc>
HWY_INLINE void SpreadToAny(const SlotTable& table, const DirectValues& output) {
  if (table.weights != nullptr) {
    return table.count_bytes == CountBytes::kNone ? SpreadToT<Acc, NoCount, true>(table, output)
                                                  : SpreadToT<Acc, uint32_t, true>(table, output);
  }
  switch (table.count_bytes) {
    case CountBytes::kNone:
      return SpreadToT<Acc, NoCount, false>(table, output);
    case CountBytes::kOne:
      return SpreadToT<Acc, uint8_t, false>(table, output);
    case CountBytes::kTwo:
      return SpreadToT<Acc, uint16_t, false>(table, output);
    case CountBytes::kFour:
      return SpreadToT<Acc, uint32_t, false>(table, output);
  }
}

void SpreadToKernel(const SlotTable& table, const DirectValues& output) {
  table.fixed ? SpreadToAny<int64_t>(table, output) : SpreadToAny<double>(table, output);
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::cpu {

HWY_EXPORT(Compact32);
HWY_EXPORT(Compact64);
HWY_EXPORT(CountTouchedAny);
HWY_EXPORT(CompactTo32);
HWY_EXPORT(CompactTo64);
HWY_EXPORT(SpreadToKernel);

size_t Compact(const SlotTable& table, uint32_t first, uint32_t* keys, void* accs, uint32_t* counts) {
  return HWY_DYNAMIC_DISPATCH(Compact32)(table, first, keys, accs, counts);
}
size_t Compact(const SlotTable& table, uint64_t first, uint64_t* keys, void* accs, uint32_t* counts) {
  return HWY_DYNAMIC_DISPATCH(Compact64)(table, first, keys, accs, counts);
}
size_t CountTouched(const SlotTable& table) { return HWY_DYNAMIC_DISPATCH(CountTouchedAny)(table); }
void CompactTo(const SlotTable& table, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output) {
  HWY_DYNAMIC_DISPATCH(CompactTo32)(table, first, rows, output);
}
void CompactTo(const SlotTable& table, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output) {
  HWY_DYNAMIC_DISPATCH(CompactTo64)(table, first, rows, output);
}
void SpreadTo(const SlotTable& table, const DirectValues& output) {
  HWY_DYNAMIC_DISPATCH(SpreadToKernel)(table, output);
}

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
