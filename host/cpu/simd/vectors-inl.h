// Loads, terms and output of rows that the CPU engine's kernels share, once for each SIMD target.
#if defined(SPARSEAGG_HOST_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSEAGG_HOST_CPU_VECTORS_INL_H_
#undef SPARSEAGG_HOST_CPU_VECTORS_INL_H_
#else
#define SPARSEAGG_HOST_CPU_VECTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "host/base/vectors-inl.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/simd/kernels.h"
#include "host/spec/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using simd::HWY_NAMESPACE::Doubles;
using simd::HWY_NAMESPACE::Floats;
using simd::HWY_NAMESPACE::Halves;
using simd::HWY_NAMESPACE::LoadSome;
using simd::HWY_NAMESPACE::Longs;
using simd::HWY_NAMESPACE::SignedLongs;
using simd::HWY_NAMESPACE::StoreSome;
using simd::HWY_NAMESPACE::WidenHalf;
using simd::HWY_NAMESPACE::Words;

// Type of a slot's counter in tables without counters.
struct NoCount {};

// Calls use(counter, is_weighed) with a counter of the type that a SlotTable or TableWindow has, and std::true_type if
// it sums weights.
template <class Table, class Use>
HWY_INLINE auto WithColumns(const Table& table, Use use) {
  if (table.weights != nullptr) {
    return table.count_bytes == CountBytes::kNone ? use(NoCount(), std::true_type())
                                                  : use(uint32_t{}, std::true_type());
  }
  switch (table.count_bytes) {
    case CountBytes::kOne:
      return use(uint8_t{}, std::false_type());
    case CountBytes::kTwo:
      return use(uint16_t{}, std::false_type());
    case CountBytes::kFour:
      return use(uint32_t{}, std::false_type());
    default:
      return use(NoCount(), std::false_type());
  }
}

template <DType kDType>
using DTypeConstant = std::integral_constant<DType, kDType>;

// Calls use(dtype) with the float type `dtype` as a constant.
template <class Use>
HWY_INLINE auto WithFloatType(DType dtype, Use use) {
  switch (dtype) {
    case DType::kFloat64:
      return use(DTypeConstant<DType::kFloat64>());
    case DType::kFloat16:
      return use(DTypeConstant<DType::kFloat16>());
    case DType::kBFloat16:
      return use(DTypeConstant<DType::kBFloat16>());
    default:
      return use(DTypeConstant<DType::kFloat32>());
  }
}

// Returns: values [index, index + n) of dtype kDType, n ≤ Lanes(Doubles), widened exactly.
template <DType kDType>
HWY_INLINE hn::Vec<Doubles> LoadDoubles(const std::byte* values, size_t index, size_t n) {
  const Doubles d;
  const std::byte* from = values + index * SizeOf(kDType);
  if constexpr (kDType == DType::kFloat64) {
    return LoadSome(d, from, n);
  } else if constexpr (kDType == DType::kFloat16) {
    return hn::PromoteTo(d, WidenHalf(hn::PromoteTo(Words(), LoadSome(Halves(), from, n))));
  } else if constexpr (kDType == DType::kBFloat16) {
    const auto bits = hn::PromoteTo(Words(), LoadSome(Halves(), from, n));
    return hn::PromoteTo(d, hn::BitCast(Floats(), hn::ShiftLeft<16>(bits)));
  } else {
    return hn::PromoteTo(d, LoadSome(Floats(), from, n));
  }
}

// Multiplies widened values, as ValueScale says.
struct Scaler {
  explicit Scaler(ValueScale scale)
      : factor(hn::Set(Doubles(), scale.factor)), weight(hn::Set(Doubles(), scale.weight)) {}
  HWY_INLINE hn::Vec<Doubles> operator()(hn::Vec<Doubles> widened) const {
    return hn::Mul(hn::Mul(widened, factor), weight);
  }
  hn::Vec<Doubles> factor;
  hn::Vec<Doubles> weight;
};

// Makes terms of a float64 sum from widened values. Adding +0.0 turns −0.0 into +0.0 and changes nothing else, so terms
// are never −0.0 (see SumFloat).
struct FloatTerms {
  explicit FloatTerms(ValueScale by) : scale(by) {}
  HWY_INLINE hn::Vec<Doubles> operator()(hn::Vec<Doubles> widened) const {
    return hn::Add(Of(widened), hn::Zero(Doubles()));
  }
  // The same, but maybe −0.0: for sums that start from +0.0.
  HWY_INLINE hn::Vec<Doubles> Of(hn::Vec<Doubles> widened) const { return scale(widened); }
  Scaler scale;
};

// StoreSome, or, with kStreams, a store past the caches. kStreams requires n = Lanes(d) and aligned `to`.
template <bool kStreams, class D, class V>
HWY_INLINE void StoreOrStream(V v, D d, size_t n, hn::TFromD<D>* to) {
  // hn::Stream of a vector shorter than 16 bytes would write 16 bytes.
  if constexpr (kStreams && hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) >= 16) {
    hn::Stream(v, d, to);
  } else {
    StoreSome(v, d, n, to);
  }
}

// Returns: the values rounded to float32, to nearest even; NaN is canonical, −0.0 becomes +0.0.
HWY_INLINE hn::Vec<Floats> RoundToFloats(hn::Vec<Doubles> values) {
  const Floats df;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  // Highway 1.0.3: DemoteTo stops at the largest finite float on these targets, where IEEE 754 rounds to infinity.
  // Remove with a Highway that rounds to infinity.
  HWY_ALIGN double wide[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(double)];
  HWY_ALIGN float narrow[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(float)];
  hn::Store(values, Doubles(), wide);
  for (size_t i = 0; i < hn::Lanes(df); ++i) narrow[i] = static_cast<float>(wide[i]);
  const auto rounded = hn::Load(df, narrow);
#else
  const auto rounded = hn::DemoteTo(df, values);
#endif
  const auto nan = hn::Set(df, std::numeric_limits<float>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(rounded), nan, hn::Add(rounded, hn::Zero(df)));
}

// Returns: the values with canonical NaN, and +0.0 for −0.0.
HWY_INLINE hn::Vec<Doubles> NormaliseDoubles(hn::Vec<Doubles> values) {
  const Doubles d;
  const auto nan = hn::Set(d, std::numeric_limits<double>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(values), nan, hn::Add(values, hn::Zero(d)));
}

HWY_INLINE void StoreKeys(hn::Vec<Longs> keys, size_t n, uint64_t* out) { StoreSome(keys, Longs(), n, out); }
HWY_INLINE void StoreKeys(hn::Vec<Longs> keys, size_t n, uint32_t* out) {
  const Words dw;
  StoreSome(hn::TruncateTo(dw, keys), dw, n, out);
}

// Finishes the first n lanes of accumulators as the output says, and writes them to its values from `at` on. `divisors`
// is used if the output divides. kStreams: as for StoreOrStream.
template <bool kStreams = false>
HWY_INLINE void WriteValues(hn::Vec<Longs> accs, hn::Vec<Doubles> divisors, const DirectValues& output, uint64_t at,
                            size_t n) {
  const Doubles d;
  if (output.dtype == DType::kInt64) {
    return StoreOrStream<kStreams>(accs, Longs(), n, reinterpret_cast<uint64_t*>(output.values) + at);
  }
  auto sums = hn::BitCast(d, accs);
  if (output.divided_by != DividedBy::kNothing) sums = hn::Div(sums, divisors);
  if (output.dtype == DType::kFloat32) {
    StoreOrStream<kStreams>(RoundToFloats(sums), Floats(), n, reinterpret_cast<float*>(output.values) + at);
  } else {
    StoreOrStream<kStreams>(NormaliseDoubles(sums), d, n, reinterpret_cast<double*>(output.values) + at);
  }
}

// Returns: the divisor of each lane, as the output says; unspecified if it does not divide.
HWY_INLINE hn::Vec<Doubles> DivisorsOf(const DirectValues& output, hn::Vec<Longs> counts, hn::Vec<Doubles> weights) {
  const Doubles d;
  switch (output.divided_by) {
    case DividedBy::kCount:
      return hn::ConvertTo(d, hn::BitCast(SignedLongs(), counts));
    case DividedBy::kWeight:
      return weights;
    default:
      return hn::Set(d, output.total);
  }
}

// Writer of rows of one value to a direct output, in the order of rows.
template <class Key>
class DirectWriter {
 public:
  // `rows`: rows that the output has place for; behind them, another thread may write. `written`: rows written before.
  DirectWriter(const DirectOutput<Key>& output, uint64_t rows, uint64_t written = 0)
      : output_(output), rows_(rows), written_(written) {}

  // Writes the rows in the first n lanes. Counts and weights are ignored if the output does not want them.
  HWY_INLINE void Write(hn::Vec<Longs> keys, hn::Vec<Longs> accs, hn::Vec<Longs> counts, hn::Vec<Doubles> weights,
                        size_t n) {
    const Words dw;
    // Stores whole vectors while there is place: lanes behind the n rows are overwritten by the next rows.
    const size_t stored = written_ + hn::Lanes(dw) <= rows_ ? hn::Lanes(dw) : n;
    StoreKeys(keys, stored, output_.keys + written_);
    if (output_.counts != nullptr) StoreSome(hn::TruncateTo(dw, counts), dw, stored, output_.counts + written_);
    if (output_.weights != nullptr) StoreSome(weights, Doubles(), stored, output_.weights + written_);
    WriteValues(accs, DivisorsOf(output_, counts, weights), output_, written_, stored);
    written_ += n;
  }

 private:
  const DirectOutput<Key> output_;
  const uint64_t rows_;
  uint64_t written_;
};

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#endif  // SPARSEAGG_HOST_CPU_VECTORS_INL_H_
