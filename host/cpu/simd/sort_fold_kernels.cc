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
template <DType kDType>
struct PayloadTerms {
  static constexpr bool kWeighed = false;
  HWY_INLINE auto TermsOf(hn::Vec<Longs> words) const { return terms(ValuesOf<kDType>(words)); }
  HWY_INLINE hn::Vec<Doubles> WeightsOf(hn::Vec<Longs>) const { return hn::Zero(Doubles()); }
  const FloatTerms terms;
};

// Terms, and weights, to which the words hold indexes.
template <bool kHasWeights>
struct IndexedTerms {
  static constexpr bool kWeighed = kHasWeights;
  HWY_INLINE auto TermsOf(hn::Vec<Longs> words) const { return hn::GatherIndex(Doubles(), terms, IndexesOf(words)); }
  HWY_INLINE hn::Vec<Doubles> WeightsOf(hn::Vec<Longs> words) const {
    if constexpr (!kHasWeights) return hn::Zero(Doubles());
    return hn::GatherIndex(Doubles(), weights, IndexesOf(words));
  }
  static HWY_INLINE hn::Vec<SignedLongs> IndexesOf(hn::Vec<Longs> words) {
    return hn::BitCast(SignedLongs(), hn::And(words, hn::Set(Longs(), 0xffffffffu)));
  }
  const double* terms;
  const double* weights;
};

// Rows that were made one by one, and are finished and written a vector at a time.
template <class Key>
class StagedRows {
 public:
  explicit StagedRows(DirectWriter<Key>& writer) : writer_(writer) {}
  HWY_INLINE void Push(uint64_t key, double acc, uint64_t count, double weight) {
    keys_[size_] = key;
    accs_[size_] = acc;
    counts_[size_] = count;
    weights_[size_] = weight;
    if (++size_ == kCapacity) Flush();
  }
  HWY_INLINE void Flush() {
    const Longs d;
    for (size_t i = 0; i < size_; i += hn::Lanes(d)) {
      writer_.Write(hn::Load(d, keys_ + i), hn::BitCast(d, hn::Load(Doubles(), accs_ + i)), hn::Load(d, counts_ + i),
                    hn::Load(Doubles(), weights_ + i), HWY_MIN(hn::Lanes(d), size_ - i));
    }
    size_ = 0;
  }

 private:
  static constexpr size_t kCapacity = 128;
  DirectWriter<Key>& writer_;
  size_t size_ = 0;
  HWY_ALIGN uint64_t keys_[kCapacity] = {};
  HWY_ALIGN double accs_[kCapacity] = {};
  HWY_ALIGN uint64_t counts_[kCapacity] = {};
  HWY_ALIGN double weights_[kCapacity] = {};
};

// Folds all tuples. Most sparse keys come once: a vector of tuples without equal neighbours is finished as it is,
// without a loop over its lanes. Other tuples are added one by one.
template <class Key, class Source>
HWY_NOINLINE void FoldToT(const CollectedTuples& tuples, Key first, const Source& source, size_t rows,
                          const DirectOutput<Key>& output) {
  const Longs d;
  const Doubles dd;
  const size_t lanes = hn::Lanes(d);
  const uint64_t* words = tuples.words;
  DirectWriter<Key> writer(output, rows);
  StagedRows<Key> staged(writer);
  HWY_ALIGN double buffer[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(double)];
  HWY_ALIGN double weight_buffer[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(double)];
  double acc = 0.0;  // terms are never −0.0, so starting from +0.0 gives the bits of SumFloat, which starts from −0.0
  uint64_t count = 0;
  double weight = 0.0;
  for (size_t i = 0; i < tuples.size; i += lanes) {
    const size_t n = HWY_MIN(lanes, tuples.size - i);
    const auto word = LoadSome(d, words + i, n);
    const auto made = source.TermsOf(word);
    const auto weights = source.WeightsOf(word);
    if (count == 0 && i + lanes < tuples.size && hn::AllFalse(d, SameAsNext(words + i))) {
      staged.Flush();
      const auto keys = hn::Add(hn::Set(d, first), hn::ShiftRight<32>(word));
      writer.Write(keys, hn::BitCast(d, made), hn::Set(d, 1), weights, lanes);
      continue;
    }
    hn::Store(made, dd, buffer);
    if constexpr (Source::kWeighed) hn::Store(weights, dd, weight_buffer);
    for (size_t j = 0; j < n; ++j) {
      acc += buffer[j];
      ++count;
      if constexpr (Source::kWeighed) weight += weight_buffer[j];
      if (i + j + 1 < tuples.size && SameAsNextOne(words + i + j)) continue;
      staged.Push(first + (words[i + j] >> 32), acc, count, weight);
      acc = 0.0;
      count = 0;
      weight = 0.0;
    }
  }
  staged.Flush();
}

template <class Key>
HWY_INLINE void FoldToKeys(const CollectedTuples& tuples, Key first, size_t rows, const DirectOutput<Key>& output) {
  if (tuples.weights != nullptr) {
    return FoldToT(tuples, first, IndexedTerms<true>{tuples.terms, tuples.weights}, rows, output);
  }
  if (tuples.terms != nullptr) return FoldToT(tuples, first, IndexedTerms<false>{tuples.terms, nullptr}, rows, output);
  const FloatTerms terms(tuples.value_scale);
  switch (tuples.dtype) {
    case DType::kFloat16:
      return FoldToT(tuples, first, PayloadTerms<DType::kFloat16>{terms}, rows, output);
    case DType::kBFloat16:
      return FoldToT(tuples, first, PayloadTerms<DType::kBFloat16>{terms}, rows, output);
    default:
      return FoldToT(tuples, first, PayloadTerms<DType::kFloat32>{terms}, rows, output);
  }
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
