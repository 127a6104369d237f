// The segmented fold: one accumulator per segment and column; our own, for CUB's reductions regroup float additions.
// The fold of short segments is here, the fold of longer ones in fold_listed.h.
#ifndef SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_
#define SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/fold.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {

// Arguments of the kernels below. FoldListedSegments folds the medium and the long segments, FoldShortSegments the
// others. Arrays are aligned to 16 bytes.
struct FoldValues {
  FoldKind kind = FoldKind::kSumFloat;
  Segments segments;
  uint32_t columns = 1;
  uint32_t num_base = 0;           // positions below are base rows
  Accs base;                       // num_base × columns
  const void* d_values = nullptr;  // of the tuples, × columns of `type`
  Number type = Number::kFloat32;
  Sources sources;
  bool unique = false;   // no source has a key twice
  bool uniform = false;  // weights are all 1 or do not matter; if `unique` too, sources need not be looked up
  SegmentClasses classes;
  Accs accs;  // segments × columns: the result
};

// Returns: the source of a tuple, or a default source if weights do not matter.
SPARSEAGG_HD inline Source SourceOf(const FoldValues& args, uint32_t position) {
  return args.uniform ? Source() : args.sources.d_sources[args.sources.Find(position)];
}

// The values of a tuple in one pack of columns: bits of one value, or 16 bytes that are loaded at once.
template <typename Fold, uint32_t kColumns>
struct TupleValues {
  Pack<uint64_t, 2> bits;

  SPARSEAGG_HD static TupleValues Load(const FoldValues& args, uint64_t pack) {
    return {static_cast<const Pack<uint64_t, 2>*>(args.d_values)[pack]};
  }
  // The size of a value tells its type, unless it is 2 bytes, so that the compiler leaves out the other types.
  SPARSEAGG_HD typename Fold::Value At(const FoldValues& args, uint32_t c) const {
    return Fold::Of(kColumns == 8 ? args.type : Fold::TypeOf(16 / kColumns), BitsIn<kColumns>(bits, c));
  }
};
template <typename Fold>
struct TupleValues<Fold, 1> {
  uint64_t bits;

  SPARSEAGG_HD static TupleValues Load(const FoldValues& args, uint64_t i) {
    return {LoadBits(args.d_values, args.type, i)};
  }
  SPARSEAGG_HD typename Fold::Value At(const FoldValues& args, uint32_t) const { return Fold::Of(args.type, bits); }
};

// Folds, from left to right, every `stride`-th of the entries [begin, end) of one segment, at one pack of kColumns
// columns: `pack` of args.columns / kColumns. Requires: stride 1, or `args.unique`.
template <typename Fold, uint32_t kColumns>
SPARSEAGG_HD Pack<typename Fold::Acc, kColumns> FoldSegment(const FoldValues& args, uint32_t begin, uint32_t end,
                                                            uint32_t stride, uint32_t pack) {
  using Values = TupleValues<Fold, kColumns>;
  const uint64_t packs = args.columns / kColumns;
  Pack<typename Fold::Acc, kColumns> accs;
  SPARSEAGG_UNROLL
  for (uint32_t c = 0; c < kColumns; ++c) accs.values[c] = Fold::Start();
  uint32_t entry = begin;
  uint32_t left = begin < end ? (end - begin - 1) / stride + 1 : 0;
  for (; left > 0 && args.segments.Position(entry) < args.num_base; --left, entry += stride) {
    const auto base = args.base.Load<Fold, kColumns>(args.segments.Position(entry) * packs + pack);
    SPARSEAGG_UNROLL
    for (uint32_t c = 0; c < kColumns; ++c) accs.values[c] = Fold::Combine(accs.values[c], base.values[c]);
  }
  const auto load = [&](uint32_t position) { return Values::Load(args, (position - args.num_base) * packs + pack); };
  const auto add = [&](const typename Fold::Value(&sums)[kColumns], const Source& source) {
    SPARSEAGG_UNROLL
    for (uint32_t c = 0; c < kColumns; ++c) accs.values[c] = Fold::Add(accs.values[c], sums[c], source);
  };
  if (args.unique) {
    const auto fold = [&](uint32_t position, const Values& values) {
      typename Fold::Value sums[kColumns];
      SPARSEAGG_UNROLL
      for (uint32_t c = 0; c < kColumns; ++c) sums[c] = Fold::Plus(Fold::Zero(), values.At(args, c));
      add(sums, SourceOf(args, position));
    };
    // Two at a time: both loads are under way before the first value is folded.
    for (; left >= 2; left -= 2, entry += 2 * stride) {
      const uint32_t first = args.segments.Position(entry);
      const uint32_t second = args.segments.Position(entry + stride);
      const Values first_values = load(first);
      const Values second_values = load(second);
      fold(first, first_values);
      fold(second, second_values);
    }
    if (left > 0) {
      const uint32_t last = args.segments.Position(entry);
      fold(last, load(last));
    }
    return accs;
  }
  while (entry < end) {
    uint32_t position = args.segments.Position(entry);
    const uint32_t source = args.sources.Find(position);
    const uint32_t source_end = args.sources.End(source);
    typename Fold::Value sums[kColumns];
    SPARSEAGG_UNROLL
    for (uint32_t c = 0; c < kColumns; ++c) sums[c] = Fold::Zero();
    do {
      const Values values = load(position);
      SPARSEAGG_UNROLL
      for (uint32_t c = 0; c < kColumns; ++c) sums[c] = Fold::Plus(sums[c], values.At(args, c));
      ++entry;
    } while (entry < end && (position = args.segments.Position(entry)) < source_end);
    add(sums, args.sources.d_sources[source]);
  }
  return accs;
}

// Element-wise over segments × packs of kColumns columns: neighbouring threads read neighbouring packs of a row. A
// device has too few threads to keep its memory busy with one value each, so a thread loads 16 bytes where rows allow.
template <typename Fold, uint32_t kColumns>
struct FoldShortSegments {
  FoldValues args;

  SPARSEAGG_HD uint32_t Packs() const { return args.columns / kColumns; }
  uint64_t size() const { return uint64_t{args.segments.count} * Packs(); }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const Cell cell = CellOf(i, Packs());
    const auto segment = static_cast<uint32_t>(cell.row);
    const uint32_t begin = args.segments.Begin(segment);
    const uint32_t end = args.segments.End(segment);
    if (!args.classes.IsShort(end - begin)) return;
    // A variable, because GCC's instrumentation misses a store of what a call returns in memory.
    const auto accs = FoldSegment<Fold, kColumns>(args, begin, end, /*stride=*/1, cell.column);
    args.accs.Store<Fold, kColumns>(i, accs);
  }
};

// Calls run(kernel) with the FoldShortSegments that serves `args`: its packs are values of 16 bytes in rows of whole
// packs, else single values. Returns: what `run` returns.
template <typename Fold, typename Run>
auto RunShortSegments(const FoldValues& args, Run&& run) {
  const uint32_t columns = 16 / BytesOf(args.type);
  if (args.columns % columns == 0) {
    if constexpr (std::is_same_v<typename Fold::Value, double>) {
      if (columns == 8) return run(FoldShortSegments<Fold, 8>{args});
    }
    return columns == 4 ? run(FoldShortSegments<Fold, 4>{args}) : run(FoldShortSegments<Fold, 2>{args});
  }
  return run(FoldShortSegments<Fold, 1>{args});
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_
