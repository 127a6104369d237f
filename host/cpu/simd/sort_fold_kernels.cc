#include <type_traits>

#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/simd/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/simd/sort_fold_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes them again for each target.
#include "host/cpu/simd/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

// Returns: for each lane, whether the key of its word equals the key of the next word.
HWY_INLINE hn::Mask<Longs> SameAsNext(const uint64_t* words) {
  const Longs d;
  const auto differing = hn::Xor(hn::LoadU(d, words), hn::LoadU(d, words + 1));
  return hn::Eq(hn::ShiftRight<32>(differing), hn::Zero(d));
}

bool SameAsNextOne(const uint64_t* words) { return (words[0] ^ words[1]) >> 32 == 0; }

size_t CountKeysOf(const CollectedTuples& tuples) {
  const size_t lanes = hn::Lanes(Longs());
  size_t repeats = 0;
  size_t i = 0;
  for (; i + lanes < tuples.size; i += lanes) repeats += hn::CountTrue(Longs(), SameAsNext(tuples.words + i));
  for (; i + 1 < tuples.size; ++i) repeats += SameAsNextOne(tuples.words + i) ? 1 : 0;
  return tuples.size - repeats;
}

template <DType kDType>
HWY_INLINE hn::Vec<Doubles> ValuesOf(hn::Vec<Longs> words) {
  const Doubles d;
  const auto bits = hn::TruncateTo(Words(), words);
  if constexpr (kDType == DType::kFloat16) {
    return hn::PromoteTo(d, WidenHalf(hn::And(bits, hn::Set(Words(), 0xffffu))));
  } else if constexpr (kDType == DType::kBFloat16) {
    return hn::PromoteTo(d, hn::BitCast(Floats(), hn::ShiftLeft<16>(bits)));
  } else {
    return hn::PromoteTo(d, hn::BitCast(Floats(), bits));
  }
}

// Terms of values in the words. All have the same scale, so weights are not summed here.
template <DType kDType, class Terms>
struct PayloadTerms {
  using Acc = typename Terms::Acc;
  static constexpr bool kWeighed = false;
  HWY_INLINE auto TermsOf(hn::Vec<Longs> words) const { return terms(ValuesOf<kDType>(words)); }
  HWY_INLINE hn::Vec<Longs> WeightsOf(hn::Vec<Longs>) const { return hn::Zero(Longs()); }
  const Terms terms;
};

// Terms, and weights, to which the words hold indexes.
template <class TermAcc, bool kHasWeights>
struct IndexedTerms {
  using Acc = TermAcc;
  static constexpr bool kWeighed = kHasWeights;
  HWY_INLINE auto TermsOf(hn::Vec<Longs> words) const {
    return hn::GatherIndex(hn::Rebind<Acc, Doubles>(), terms, IndexesOf(words));
  }
  HWY_INLINE hn::Vec<Longs> WeightsOf(hn::Vec<Longs> words) const {
    if constexpr (!kHasWeights) return hn::Zero(Longs());
    return hn::GatherIndex(Longs(), weights, IndexesOf(words));
  }
  static HWY_INLINE hn::Vec<SignedLongs> IndexesOf(hn::Vec<Longs> words) {
    return hn::BitCast(SignedLongs(), hn::And(words, hn::Set(Longs(), 0xffffffffu)));
  }
  const Acc* terms;
  const uint64_t* weights;
};

// Adds a weight to a sum of weights, in the arithmetic that goes with the accumulators.
template <class Acc>
HWY_INLINE void AddWeightTo(uint64_t& sum, uint64_t weight) {
  AddWeight(std::is_same_v<Acc, double> ? KeyWeights::kFloat : KeyWeights::kFixed, weight, sum);
}

// Rows that were made one by one, and are finished and written a vector at a time.
template <class Key, class Acc>
class StagedRows {
 public:
  explicit StagedRows(DirectWriter<Key>& writer) : writer_(writer) {}
  HWY_INLINE void Push(uint64_t key, Acc acc, uint64_t count, uint64_t weight) {
    keys_[size_] = key;
    accs_[size_] = acc;
    counts_[size_] = count;
    weights_[size_] = weight;
    if (++size_ == kCapacity) Flush();
  }
  HWY_INLINE void Flush() {
    const Longs d;
    for (size_t i = 0; i < size_; i += hn::Lanes(d)) {
      const auto accs = hn::BitCast(d, hn::Load(hn::Rebind<Acc, Doubles>(), accs_ + i));
      writer_.template Write<Acc>(hn::Load(d, keys_ + i), accs, hn::Load(d, counts_ + i), hn::Load(d, weights_ + i),
                                  HWY_MIN(hn::Lanes(d), size_ - i));
    }
    size_ = 0;
  }

 private:
  static constexpr size_t kCapacity = 128;
  DirectWriter<Key>& writer_;
  size_t size_ = 0;
  HWY_ALIGN uint64_t keys_[kCapacity] = {};
  HWY_ALIGN Acc accs_[kCapacity] = {};
  HWY_ALIGN uint64_t counts_[kCapacity] = {};
  HWY_ALIGN uint64_t weights_[kCapacity] = {};
};

// Folds all tuples. Most sparse keys come once: a vector of tuples without equal neighbours is finished as it is,
// without a loop over its lanes. Other tuples are added one by one.
template <class Key, class Source>
HWY_NOINLINE void FoldToT(const CollectedTuples& tuples, Key first, const Source& source, size_t rows,
                          const DirectOutput<Key>& output) {
  using Acc = typename Source::Acc;
  const Longs d;
  const hn::Rebind<Acc, Doubles> da;
  const size_t lanes = hn::Lanes(d);
  const uint64_t* words = tuples.words;
  DirectWriter<Key> writer(output, rows);
  StagedRows<Key, Acc> staged(writer);
  HWY_ALIGN Acc buffer[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(Acc)];
  HWY_ALIGN uint64_t weight_buffer[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(uint64_t)];
  Acc acc{};  // terms are never −0.0, so starting from +0.0 gives the bits of SumFloat, which starts from −0.0
  uint64_t count = 0;
  uint64_t weight = 0;
  for (size_t i = 0; i < tuples.size; i += lanes) {
    const size_t n = HWY_MIN(lanes, tuples.size - i);
    const auto word = LoadSome(d, words + i, n);
    const auto made = source.TermsOf(word);
    const auto weights = source.WeightsOf(word);
    if (count == 0 && i + lanes < tuples.size && hn::AllFalse(d, SameAsNext(words + i))) {
      staged.Flush();
      const auto keys = hn::Add(hn::Set(d, first), hn::ShiftRight<32>(word));
      writer.template Write<Acc>(keys, hn::BitCast(d, made), hn::Set(d, 1), weights, lanes);
      continue;
    }
    hn::Store(made, da, buffer);
    if constexpr (Source::kWeighed) hn::Store(weights, d, weight_buffer);
    for (size_t j = 0; j < n; ++j) {
      acc += buffer[j];
      ++count;
      if constexpr (Source::kWeighed) AddWeightTo<Acc>(weight, weight_buffer[j]);
      if (i + j + 1 < tuples.size && SameAsNextOne(words + i + j)) continue;
      staged.Push(first + (words[i + j] >> 32), acc, count, weight);
      acc = Acc{};
      count = 0;
      weight = 0;
    }
  }
  staged.Flush();
}

template <class Key, class Terms>
HWY_INLINE void FoldPayloads(const CollectedTuples& tuples, Key first, const Terms& terms, size_t rows,
                             const DirectOutput<Key>& output) {
  switch (tuples.dtype) {
    case DType::kFloat16:
      return FoldToT(tuples, first, PayloadTerms<DType::kFloat16, Terms>{terms}, rows, output);
    case DType::kBFloat16:
      return FoldToT(tuples, first, PayloadTerms<DType::kBFloat16, Terms>{terms}, rows, output);
    default:
      return FoldToT(tuples, first, PayloadTerms<DType::kFloat32, Terms>{terms}, rows, output);
  }
}

template <class Acc, class Key>
HWY_INLINE void FoldIndexed(const CollectedTuples& tuples, Key first, size_t rows, const DirectOutput<Key>& output) {
  const auto* terms = static_cast<const Acc*>(tuples.terms);
  if (tuples.weights == nullptr) {
    FoldToT(tuples, first, IndexedTerms<Acc, false>{terms, nullptr}, rows, output);
  } else {
    FoldToT(tuples, first, IndexedTerms<Acc, true>{terms, tuples.weights}, rows, output);
  }
}

template <class Key>
HWY_INLINE void FoldToKeys(const CollectedTuples& tuples, Key first, size_t rows, const DirectOutput<Key>& output) {
  if (tuples.terms != nullptr) {
    return tuples.fixed ? FoldIndexed<int64_t>(tuples, first, rows, output)
                        : FoldIndexed<double>(tuples, first, rows, output);
  }
  if (!tuples.fixed) return FoldPayloads(tuples, first, FloatTerms(tuples.value_scale), rows, output);
  FoldPayloads(tuples, first, FixedTerms(tuples.value_scale, tuples.bound, tuples.scale), rows, output);
}

void FoldTo32(const CollectedTuples& tuples, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output) {
  FoldToKeys(tuples, first, rows, output);
}
void FoldTo64(const CollectedTuples& tuples, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output) {
  FoldToKeys(tuples, first, rows, output);
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::cpu {

HWY_EXPORT(CountKeysOf);
HWY_EXPORT(FoldTo32);
HWY_EXPORT(FoldTo64);

size_t CountKeys(const CollectedTuples& tuples) { return HWY_DYNAMIC_DISPATCH(CountKeysOf)(tuples); }
void FoldTo(const CollectedTuples& tuples, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output) {
  HWY_DYNAMIC_DISPATCH(FoldTo32)(tuples, first, rows, output);
}
void FoldTo(const CollectedTuples& tuples, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output) {
  HWY_DYNAMIC_DISPATCH(FoldTo64)(tuples, first, rows, output);
}

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
