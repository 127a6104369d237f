#include "host/cpu/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Doubles = hn::ScalableTag<double>;
using Floats = hn::Rebind<float, Doubles>;     // half a vector: as many lanes as Doubles
using Halves = hn::Rebind<uint16_t, Doubles>;  // a quarter
using Words = hn::Rebind<uint32_t, Doubles>;
using Longs = hn::Rebind<uint64_t, Doubles>;
using SignedLongs = hn::Rebind<int64_t, Doubles>;

// float16 bits → float32. Shifted into place, the exponent is 112 too small; the product with 2^112 mends it and
// is exact for subnormals too. Infinities and NaNs get the largest exponent.
template <class V>
HWY_INLINE auto WidenHalf(Words dw, V bits16) {
  const Floats df;
  const auto bits = hn::PromoteTo(dw, bits16);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(dw, 0x7fffu)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(dw, 0x8000u)));
  const auto special = hn::Gt(magnitude, hn::Set(dw, 0x7bffu << 13));
  const auto scaled = hn::BitCast(dw, hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 0x1p112f)));
  const auto finite_or_special = hn::IfThenElse(special, hn::Or(magnitude, hn::Set(dw, 0x7f800000u)), scaled);
  return hn::BitCast(df, hn::Or(finite_or_special, sign));
}

// Loads n ≤ Lanes(d) elements from unaligned memory; the other lanes are zero.
template <class D>
HWY_INLINE auto LoadSome(D d, const void* from, size_t n) {
  using T = hn::TFromD<D>;
  if (n == hn::Lanes(d)) return hn::LoadU(d, static_cast<const T*>(from));
  HWY_ALIGN T buffer[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(T)] = {};
  __builtin_memcpy(buffer, from, n * sizeof(T));
  return hn::LoadU(d, buffer);
}

// Calls step(i, n) for stretches of n elements: whole vectors, and the rest at last.
template <class Step>
HWY_INLINE void ForVectors(size_t count, Step step) {
  const size_t lanes = hn::Lanes(Doubles());
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) step(i, lanes);
  if (i < count) step(i, count - i);
}

// The same where the last vector may reach beyond `count`, but not beyond `readable`.
template <class Step>
HWY_INLINE void ForReadable(size_t count, size_t readable, Step step) {
  const size_t whole = hwy::RoundUpTo(count, hn::Lanes(Doubles()));
  ForVectors(whole <= readable ? whole : count, step);
}

// The terms behind the last are garbage that the slack takes.
template <class V>
HWY_INLINE void StoreTerms(V widened, double weight, double* terms) {
  const Doubles d;
  hn::StoreU(hn::Add(hn::Mul(widened, hn::Set(d, weight)), hn::Zero(d)), d, terms);
}

void LoadFloat32(const void* values, size_t count, size_t readable, double weight, double* terms) {
  const auto* from = static_cast<const char*>(values);
  ForReadable(count, readable, [&](size_t i, size_t n) HWY_ATTR {
    StoreTerms(hn::PromoteTo(Doubles(), LoadSome(Floats(), from + i * sizeof(float), n)), weight, terms + i);
  });
}

void LoadFloat64(const void* values, size_t count, size_t readable, double weight, double* terms) {
  const auto* from = static_cast<const char*>(values);
  ForReadable(count, readable, [&](size_t i, size_t n) HWY_ATTR {
    StoreTerms(LoadSome(Doubles(), from + i * sizeof(double), n), weight, terms + i);
  });
}

void LoadFloat16(const void* values, size_t count, size_t readable, double weight, double* terms) {
  const auto* from = static_cast<const char*>(values);
  ForReadable(count, readable, [&](size_t i, size_t n) HWY_ATTR {
    const auto bits = LoadSome(Halves(), from + i * sizeof(uint16_t), n);
    StoreTerms(hn::PromoteTo(Doubles(), WidenHalf(Words(), bits)), weight, terms + i);
  });
}

void LoadBFloat16(const void* values, size_t count, size_t readable, double weight, double* terms) {
  const auto* from = static_cast<const char*>(values);
  ForReadable(count, readable, [&](size_t i, size_t n) HWY_ATTR {
    const auto bits = hn::PromoteTo(Words(), LoadSome(Halves(), from + i * sizeof(uint16_t), n));
    const auto widened = hn::BitCast(Floats(), hn::ShiftLeft<16>(bits));
    StoreTerms(hn::PromoteTo(Doubles(), widened), weight, terms + i);
  });
}

void QuantiseTerms(const double* products, size_t count, double bound, double scale, int64_t* terms) {
  const Doubles d;
  const SignedLongs di;
  const auto high = hn::Set(d, bound);
  const auto low = hn::Set(d, -bound);
  const auto factor = hn::Set(d, scale);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto clamped = hn::Min(hn::Max(hn::LoadU(d, products + i), low), high);
    hn::StoreU(hn::ConvertTo(di, hn::Round(hn::Mul(clamped, factor))), di, terms + i);
  }
}

template <class Key>
HWY_INLINE size_t CountUpToT(const Key* keys, size_t count, Key last) {
  const hn::ScalableTag<Key> d;
  const size_t lanes = hn::Lanes(d);
  const auto limit = hn::Set(d, last);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto above = hn::Gt(hn::LoadU(d, keys + i), limit);
    const intptr_t first_above = hn::FindFirstTrue(d, above);
    if (first_above >= 0) return i + static_cast<size_t>(first_above);
  }
  while (i < count && keys[i] <= last) ++i;
  return i;
}

size_t CountUpTo32(const uint32_t* keys, size_t count, uint32_t last) { return CountUpToT(keys, count, last); }
size_t CountUpTo64(const uint64_t* keys, size_t count, uint64_t last) { return CountUpToT(keys, count, last); }

size_t FindBeyond(const double* products, size_t count, double bound) {
  const Doubles d;
  const auto limit = hn::Set(d, bound);
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    if (!hn::AllTrue(d, hn::Le(hn::Abs(hn::LoadU(d, products + i)), limit))) break;
  }
  for (; i < count; ++i) {
    if (!(std::abs(products[i]) <= bound)) return i;
  }
  return count;
}

void AddRow(double* row, const double* terms, size_t count) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, row + i), hn::LoadU(d, terms + i)), d, row + i);
  }
  for (; i < count; ++i) row[i] += terms[i];
}

// Moves the lanes chosen by `mask` to the front. Highway 1.0's own for 64-bit lanes of AVX-512 goes through a table
// that it copies to the stack at each call; the instruction is there.
HWY_INLINE hn::Vec<Longs> CompressLongs(hn::Vec<Longs> v, hn::Mask<Longs> mask) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::Vec<Longs>{_mm512_maskz_compress_epi64(mask.raw, v.raw)};
#else
  return hn::Compress(v, mask);
#endif
}

HWY_INLINE void StoreKeys(hn::Vec<Longs> keys, uint64_t* out) { hn::StoreU(keys, Longs(), out); }
HWY_INLINE void StoreKeys(hn::Vec<Longs> keys, uint32_t* out) {
  const Words dw;
  hn::StoreU(hn::TruncateTo(dw, keys), dw, out);
}

// Compresses in registers and stores whole vectors: what lies behind the last row is overwritten by the next store,
// and the caller's slack takes the last one. (The compressing store to memory is slow on some machines.)
template <class Key>
HWY_INLINE size_t CompactMarkedT(void* table, size_t slots, uint64_t untouched, Key first, Key* keys, void* accs) {
  auto* slot_bits = static_cast<uint64_t*>(table);
  auto* out = static_cast<uint64_t*>(accs);
  const Longs d;
  const auto fresh = hn::Set(d, untouched);
  const size_t lanes = hn::Lanes(d);
  size_t rows = 0;
  size_t slot = 0;
  auto key = hn::Iota(d, first);
  const auto step = hn::Set(d, lanes);
  for (; slot + lanes <= slots; slot += lanes) {
    const auto acc = hn::LoadU(d, slot_bits + slot);
    const auto touched = hn::Ne(acc, fresh);
    hn::StoreU(fresh, d, slot_bits + slot);
    StoreKeys(CompressLongs(key, touched), keys + rows);
    hn::StoreU(CompressLongs(acc, touched), d, out + rows);
    rows += hn::CountTrue(d, touched);
    key = hn::Add(key, step);
  }
  for (; slot < slots; ++slot) {
    uint64_t acc;  // copied as bytes: the slots are of some other type
    __builtin_memcpy(&acc, slot_bits + slot, sizeof(acc));
    if (acc == untouched) continue;
    keys[rows] = static_cast<Key>(first + slot);
    __builtin_memcpy(out + rows++, &acc, sizeof(acc));
    __builtin_memcpy(slot_bits + slot, &untouched, sizeof(acc));
  }
  return rows;
}

// Counts of Lanes(Longs) slots, widened; their slots are set to 0.
HWY_INLINE hn::Vec<Longs> TakeCounts(uint16_t* counts) {
  const Halves dh;
  const auto taken = hn::LoadU(dh, counts);
  hn::StoreU(hn::Zero(dh), dh, counts);
  return hn::PromoteTo(Longs(), hn::PromoteTo(Words(), taken));
}
HWY_INLINE hn::Vec<Longs> TakeCounts(uint32_t* counts) {
  const Words dw;
  const auto taken = hn::LoadU(dw, counts);
  hn::StoreU(hn::Zero(dw), dw, counts);
  return hn::PromoteTo(Longs(), taken);
}

template <class Key, class Count>
HWY_INLINE size_t CompactCountedT(void* table, Count* slot_counts, size_t slots, uint64_t untouched, Key first,
                                  Key* keys, void* accs, uint32_t* counts) {
  auto* slot_bits = static_cast<uint64_t*>(table);
  auto* out = static_cast<uint64_t*>(accs);
  const Longs d;
  const Words dw;
  const auto fresh = hn::Set(d, untouched);
  const size_t lanes = hn::Lanes(d);
  size_t rows = 0;
  size_t slot = 0;
  auto key = hn::Iota(d, first);
  const auto step = hn::Set(d, lanes);
  for (; slot + lanes <= slots; slot += lanes) {
    const auto count = TakeCounts(slot_counts + slot);
    const auto touched = hn::Ne(count, hn::Zero(d));
    const auto acc = hn::LoadU(d, slot_bits + slot);
    hn::StoreU(fresh, d, slot_bits + slot);
    StoreKeys(CompressLongs(key, touched), keys + rows);
    hn::StoreU(CompressLongs(acc, touched), d, out + rows);
    hn::StoreU(hn::TruncateTo(dw, CompressLongs(count, touched)), dw, counts + rows);
    rows += hn::CountTrue(d, touched);
    key = hn::Add(key, step);
  }
  for (; slot < slots; ++slot) {
    if (slot_counts[slot] == 0) continue;
    keys[rows] = static_cast<Key>(first + slot);
    __builtin_memcpy(out + rows, slot_bits + slot, sizeof(uint64_t));
    counts[rows++] = slot_counts[slot];
    slot_counts[slot] = 0;
    __builtin_memcpy(slot_bits + slot, &untouched, sizeof(uint64_t));
  }
  return rows;
}

size_t CompactMarked32(void* table, size_t slots, uint64_t untouched, uint32_t first, uint32_t* keys, void* accs) {
  return CompactMarkedT(table, slots, untouched, first, keys, accs);
}
size_t CompactMarked64(void* table, size_t slots, uint64_t untouched, uint64_t first, uint64_t* keys, void* accs) {
  return CompactMarkedT(table, slots, untouched, first, keys, accs);
}
size_t CompactCounted16Keys32(void* table, uint16_t* slot_counts, size_t slots, uint64_t untouched, uint32_t first,
                              uint32_t* keys, void* accs, uint32_t* counts) {
  return CompactCountedT(table, slot_counts, slots, untouched, first, keys, accs, counts);
}
size_t CompactCounted16Keys64(void* table, uint16_t* slot_counts, size_t slots, uint64_t untouched, uint64_t first,
                              uint64_t* keys, void* accs, uint32_t* counts) {
  return CompactCountedT(table, slot_counts, slots, untouched, first, keys, accs, counts);
}
size_t CompactCounted32Keys32(void* table, uint32_t* slot_counts, size_t slots, uint64_t untouched, uint32_t first,
                              uint32_t* keys, void* accs, uint32_t* counts) {
  return CompactCountedT(table, slot_counts, slots, untouched, first, keys, accs, counts);
}
size_t CompactCounted32Keys64(void* table, uint32_t* slot_counts, size_t slots, uint64_t untouched, uint64_t first,
                              uint64_t* keys, void* accs, uint32_t* counts) {
  return CompactCountedT(table, slot_counts, slots, untouched, first, keys, accs, counts);
}

void RoundToFloat32(const double* values, size_t count, float* out) {
  const Doubles d;
  const Floats df;
  const auto nan = hn::Set(df, std::numeric_limits<float>::quiet_NaN());
  ForVectors(count, [&](size_t i, size_t n) HWY_ATTR {
    const auto rounded = hn::DemoteTo(df, LoadSome(d, values + i, n));
    const auto normal = hn::IfThenElse(hn::IsNaN(rounded), nan, hn::Add(rounded, hn::Zero(df)));
    if (n == hn::Lanes(df)) {
      hn::StoreU(normal, df, out + i);
    } else {
      hn::BlendedStore(normal, hn::FirstN(df, n), df, out + i);
    }
  });
}

void ScaleIntegers(const int64_t* values, size_t count, double unit, double* out) {
  const Doubles d;
  const SignedLongs di;
  const auto factor = hn::Set(d, unit);
  ForVectors(count, [&](size_t i, size_t n) HWY_ATTR {
    const auto scaled = hn::Mul(hn::ConvertTo(d, LoadSome(di, values + i, n)), factor);
    if (n == hn::Lanes(d)) {
      hn::StoreU(scaled, d, out + i);
    } else {
      hn::BlendedStore(scaled, hn::FirstN(d, n), d, out + i);
    }
  });
}

void Divide(double* values, size_t count, double divisor) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, divisor);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Div(hn::LoadU(d, values + i), by), d, values + i);
  for (; i < count; ++i) values[i] /= divisor;
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::cpu {

HWY_EXPORT(LoadFloat32);
HWY_EXPORT(LoadFloat64);
HWY_EXPORT(LoadFloat16);
HWY_EXPORT(LoadBFloat16);
HWY_EXPORT(QuantiseTerms);
HWY_EXPORT(CountUpTo32);
HWY_EXPORT(CountUpTo64);
HWY_EXPORT(FindBeyond);
HWY_EXPORT(AddRow);
HWY_EXPORT(CompactMarked32);
HWY_EXPORT(CompactMarked64);
HWY_EXPORT(CompactCounted16Keys32);
HWY_EXPORT(CompactCounted16Keys64);
HWY_EXPORT(CompactCounted32Keys32);
HWY_EXPORT(CompactCounted32Keys64);
HWY_EXPORT(RoundToFloat32);
HWY_EXPORT(ScaleIntegers);
HWY_EXPORT(Divide);

void LoadFloat32(const void* values, size_t count, size_t readable, double weight, double* terms) {
  HWY_DYNAMIC_DISPATCH(LoadFloat32)(values, count, readable, weight, terms);
}
void LoadFloat64(const void* values, size_t count, size_t readable, double weight, double* terms) {
  HWY_DYNAMIC_DISPATCH(LoadFloat64)(values, count, readable, weight, terms);
}
void LoadFloat16(const void* values, size_t count, size_t readable, double weight, double* terms) {
  HWY_DYNAMIC_DISPATCH(LoadFloat16)(values, count, readable, weight, terms);
}
void LoadBFloat16(const void* values, size_t count, size_t readable, double weight, double* terms) {
  HWY_DYNAMIC_DISPATCH(LoadBFloat16)(values, count, readable, weight, terms);
}
void QuantiseTerms(const double* products, size_t count, double bound, double scale, int64_t* terms) {
  HWY_DYNAMIC_DISPATCH(QuantiseTerms)(products, count, bound, scale, terms);
}
size_t CountUpTo(const uint32_t* keys, size_t count, uint32_t last) {
  return HWY_DYNAMIC_DISPATCH(CountUpTo32)(keys, count, last);
}
size_t CountUpTo(const uint64_t* keys, size_t count, uint64_t last) {
  return HWY_DYNAMIC_DISPATCH(CountUpTo64)(keys, count, last);
}
size_t FindBeyond(const double* products, size_t count, double bound) {
  return HWY_DYNAMIC_DISPATCH(FindBeyond)(products, count, bound);
}
void AddRow(double* row, const double* terms, size_t count) { HWY_DYNAMIC_DISPATCH(AddRow)(row, terms, count); }
size_t CompactMarked(void* table, size_t slots, uint64_t untouched, uint32_t first, uint32_t* keys, void* accs) {
  return HWY_DYNAMIC_DISPATCH(CompactMarked32)(table, slots, untouched, first, keys, accs);
}
size_t CompactMarked(void* table, size_t slots, uint64_t untouched, uint64_t first, uint64_t* keys, void* accs) {
  return HWY_DYNAMIC_DISPATCH(CompactMarked64)(table, slots, untouched, first, keys, accs);
}
size_t CompactCounted(void* table, uint16_t* slot_counts, size_t slots, uint64_t untouched, uint32_t first,
                      uint32_t* keys, void* accs, uint32_t* counts) {
  return HWY_DYNAMIC_DISPATCH(CompactCounted16Keys32)(table, slot_counts, slots, untouched, first, keys, accs, counts);
}
size_t CompactCounted(void* table, uint16_t* slot_counts, size_t slots, uint64_t untouched, uint64_t first,
                      uint64_t* keys, void* accs, uint32_t* counts) {
  return HWY_DYNAMIC_DISPATCH(CompactCounted16Keys64)(table, slot_counts, slots, untouched, first, keys, accs, counts);
}
size_t CompactCounted(void* table, uint32_t* slot_counts, size_t slots, uint64_t untouched, uint32_t first,
                      uint32_t* keys, void* accs, uint32_t* counts) {
  return HWY_DYNAMIC_DISPATCH(CompactCounted32Keys32)(table, slot_counts, slots, untouched, first, keys, accs, counts);
}
size_t CompactCounted(void* table, uint32_t* slot_counts, size_t slots, uint64_t untouched, uint64_t first,
                      uint64_t* keys, void* accs, uint32_t* counts) {
  return HWY_DYNAMIC_DISPATCH(CompactCounted32Keys64)(table, slot_counts, slots, untouched, first, keys, accs, counts);
}
void RoundToFloat32(const double* values, size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(RoundToFloat32)(values, count, out);
}
void ScaleIntegers(const int64_t* values, size_t count, double unit, double* out) {
  HWY_DYNAMIC_DISPATCH(ScaleIntegers)(values, count, unit, out);
}
void Divide(double* values, size_t count, double divisor) { HWY_DYNAMIC_DISPATCH(Divide)(values, count, divisor); }

std::vector<std::string> SimdTargets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

std::string CurrentSimdTarget() { return SimdTargets().front(); }

absl::Status ForceSimdTarget(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  if (!name.empty()) {
    const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
    const auto chosen =
        std::find_if(targets.begin(), targets.end(), [&](int64_t target) { return name == hwy::TargetName(target); });
    if (chosen == targets.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("no SIMD target '", name, "' on this machine; it has ", absl::StrJoin(SimdTargets(), ", ")));
    }
    hwy::SetSupportedTargetsForTest(*chosen);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return absl::OkStatus();
}

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
