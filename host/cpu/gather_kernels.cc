#include "host/cpu/gather_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/gather_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes them again for each target.
#include "host/cpu/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

// In each lane, whether the word's key is that of the next one.
HWY_INLINE hn::Mask<Longs> SameAsNext(const uint64_t* words) {
  const Longs d;
  const auto differing = hn::Xor(hn::LoadU(d, words), hn::LoadU(d, words + 1));
  return hn::Eq(hn::ShiftRight<32>(differing), hn::Zero(d));
}

bool SameAsNextOne(const uint64_t* words) { return (words[0] ^ words[1]) >> 32 == 0; }

size_t CountKeysOf(const GatheredTuples& tuples) {
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

// Rows made one by one, which leave in vectors.
template <class Key, class Acc>
class Staged {
 public:
  explicit Staged(PlainWriter<Key>& writer) : writer_(writer) {}
  HWY_INLINE void Push(uint64_t key, Acc acc, uint64_t count) {
    keys_[size_] = key;
    accs_[size_] = acc;
    counts_[size_] = count;
    if (++size_ == kCapacity) Flush();
  }
  HWY_INLINE void Flush() {
    const Longs d;
    for (size_t i = 0; i < size_; i += hn::Lanes(d)) {
      const auto accs = hn::BitCast(d, hn::Load(hn::Rebind<Acc, Doubles>(), accs_ + i));
      writer_.template Write<Acc>(hn::Load(d, keys_ + i), accs, hn::Load(d, counts_ + i),
                                  HWY_MIN(hn::Lanes(d), size_ - i));
    }
    size_ = 0;
  }

 private:
  static constexpr size_t kCapacity = 128;
  PlainWriter<Key>& writer_;
  size_t size_ = 0;
  HWY_ALIGN uint64_t keys_[kCapacity] = {};
  HWY_ALIGN Acc accs_[kCapacity] = {};
  HWY_ALIGN uint64_t counts_[kCapacity] = {};
};

// Keys that come once, which is what thinly spread ones do mostly, are finished a vector at a time.
template <DType kDType, class Key, class Terms>
HWY_NOINLINE void FoldToT(const GatheredTuples& tuples, Key first, const Terms& terms, size_t rows,
                          const PlainOutput<Key>& output) {
  using Acc = typename Terms::Acc;
  const Longs d;
  const typename Terms::Lanes da;
  const size_t lanes = hn::Lanes(d);
  const uint64_t* words = tuples.words;
  PlainWriter<Key> writer(output, rows);
  Staged<Key, Acc> staged(writer);
  HWY_ALIGN Acc buffer[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(Acc)];
  Acc acc{};  // never of terms −0.0, so that starting from +0.0 or −0.0 is one
  uint64_t count = 0;
  for (size_t i = 0; i < tuples.size; i += lanes) {
    const size_t n = HWY_MIN(lanes, tuples.size - i);
    const auto word = LoadSome(d, words + i, n);
    const auto made = terms(ValuesOf<kDType>(word));
    if (count == 0 && i + lanes < tuples.size && hn::AllFalse(d, SameAsNext(words + i))) {
      staged.Flush();
      const auto keys = hn::Add(hn::Set(d, first), hn::ShiftRight<32>(word));
      writer.template Write<Acc>(keys, hn::BitCast(d, made), hn::Set(d, 1), lanes);
      continue;
    }
    hn::Store(made, da, buffer);
    for (size_t j = 0; j < n; ++j) {
      acc += buffer[j];
      ++count;
      if (i + j + 1 < tuples.size && SameAsNextOne(words + i + j)) continue;
      staged.Push(first + (words[i + j] >> 32), acc, count);
      acc = Acc{};
      count = 0;
    }
  }
  staged.Flush();
}

template <class Key, class Terms>
HWY_INLINE void FoldToAny(const GatheredTuples& tuples, Key first, const Terms& terms, size_t rows,
                          const PlainOutput<Key>& output) {
  switch (tuples.dtype) {
    case DType::kFloat16:
      return FoldToT<DType::kFloat16>(tuples, first, terms, rows, output);
    case DType::kBFloat16:
      return FoldToT<DType::kBFloat16>(tuples, first, terms, rows, output);
    default:
      return FoldToT<DType::kFloat32>(tuples, first, terms, rows, output);
  }
}

template <class Key>
HWY_INLINE void FoldToKeys(const GatheredTuples& tuples, Key first, size_t rows, const PlainOutput<Key>& output) {
  if (!tuples.fixed) return FoldToAny(tuples, first, FloatTerms(tuples.weight), rows, output);
  FoldToAny(tuples, first, FixedTerms(tuples.weight, tuples.bound, tuples.scale), rows, output);
}

void FoldTo32(const GatheredTuples& tuples, uint32_t first, size_t rows, const PlainOutput<uint32_t>& output) {
  FoldToKeys(tuples, first, rows, output);
}
void FoldTo64(const GatheredTuples& tuples, uint64_t first, size_t rows, const PlainOutput<uint64_t>& output) {
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

size_t CountKeys(const GatheredTuples& tuples) { return HWY_DYNAMIC_DISPATCH(CountKeysOf)(tuples); }
void FoldTo(const GatheredTuples& tuples, uint32_t first, size_t rows, const PlainOutput<uint32_t>& output) {
  HWY_DYNAMIC_DISPATCH(FoldTo32)(tuples, first, rows, output);
}
void FoldTo(const GatheredTuples& tuples, uint64_t first, size_t rows, const PlainOutput<uint64_t>& output) {
  HWY_DYNAMIC_DISPATCH(FoldTo64)(tuples, first, rows, output);
}

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
