#include "host/cpu/sweep_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/sweep_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes them again for each target.
#include "host/cpu/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

constexpr size_t kMaxLanes = HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(double);

// Terms of a float64 sum.
struct FloatTerms {
  using Acc = double;
  using Lanes = Doubles;
  explicit FloatTerms(double weight) : factor(hn::Set(Doubles(), weight)) {}
  HWY_INLINE hn::Vec<Doubles> operator()(hn::Vec<Doubles> widened) const { return MakeTerms(widened, factor); }
  hn::Vec<Doubles> factor;
};

// Terms of a fixed-point sum.
struct FixedTerms {
  using Acc = int64_t;
  using Lanes = SignedLongs;
  FixedTerms(double weight, double bound, double scale) : factor(hn::Set(Doubles(), weight)), quantise(bound, scale) {}
  HWY_INLINE hn::Vec<SignedLongs> operator()(hn::Vec<Doubles> widened) const {
    return quantise(hn::Mul(widened, factor));
  }
  hn::Vec<Doubles> factor;
  Quantiser quantise;
};

struct NoCount {};

// The counters must not be a character type, or the compiler would think that they alias the keys.
enum class Count8 : uint8_t {};

HWY_INLINE void CountOne(NoCount*, uint64_t) {}
HWY_INLINE void CountOne(Count8* counts, uint64_t slot) {
  counts[slot] = static_cast<Count8>(static_cast<unsigned>(counts[slot]) + 1);
}
HWY_INLINE void CountOne(uint16_t* counts, uint64_t slot) { ++counts[slot]; }
HWY_INLINE void CountOne(uint32_t* counts, uint64_t slot) { ++counts[slot]; }

// A function of its own for each combination: inlined, they are too much for the compiler.

// One value a key. The products of a vector of tuples are made side by side; adding them is scalar, since AVX-512's
// gather and scatter are slower. A cursor's keys are distinct, so the sums of one vector are independent.
template <DType kDType, class Key, class Terms, class Count>
HWY_NOINLINE uint64_t AddKeys(const Cursor<Key>& cursor, Key first, Key last, const Terms& terms,
                              typename Terms::Acc* HWY_RESTRICT table, Count* HWY_RESTRICT counts) {
  const typename Terms::Lanes d;
  const size_t lanes = hn::Lanes(d);
  const Key* HWY_RESTRICT keys = cursor.keys;
  HWY_ALIGN typename Terms::Acc buffer[kMaxLanes] = {};
  const auto add = [&](uint64_t i, size_t j) HWY_ATTR {
    const auto slot = static_cast<uint64_t>(static_cast<Key>(keys[i + j] - first));
    table[slot] += buffer[j];
    CountOne(counts, slot);
  };
  uint64_t i = cursor.position;
  for (; i + lanes <= cursor.end && keys[i + lanes - 1] <= last; i += lanes) {
    hn::Store(terms(LoadDoubles<kDType>(cursor.values, i, lanes)), d, buffer);
    for (size_t j = 0; j < lanes; ++j) add(i, j);
  }
  if (i < cursor.end && keys[i] <= last) {
    const size_t n = HWY_MIN(lanes, cursor.end - i);
    hn::Store(terms(LoadDoubles<kDType>(cursor.values, i, n)), d, buffer);
    size_t j = 0;
    do {
      add(i, j);
    } while (++j < n && keys[i + j] <= last);
    i += j;
  }
  return i;
}

// accs[c] += term of values[index + c], for `count` consecutive values.
template <DType kDType, class Terms>
HWY_NOINLINE void AddRun(const std::byte* values, uint64_t index, uint64_t count, const Terms& terms,
                         typename Terms::Acc* HWY_RESTRICT accs) {
  const typename Terms::Lanes d;
  const size_t lanes = hn::Lanes(d);
  uint64_t c = 0;
  for (; c + lanes <= count; c += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, accs + c), terms(LoadDoubles<kDType>(values, index + c, lanes))), d, accs + c);
  }
  if (c == count) return;
  HWY_ALIGN typename Terms::Acc buffer[kMaxLanes] = {};
  hn::Store(terms(LoadDoubles<kDType>(values, index + c, count - c)), d, buffer);
  for (size_t j = 0; c < count; ++c, ++j) accs[c] += buffer[j];
}

template <DType kDType, class Key, class Terms, class Count>
HWY_NOINLINE uint64_t AddRows(const Cursor<Key>& cursor, const SweepWindow<Key>& window, const Terms& terms,
                              typename Terms::Acc* HWY_RESTRICT table, Count* HWY_RESTRICT counts) {
  uint64_t i = cursor.position;
  for (; i < cursor.end && cursor.keys[i] <= window.last; ++i) {
    const auto slot = static_cast<uint64_t>(static_cast<Key>(cursor.keys[i] - window.first));
    AddRun<kDType>(cursor.values, i * window.columns, window.columns, terms, table + slot * window.columns);
    CountOne(counts, slot);
  }
  return i;
}

template <DType kDType, class Key, class Terms, class Count>
HWY_INLINE uint64_t AddCursor(const Cursor<Key>& cursor, const SweepWindow<Key>& window, const Terms& terms,
                              typename Terms::Acc* table, Count* counts) {
  if (cursor.keys == nullptr) {
    const uint64_t rows = cursor.CountTo(window.last);
    if (rows == 0) return cursor.position;
    const uint64_t slot = cursor[cursor.position] - window.first;
    AddRun<kDType>(cursor.values, cursor.position * window.columns, rows * window.columns, terms,
                   table + slot * window.columns);
    for (uint64_t i = 0; i < rows; ++i) CountOne(counts, slot + i);
    return cursor.position + rows;
  }
  if (window.columns > 1) return AddRows<kDType>(cursor, window, terms, table, counts);
  return AddKeys<kDType>(cursor, window.first, window.last, terms, table, counts);
}

// How many cursors ahead memory is asked for: with many small updates each visit begins at cold lines.
constexpr size_t kPrefetch = 8;

template <class Key, class MakeTermsOf, class Count>
HWY_INLINE uint64_t AddCursors(const SweepWindow<Key>& window, MakeTermsOf make_terms, Count* counts) {
  using Acc = typename decltype(make_terms(1.0))::Acc;
  auto* table = static_cast<Acc*>(window.table);
  uint64_t tuples = 0;
  for (size_t k = 0; k < window.num_cursors; ++k) {
    if (k + kPrefetch < window.num_cursors) {
      const Cursor<Key>& ahead = window.cursors[k + kPrefetch];
      if (ahead.keys != nullptr) __builtin_prefetch(ahead.keys + ahead.position);
      __builtin_prefetch(ahead.values + ahead.position * SizeOf(ahead.dtype) * window.columns);
    }
    Cursor<Key>& cursor = window.cursors[k];
    const auto terms = make_terms(cursor.weight);
    uint64_t position = cursor.position;
    switch (cursor.dtype) {
      case DType::kFloat32:
        position = AddCursor<DType::kFloat32>(cursor, window, terms, table, counts);
        break;
      case DType::kFloat64:
        position = AddCursor<DType::kFloat64>(cursor, window, terms, table, counts);
        break;
      case DType::kFloat16:
        position = AddCursor<DType::kFloat16>(cursor, window, terms, table, counts);
        break;
      default:
        position = AddCursor<DType::kBFloat16>(cursor, window, terms, table, counts);
        break;
    }
    tuples += position - cursor.position;
    cursor.position = position;
  }
  return tuples;
}

template <class Key, class MakeTermsOf>
HWY_INLINE uint64_t AddCounted(const SweepWindow<Key>& window, MakeTermsOf make_terms) {
  switch (window.count_bytes) {
    case CountBytes::kNone:
      return AddCursors(window, make_terms, static_cast<NoCount*>(nullptr));
    case CountBytes::kOne:
      return AddCursors(window, make_terms, static_cast<Count8*>(window.counts));
    case CountBytes::kTwo:
      return AddCursors(window, make_terms, static_cast<uint16_t*>(window.counts));
    case CountBytes::kFour:
      return AddCursors(window, make_terms, static_cast<uint32_t*>(window.counts));
  }
  return 0;
}

template <class Key>
HWY_INLINE uint64_t AddToTableT(const SweepWindow<Key>& window) {
  if (!window.fixed) return AddCounted(window, [](double weight) HWY_ATTR { return FloatTerms(weight); });
  return AddCounted(window,
                    [&window](double weight) HWY_ATTR { return FixedTerms(weight, window.bound, window.scale); });
}

uint64_t AddToTable32(const SweepWindow<uint32_t>& window) { return AddToTableT(window); }
uint64_t AddToTable64(const SweepWindow<uint64_t>& window) { return AddToTableT(window); }

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

// Compresses in registers and stores whole vectors: what lies behind the last row is overwritten by the next store,
// and the caller's slack takes the last one. (The compressing store to memory is slow on some machines.)
template <class Count, class Key>
HWY_INLINE size_t CompactT(const SlotTable& table, Key first, Key* keys, void* accs, uint32_t* counts) {
  constexpr bool kCounted = !std::is_same_v<Count, NoCount>;
  auto* slot_bits = static_cast<uint64_t*>(table.accs);
  auto* slot_counts = static_cast<Count*>(table.counts);
  auto* out = static_cast<uint64_t*>(accs);
  const Longs d;
  const Words dw;
  const auto fresh = hn::Set(d, table.untouched);
  const size_t lanes = hn::Lanes(d);
  size_t rows = 0;
  size_t slot = 0;
  auto key = hn::Iota(d, first);
  const auto step = hn::Set(d, lanes);
  for (; slot + lanes <= table.slots; slot += lanes) {
    const auto acc = hn::LoadU(d, slot_bits + slot);
    auto count = hn::Zero(d);
    if constexpr (kCounted) count = TakeCounts(slot_counts + slot);
    const auto touched = kCounted ? hn::Ne(count, hn::Zero(d)) : hn::Ne(acc, fresh);
    hn::StoreU(fresh, d, slot_bits + slot);
    StoreKeys(CompressLongs(key, touched), keys + rows);
    hn::StoreU(CompressLongs(acc, touched), d, out + rows);
    if constexpr (kCounted) hn::StoreU(hn::TruncateTo(dw, CompressLongs(count, touched)), dw, counts + rows);
    rows += hn::CountTrue(d, touched);
    key = hn::Add(key, step);
  }
  for (; slot < table.slots; ++slot) {
    uint64_t acc;  // copied as bytes: the slots are of some other type
    __builtin_memcpy(&acc, slot_bits + slot, sizeof(acc));
    if constexpr (kCounted) {
      if (slot_counts[slot] == 0) continue;
      counts[rows] = slot_counts[slot];
      slot_counts[slot] = 0;
    } else {
      if (acc == table.untouched) continue;
    }
    keys[rows] = static_cast<Key>(first + slot);
    __builtin_memcpy(out + rows++, &acc, sizeof(acc));
    __builtin_memcpy(slot_bits + slot, &table.untouched, sizeof(acc));
  }
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

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::cpu {

HWY_EXPORT(AddToTable32);
HWY_EXPORT(AddToTable64);
HWY_EXPORT(Compact32);
HWY_EXPORT(Compact64);

uint64_t AddToTable(const SweepWindow<uint32_t>& window) { return HWY_DYNAMIC_DISPATCH(AddToTable32)(window); }
uint64_t AddToTable(const SweepWindow<uint64_t>& window) { return HWY_DYNAMIC_DISPATCH(AddToTable64)(window); }
size_t Compact(const SlotTable& table, uint32_t first, uint32_t* keys, void* accs, uint32_t* counts) {
  return HWY_DYNAMIC_DISPATCH(Compact32)(table, first, keys, accs, counts);
}
size_t Compact(const SlotTable& table, uint64_t first, uint64_t* keys, void* accs, uint32_t* counts) {
  return HWY_DYNAMIC_DISPATCH(Compact64)(table, first, keys, accs, counts);
}

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
