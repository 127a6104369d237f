#include "host/cpu/simd/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/simd/compact_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes them again for each target.
#include "host/cpu/simd/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

// Returns: the lanes chosen by `mask`, moved to the front.
// Highway 1.0.3: hn::Compress of 64-bit lanes on AVX-512 copies a table to the stack at each call, though there is an
// instruction. Remove with a Highway that uses vpcompressq here.
HWY_INLINE hn::Vec<Longs> CompressLongs(hn::Vec<Longs> v, hn::Mask<Longs> mask) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::Vec<Longs>{_mm512_maskz_compress_epi64(mask.raw, v.raw)};
#else
  return hn::Compress(v, mask);
#endif
}

// Returns: the counts of one vector of slots, widened. Sets the slots' counts to 0.
template <class Count>
HWY_INLINE hn::Vec<Longs> LoadAndClearCounts(Count* counts) {
  const hn::Rebind<Count, Doubles> d;
  const auto taken = hn::LoadU(d, counts);
  hn::StoreU(hn::Zero(d), d, counts);
  if constexpr (sizeof(Count) < sizeof(uint32_t)) {
    return hn::PromoteTo(Longs(), hn::PromoteTo(Words(), taken));
  } else {
    return hn::PromoteTo(Longs(), taken);
  }
}

// Returns: the bits of the weights of one vector of slots. Sets them to 0.
HWY_INLINE hn::Vec<Longs> LoadAndClearWeights(const SlotTable& table, size_t slot) {
  const Doubles d;
  const auto taken = hn::LoadU(d, table.weights + slot);
  hn::StoreU(hn::Zero(d), d, table.weights + slot);
  return hn::BitCast(Longs(), taken);
}

// Calls take(keys, accs, counts, weights, n) for each vector of slots, from `slot` on, with its n touched slots moved
// to the front, and resets the slots.
//
// The vectors are compressed in registers and then stored whole, because the compressing store to memory (vpcompress
// with a memory operand) is slow on Zen 4. `take` is called at one place, so that it is inlined; the last vector needs
// no case of its own, since the slack behind the last slot is untouched.
template <class Count, bool kWeighed, class Key, class Take>
HWY_INLINE void ForTouchedSlots(const SlotTable& table, size_t slot, Key first, Take take) {
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
    if constexpr (kCounted) count = LoadAndClearCounts(slot_counts + slot);
    const auto touched = kCounted ? hn::Ne(count, hn::Zero(d)) : hn::Ne(acc, fresh);
    hn::StoreU(fresh, d, slot_bits + slot);
    if constexpr (kCounted) count = CompressLongs(count, touched);
    auto weight = hn::Zero(Doubles());
    if constexpr (kWeighed) weight = hn::BitCast(Doubles(), CompressLongs(LoadAndClearWeights(table, slot), touched));
    take(CompressLongs(key, touched), CompressLongs(acc, touched), count, weight, hn::CountTrue(d, touched));
    key = hn::Add(key, step);
  }
}

// Returns: how many of `slots` slots do not hold `untouched`.
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
    T value;  // copied as bytes, since the slots may have another type of this size
    __builtin_memcpy(&value, values + slot, sizeof(value));
    others += value != untouched;
  }
  return others;
}

size_t CountTouchedAny(const SlotTable& table) {
  return WithColumns(table, [&](auto count, auto) HWY_ATTR {
    using Count = decltype(count);
    if constexpr (std::is_same_v<Count, NoCount>) {
      return CountOthers<uint64_t>(table.accs, table.slots, table.untouched);
    } else {
      return CountOthers<Count>(table.counts, table.slots, 0);
    }
  });
}

#if HWY_TARGET == HWY_SCALAR
// The scalar target has no vector twice as long as another, so this does nothing and leaves all slots to the caller.
template <class Count, bool kWeighed>
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

// Returns: the counts of two vectors of slots. Sets the slots' counts to 0.
template <class Count>
HWY_INLINE hn::Vec<ManyWords> LoadAndClearManyCounts(Count* counts) {
  const ManyWords dw;
  const hn::Rebind<Count, ManyWords> d;
  const auto taken = hn::LoadU(d, counts);
  hn::StoreU(hn::Zero(d), d, counts);
  if constexpr (sizeof(Count) < sizeof(uint32_t)) {
    return hn::PromoteTo(dw, taken);
  } else {
    return taken;
  }
}

// The most frequent case: 32-bit keys, float32 results, no returned weights. Keys and results have half the size of
// sums, so a vector of them serves twice as many slots at a time. Values of untouched slots are computed, too, and
// dropped. Stops when fewer rows than a whole vector are left to write.
// Returns: the number of slots done. Sets `written` to the number of rows written.
template <class Count, bool kWeighed>
HWY_INLINE size_t CompactFloats(const SlotTable& table, uint32_t first, size_t rows,
                                const DirectOutput<uint32_t>& output, size_t* written) {
  constexpr bool kCounted = !std::is_same_v<Count, NoCount>;
  const Longs d;
  const Doubles dd;
  const ManyFloats df;
  const ManyWords dw;
  const size_t lanes = hn::Lanes(d);
  auto* slot_bits = static_cast<uint64_t*>(table.accs);
  auto* slot_counts = static_cast<Count*>(table.counts);
  auto* values = reinterpret_cast<float*>(output.values);
  const auto fresh = hn::Set(d, table.untouched);
  const bool divides = output.divided_by != DividedBy::kNothing;
  const auto finish = [&](hn::Vec<Longs> acc, hn::Vec<Words> counts, size_t slot) HWY_ATTR {
    auto sums = hn::BitCast(dd, acc);
    auto weights = hn::Zero(dd);
    if constexpr (kWeighed) weights = hn::BitCast(dd, LoadAndClearWeights(table, slot));
    if (divides) sums = hn::Div(sums, DivisorsOf(output, hn::PromoteTo(d, counts), weights));
    return RoundToFloats(sums);
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
    auto touched = JoinMasks(hn::Ne(low, fresh), hn::Ne(high, fresh));
    auto counts = hn::Zero(dw);
    if constexpr (kCounted) {
      counts = LoadAndClearManyCounts(slot_counts + slot);
      touched = hn::Ne(counts, hn::Zero(dw));
      if (output.counts != nullptr) hn::StoreU(hn::Compress(counts, touched), dw, output.counts + row);
    }
    const auto sums = hn::Combine(df, finish(high, hn::UpperHalf(Words(), counts), slot + lanes),
                                  finish(low, hn::LowerHalf(Words(), counts), slot));
    hn::StoreU(hn::Compress(keys, touched), dw, output.keys + row);
    hn::StoreU(hn::Compress(sums, hn::RebindMask(df, touched)), df, values + row);
    row += hn::CountTrue(dw, touched);
    keys = hn::Add(keys, step);
  }
  *written = row;
  return slot;
}
#endif
template <class Count, bool kWeighed>
HWY_INLINE size_t CompactFloats(const SlotTable&, uint64_t, size_t, const DirectOutput<uint64_t>&, size_t*) {
  return 0;
}

template <class Count, bool kWeighed, class Key>
HWY_NOINLINE void CompactToT(const SlotTable& table, Key first, size_t rows, const DirectOutput<Key>& output) {
  size_t done = 0;
  size_t written = 0;
  if (output.dtype == DType::kFloat32 && output.weights == nullptr) {
    done = CompactFloats<Count, kWeighed>(table, first, rows, output, &written);
  }
  DirectWriter<Key> writer(output, rows, written);
  ForTouchedSlots<Count, kWeighed>(
      table, done, first,
      [&](hn::Vec<Longs> key, hn::Vec<Longs> acc, hn::Vec<Longs> count, hn::Vec<Doubles> weight, size_t n)
          HWY_ATTR { writer.Write(key, acc, count, weight, n); });
}

template <class Key>
HWY_INLINE void CompactToAny(const SlotTable& table, Key first, size_t rows, const DirectOutput<Key>& output) {
  WithColumns(table, [&](auto count, auto is_weighed)
                         HWY_ATTR { CompactToT<decltype(count), is_weighed.value>(table, first, rows, output); });
}

void CompactTo32(const SlotTable& table, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output) {
  CompactToAny(table, first, rows, output);
}
void CompactTo64(const SlotTable& table, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output) {
  CompactToAny(table, first, rows, output);
}

template <class Count, bool kWeighed>
HWY_NOINLINE void WriteAllSlotsT(const SlotTable& table, const DirectValues& output) {
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
    auto weight = hn::Zero(dd);
    if constexpr (kCounted) {
      count = LoadAndClearCounts(slot_counts + slot);
      if (output.counts != nullptr) StoreSome(hn::TruncateTo(dw, count), dw, n, output.counts + slot);
    }
    if constexpr (kWeighed) {
      weight = hn::BitCast(dd, LoadAndClearWeights(table, slot));
      if (output.weights != nullptr) StoreSome(weight, dd, n, output.weights + slot);
    }
    auto divisors = DivisorsOf(output, count, weight);
    if (divides_each) {
      const auto touched = kCounted ? hn::Ne(count, hn::Zero(d)) : hn::Ne(acc, fresh);
      divisors = hn::IfThenElse(hn::RebindMask(dd, touched), divisors, hn::Set(dd, 1.0));
    }
    WriteValues(acc, divisors, output, slot, n);
  }
}

void WriteAllSlotsKernel(const SlotTable& table, const DirectValues& output) {
  WithColumns(table, [&](auto count, auto is_weighed)
                         HWY_ATTR { WriteAllSlotsT<decltype(count), is_weighed.value>(table, output); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::cpu {

HWY_EXPORT(CountTouchedAny);
HWY_EXPORT(CompactTo32);
HWY_EXPORT(CompactTo64);
HWY_EXPORT(WriteAllSlotsKernel);

size_t CountTouched(const SlotTable& table) { return HWY_DYNAMIC_DISPATCH(CountTouchedAny)(table); }
void CompactTo(const SlotTable& table, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output) {
  HWY_DYNAMIC_DISPATCH(CompactTo32)(table, first, rows, output);
}
void CompactTo(const SlotTable& table, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output) {
  HWY_DYNAMIC_DISPATCH(CompactTo64)(table, first, rows, output);
}
void WriteAllSlots(const SlotTable& table, const DirectValues& output) {
  HWY_DYNAMIC_DISPATCH(WriteAllSlotsKernel)(table, output);
}

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
