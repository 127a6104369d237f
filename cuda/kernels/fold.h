// One struct for each op and type, which folds what sources add at one key. The fold kernels (fold_values.h,
// fold_listed.h, tile_body.h) take it.
#ifndef SPARSEAGG_CUDA_KERNELS_FOLD_H_
#define SPARSEAGG_CUDA_KERNELS_FOLD_H_

#include <cmath>
#include <cstdint>

#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"
#include "host/base/binned.h"

namespace sparseagg::cuda {

enum class FoldKind : uint8_t {
  kSumFloat,
  kSumInteger,
  kSumModular,
  kMinFloat,
  kMaxFloat,
  kMinInteger,
  kMaxInteger,
  kSumNarrowBinned,
  kSumWideBinned,
  // Of sources: each adds once to a key that it has, however often and whatever the values.
  kCountSources,
  kSumWeights,
  kSumBinnedWeights,
};

// A fold is a struct with two types:
//   Value   the sum of a source's duplicates of a key: starts at Zero(); Plus adds one, in order of occurrence; Term is
//           what the source adds for it;
//   Acc     the accumulator of a key: starts at Start(); Combine folds in a term or another Acc.
// TypeOf(bytes) is the type of values of 4 or 8 bytes. If kInOrder, the bits depend on the order of sources. Otherwise
// Combine is exact, associative and commutative, so that several threads may share the work on one key.

struct FloatValue {
  using Value = double;
  SPARSEAGG_HD static constexpr DType TypeOf(uint32_t bytes) { return bytes == 8 ? DType::kFloat64 : DType::kFloat32; }
  SPARSEAGG_HD static Value Zero() { return 0.0; }
  SPARSEAGG_HD static Value Of(DType type, uint64_t bits) { return FloatOf(type, bits); }
  SPARSEAGG_HD static Value Plus(Value a, Value b) { return AddRn(a, b); }
  SPARSEAGG_HD static double Weighted(Value value, const Source& source) {
    return MulRn(source.weight, MulRn(source.factor, value));
  }
};

// Intermediate sums may wrap. A source's total at one key fits int64, which was checked when the update was prepared.
struct IntegerValue {
  using Value = int64_t;
  SPARSEAGG_HD static constexpr DType TypeOf(uint32_t bytes) { return bytes == 8 ? DType::kInt64 : DType::kInt32; }
  SPARSEAGG_HD static Value Zero() { return 0; }
  SPARSEAGG_HD static Value Of(DType type, uint64_t bits) { return IntegerOf(type, bits); }
  SPARSEAGG_HD static Value Plus(Value a, Value b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};

struct SumFloat : FloatValue {
  using Acc = double;
  static constexpr FoldKind kKind = FoldKind::kSumFloat;
  static constexpr bool kInOrder = true;
  SPARSEAGG_HD static Acc Start() { return 0.0; }
  SPARSEAGG_HD static double Term(Value value, const Source& source) { return Weighted(value, source); }
  SPARSEAGG_HD static Acc Combine(Acc a, Acc b) { return AddRn(a, b); }
};

// Sums in 128 bits, so that only the total can overflow int64, not an intermediate sum.
struct SumInteger : IntegerValue {
  using Acc = __int128;
  static constexpr FoldKind kKind = FoldKind::kSumInteger;
  static constexpr bool kInOrder = false;
  SPARSEAGG_HD static Acc Start() { return 0; }
  // Fits int64 for unique keys: checked when the update was prepared.
  SPARSEAGG_HD static Acc Term(Value value, const Source& source) {
    return static_cast<Acc>(value) * source.integer_weight;
  }
  // Sums of some of a source's duplicates may wrap. Their total fits.
  SPARSEAGG_HD static Acc Combine(Acc a, Acc b) {
    return static_cast<Acc>(static_cast<unsigned __int128>(a) + static_cast<unsigned __int128>(b));
  }
};

// Sums of uint32 are kept modulo 2^64; the low 32 bits are the sum modulo 2^32.
struct SumModular {
  using Value = uint64_t;
  using Acc = uint64_t;
  static constexpr FoldKind kKind = FoldKind::kSumModular;
  static constexpr bool kInOrder = false;
  SPARSEAGG_HD static constexpr DType TypeOf(uint32_t bytes) { return bytes == 8 ? DType::kUInt64 : DType::kUInt32; }
  SPARSEAGG_HD static Value Zero() { return 0; }
  SPARSEAGG_HD static Value Of(DType, uint64_t bits) { return bits; }
  SPARSEAGG_HD static Value Plus(Value a, Value b) { return a + b; }
  SPARSEAGG_HD static Acc Start() { return 0; }
  SPARSEAGG_HD static Value Term(Value value, const Source&) { return value; }
  SPARSEAGG_HD static Acc Combine(Acc a, Acc b) { return a + b; }
};

// If any term is NaN, the result is NaN.
template <FoldKind kFold>
struct FloatExtremum : FloatValue {
  using Acc = double;
  static constexpr FoldKind kKind = kFold;
  static constexpr bool kInOrder = false;
  static constexpr bool kIsMin = kFold == FoldKind::kMinFloat;
  SPARSEAGG_HD static Acc Start() {
    return BitsAs<double>(kIsMin ? uint64_t{0x7ff0000000000000} : uint64_t{0xfff0000000000000});
  }
  SPARSEAGG_HD static Value Term(Value value, const Source& source) { return MulRn(source.factor, value); }
  SPARSEAGG_HD static Acc Combine(Acc a, Acc b) { return (kIsMin ? b < a : b > a) || IsNan(b) ? b : a; }
};
using MinFloat = FloatExtremum<FoldKind::kMinFloat>;
using MaxFloat = FloatExtremum<FoldKind::kMaxFloat>;

template <FoldKind kFold>
struct IntegerExtremum : IntegerValue {
  using Acc = int64_t;
  static constexpr FoldKind kKind = kFold;
  static constexpr bool kInOrder = false;
  static constexpr bool kIsMin = kFold == FoldKind::kMinInteger;
  SPARSEAGG_HD static Acc Start() { return kIsMin ? INT64_MAX : INT64_MIN; }
  SPARSEAGG_HD static Value Term(Value value, const Source&) { return value; }
  SPARSEAGG_HD static Acc Combine(Acc a, Acc b) { return (kIsMin ? b < a : b > a) ? b : a; }
};
using MinInteger = IntegerExtremum<FoldKind::kMinInteger>;
using MaxInteger = IntegerExtremum<FoldKind::kMaxInteger>;

template <class Sum, FoldKind kFold>
struct SumBinned : FloatValue {
  using Acc = Sum;
  static constexpr FoldKind kKind = kFold;
  static constexpr bool kInOrder = false;
  SPARSEAGG_HD static Acc Start() { return Sum(); }
  SPARSEAGG_HD static Value Term(Value value, const Source& source) { return Weighted(value, source); }
  SPARSEAGG_HD static Acc Combine(Acc acc, Value term) {
    acc.Add(term);
    return acc;
  }
  SPARSEAGG_HD static Acc Combine(Acc a, const Acc& b) {
    a.Merge(b);
    return a;
  }
};
using SumNarrowBinned = SumBinned<NarrowBinnedSum, FoldKind::kSumNarrowBinned>;
using SumWideBinned = SumBinned<WideBinnedSum, FoldKind::kSumWideBinned>;

struct CountSources : FloatValue {
  using Acc = uint32_t;
  static constexpr FoldKind kKind = FoldKind::kCountSources;
  static constexpr bool kInOrder = false;
  SPARSEAGG_HD static Acc Start() { return 0; }
  SPARSEAGG_HD static Acc Term(Value, const Source&) { return 1; }
  SPARSEAGG_HD static Acc Combine(Acc a, Acc b) { return a + b; }
};
struct SumWeights : SumFloat {
  static constexpr FoldKind kKind = FoldKind::kSumWeights;
  SPARSEAGG_HD static double Term(Value, const Source& source) { return source.key_weight; }
};
struct SumBinnedWeights : SumWideBinned {
  static constexpr FoldKind kKind = FoldKind::kSumBinnedWeights;
  SPARSEAGG_HD static double Term(Value, const Source& source) { return source.key_weight; }
};

// Calls use(Fold()) with the fold of `kind`, which must be one of values. Returns: what `use` returns.
template <typename Use>
auto WithFoldOfValues(FoldKind kind, Use&& use) {
  switch (kind) {
    case FoldKind::kSumFloat:
      return use(SumFloat());
    case FoldKind::kSumInteger:
      return use(SumInteger());
    case FoldKind::kSumModular:
      return use(SumModular());
    case FoldKind::kMinFloat:
      return use(MinFloat());
    case FoldKind::kMaxFloat:
      return use(MaxFloat());
    case FoldKind::kMinInteger:
      return use(MinInteger());
    case FoldKind::kMaxInteger:
      return use(MaxInteger());
    case FoldKind::kSumNarrowBinned:
      return use(SumNarrowBinned());
    default:
      return use(SumWideBinned());
  }
}
// The same with a fold of any kind.
template <typename Use>
auto WithFold(FoldKind kind, Use&& use) {
  switch (kind) {
    case FoldKind::kCountSources:
      return use(CountSources());
    case FoldKind::kSumWeights:
      return use(SumWeights());
    case FoldKind::kSumBinnedWeights:
      return use(SumBinnedWeights());
    default:
      return WithFoldOfValues(kind, use);
  }
}

SPARSEAGG_HD constexpr bool IsOfSources(FoldKind kind) { return kind >= FoldKind::kCountSources; }
SPARSEAGG_HD constexpr bool IsBinned(FoldKind kind) {
  return kind == FoldKind::kSumNarrowBinned || kind == FoldKind::kSumWideBinned || kind == FoldKind::kSumBinnedWeights;
}

// Whether the fold is one of float values, so that no accumulator is out of range.
SPARSEAGG_HD constexpr bool IsOfFloats(FoldKind kind) {
  return kind == FoldKind::kSumFloat || kind == FoldKind::kMinFloat || kind == FoldKind::kMaxFloat ||
         (IsBinned(kind) && !IsOfSources(kind));
}
// Whether a source's duplicates may be added one by one.
SPARSEAGG_HD constexpr bool IsLinear(FoldKind kind) {
  return kind == FoldKind::kSumInteger || kind == FoldKind::kSumModular;
}
// Returns: the value of an accumulator of floats.
SPARSEAGG_HD inline double ValueOf(double acc) { return acc; }
template <class Sum>
SPARSEAGG_HD double ValueOf(const Sum& acc) {
  return acc.Value();
}

// Bytes of an accumulator of values in memory, but for the byte of a binned sum in Accs::d_tops.
SPARSEAGG_HD constexpr uint32_t AccBytes(FoldKind kind) {
  if (kind == FoldKind::kSumWideBinned) return WideBinnedSum::kBins * sizeof(int64_t);
  return kind == FoldKind::kSumInteger || kind == FoldKind::kSumNarrowBinned ? 16 : 8;
}

// Accumulators in memory, one after another: a column of UnfinishedRows.
struct Accs {
  void* d_accs = nullptr;     // the fold's Acc; of binned sums of values the digits, of weights BinnedWeights
  uint8_t* d_tops = nullptr;  // of binned sums of values: BinnedSum::top; else null

  // Loads or stores kCount accumulators from number pack × kCount on.
  template <typename Fold, uint32_t kCount>
  SPARSEAGG_HD Pack<typename Fold::Acc, kCount> Load(uint64_t pack) const {
    if constexpr (IsBinned(Fold::kKind)) {
      Pack<typename Fold::Acc, kCount> accs;
      ForColumns<kCount>([&](uint32_t c) { accs.values[c] = LoadBinned<Fold>(pack * kCount + c); });
      return accs;
    } else {
      return static_cast<const Pack<typename Fold::Acc, kCount>*>(d_accs)[pack];
    }
  }
  template <typename Fold, uint32_t kCount>
  SPARSEAGG_HD void Store(uint64_t pack, const Pack<typename Fold::Acc, kCount>& accs) const {
    if constexpr (IsBinned(Fold::kKind)) {
      ForColumns<kCount>([&](uint32_t c) { StoreBinned<Fold>(pack * kCount + c, accs.values[c]); });
    } else {
      static_cast<Pack<typename Fold::Acc, kCount>*>(d_accs)[pack] = accs;
    }
  }

 private:
  template <typename Fold>
  SPARSEAGG_HD typename Fold::Acc LoadBinned(uint64_t i) const {
    if constexpr (IsOfSources(Fold::kKind)) {
      return static_cast<const BinnedWeights*>(d_accs)[i].Sum();
    } else {
      typename Fold::Acc sum;
      const auto* digits = static_cast<const int64_t*>(d_accs) + i * sum.kBins;
      SPARSEAGG_UNROLL
      for (int k = 0; k < sum.kBins; ++k) sum.digits[k] = digits[k];
      sum.top = d_tops[i];
      return sum;
    }
  }
  template <typename Fold>
  SPARSEAGG_HD void StoreBinned(uint64_t i, const typename Fold::Acc& sum) const {
    if constexpr (IsOfSources(Fold::kKind)) {
      static_cast<BinnedWeights*>(d_accs)[i] = BinnedWeights::Of(sum);
    } else {
      auto* digits = static_cast<int64_t*>(d_accs) + i * sum.kBins;
      SPARSEAGG_UNROLL
      for (int k = 0; k < sum.kBins; ++k) digits[k] = sum.digits[k];
      d_tops[i] = sum.top;
    }
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_FOLD_H_
