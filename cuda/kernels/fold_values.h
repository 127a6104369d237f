// The segmented fold: one accumulator per segment and column; our own, for CUB's reductions regroup float additions.
// The fold of short segments is here, the fold of longer ones in fold_listed.h.
#ifndef SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_
#define SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/finish.h"
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
  const void* d_values = nullptr;  // of the tuples, × columns of `type`; null for a fold of sources, of one column
  DType type = DType::kFloat32;
  Sources sources;
  bool unique = false;   // no source has a key twice
  bool uniform = false;  // weights are all 1 or do not matter; if `unique` too, sources need not be looked up
  SegmentClasses classes;
  FoldedRows rows;  // segments × columns: the result
};

// Returns: the source of a tuple, or a default source if weights do not matter.
SPARSEAGG_HD inline Source SourceOf(const FoldValues& args, uint32_t position) {
  return args.uniform ? Source() : args.sources.d_sources[args.sources.Find(position)];
}

// Values of several tuples in one pack of columns, whose loads are under way together: 16 bytes of each of eight, in
// shared memory; or one value of each of two, in registers, since with more of them a device would hold fewer threads.
template <typename Fold, uint32_t kColumns>
struct TuplesAhead {
  static constexpr uint32_t kCount = kColumns == 1 ? 2 : 8;
  std::conditional_t<kColumns == 1, Pack<uint64_t, kCount>, LoadsAhead<kCount>> loads;

  SPARSEAGG_HD void Start(const FoldValues& args, uint32_t i, uint64_t pack) {
    if constexpr (kColumns == 1) {
      loads.values[i] = IsOfSources(Fold::kKind) ? 0 : LoadBits(args.d_values, args.type, pack);
    } else {
      loads.Start(i, static_cast<const Pack<uint64_t, 2>*>(args.d_values) + pack);
    }
  }
  SPARSEAGG_HD void Wait() {
    if constexpr (kColumns > 1) loads.Wait();
  }
  SPARSEAGG_HD typename Fold::Value At(const FoldValues& args, uint32_t i, uint32_t c) const {
    if constexpr (kColumns == 1) {
      return Fold::Of(args.type, i == 0 ? loads.values[0] : loads.values[1]);  // an index would take local memory
    } else {
      // The size of a value tells its type, unless it is 2 bytes, so that the compiler leaves out the other types.
      return Fold::Of(kColumns == 8 ? args.type : Fold::TypeOf(16 / kColumns), BitsIn<kColumns>(loads[i], c));
    }
  }
};

// Folds, from left to right, every `stride`-th of the entries [begin, end) of one segment, at one pack of kColumns
// columns: `pack` of args.columns / kColumns. Requires: stride 1, or `args.unique`.
template <typename Fold, uint32_t kColumns>
SPARSEAGG_HD Pack<typename Fold::Acc, kColumns> FoldSegment(const FoldValues& args, uint32_t begin, uint32_t end,
                                                            uint32_t stride, uint32_t pack) {
  const uint64_t packs = args.columns / kColumns;
  Pack<typename Fold::Acc, kColumns> accs;
  ForColumns<kColumns>([&](uint32_t c) { accs.values[c] = Fold::Start(); });
  uint32_t entry = begin;
  uint32_t left = begin < end ? (end - begin - 1) / stride + 1 : 0;
  for (; left > 0 && args.num_base > 0 && args.segments.Position(entry) < args.num_base; --left, entry += stride) {
    const auto base = args.base.Load<Fold, kColumns>(args.segments.Position(entry) * packs + pack);
    ForColumns<kColumns>([&](uint32_t c) { accs.values[c] = Fold::Combine(accs.values[c], base.values[c]); });
  }
  // Calls fold(entry, i) for the tuples, whose values are ahead.At(…, i, …).
  TuplesAhead<Fold, kColumns> ahead;
  const auto for_tuples = [&](const auto& fold) {
    while (left > 0) {
      const uint32_t count = left < ahead.kCount ? left : ahead.kCount;
      uint32_t positions[ahead.kCount];  // all of them are loaded before the first value
      SPARSEAGG_UNROLL
      for (uint32_t i = 0; i < ahead.kCount; ++i) {
        positions[i] = i < count ? args.segments.Position(entry + i * stride) : 0;
      }
      SPARSEAGG_UNROLL
      for (uint32_t i = 0; i < ahead.kCount; ++i) {
        if (i < count) ahead.Start(args, i, (positions[i] - args.num_base) * packs + pack);
      }
      ahead.Wait();
      for (uint32_t i = 0; i < count; ++i) fold(entry + i * stride, i);
      left -= count;
      entry += count * stride;
    }
  };
  Pack<typename Fold::Value, kColumns> sums;  // of the duplicates of one source
  const auto start = [&] { ForColumns<kColumns>([&](uint32_t c) { sums.values[c] = Fold::Zero(); }); };
  const auto plus = [&](uint32_t i) {
    ForColumns<kColumns>([&](uint32_t c) { sums.values[c] = Fold::Plus(sums.values[c], ahead.At(args, i, c)); });
  };
  const auto add = [&](const Source& source) {
    ForColumns<kColumns>(
        [&](uint32_t c) { accs.values[c] = Fold::Combine(accs.values[c], Fold::Term(sums.values[c], source)); });
  };
  if (args.unique) {
    for_tuples([&](uint32_t tuple, uint32_t i) {
      start();
      plus(i);
      add(SourceOf(args, args.segments.Position(tuple)));
    });
    return accs;
  }
  uint32_t source = 0;
  uint32_t source_end = 0;  // 0: there was no tuple yet
  for_tuples([&](uint32_t tuple, uint32_t i) {
    if (const uint32_t position = args.segments.Position(tuple); position >= source_end) {
      if (source_end > 0) add(args.sources.d_sources[source]);
      source = args.sources.Find(position);
      source_end = args.sources.End(source);
      start();
    }
    plus(i);
  });
  if (source_end > 0) add(args.sources.d_sources[source]);
  return accs;
}

// Element-wise over segments × packs of kColumns columns: neighbouring threads read neighbouring packs of a row. A
// device has too few threads to keep its memory busy with one value each, so a thread loads 16 bytes where rows allow.
template <typename Fold, uint32_t kColumns>
struct FoldShortSegments {
  // As many as there are without spilled registers, since every thread waits for one load after another.
  static constexpr uint32_t kPackBlocks = sizeof(typename Fold::Acc) > 8 ? 1 : kColumns == 8 ? 3 : 5;
  static constexpr uint32_t kMinBlocks = kColumns > 1 ? kPackBlocks : IsBinned(Fold::kKind) ? 6 : 8;
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
    args.rows.Store<Fold, kColumns>(segment, i, accs);
  }
};

// Calls run(kernel) with the FoldShortSegments that serves `args`: its packs are values of 16 bytes in rows of whole
// packs, else single values. Returns: what `run` returns.
template <typename Fold, typename Run>
auto RunShortSegments(const FoldValues& args, Run&& run) {
  if constexpr (!IsOfSources(Fold::kKind)) {
    const uint32_t columns = 16 / BytesOf(args.type);
    if (args.columns % columns == 0) {
      if constexpr (std::is_same_v<typename Fold::Value, double>) {
        if (columns == 8) return run(FoldShortSegments<Fold, 8>{args});
      }
      return columns == 4 ? run(FoldShortSegments<Fold, 4>{args}) : run(FoldShortSegments<Fold, 2>{args});
    }
  }
  return run(FoldShortSegments<Fold, 1>{args});
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_
