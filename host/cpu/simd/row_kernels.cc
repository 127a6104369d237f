#include "host/cpu/simd/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/simd/row_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes them again for each target.
#include "host/cpu/simd/vectors-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

// Columns folded at a time; their accumulators stay in the L1 cache.
constexpr size_t kStrip = 256;
// Rows come from random places, which the hardware prefetcher cannot foresee. The beginning of a row is prefetched this
// many rows before it is folded; the hardware prefetches the rest of a long row.
constexpr size_t kRowsAhead = 16;
constexpr size_t kFetchedBytes = 512;

HWY_INLINE void PrefetchRow(const CollectedRows& rows, size_t i, size_t columns) {
  const RowOrigin origin = rows.origins[rows.order[i]];
  const RowSource& source = rows.sources[origin.source];
  const size_t row_bytes = columns * SizeOf(source.dtype);
  const std::byte* row = source.values + origin.row * row_bytes;
  const size_t fetched = HWY_MIN(row_bytes, kFetchedBytes);
  for (size_t byte = 0; byte < fetched; byte += 64) __builtin_prefetch(row + byte);
  __builtin_prefetch(row + fetched - 1);  // the row may begin within a cache line, and so end in one more
}

// Calls step(c, n) for vectors of columns [c, c + n) of `count`; n = lanes, but less for the last vector.
template <class Step>
HWY_INLINE void ForColumns(size_t count, size_t lanes, Step step) {
  size_t c = 0;
  for (; c + lanes <= count; c += lanes) step(c, lanes);
  if (c < count) step(c, count - c);
}

// Adds the terms of `count` values, from value `begin` on, to `accs`; if `is_first`, sets `accs` to them. The last
// vector may read values behind these; their terms land in the slack of `accs`.
template <DType kDType>
HWY_INLINE void AddTerms(const RowSource& source, uint64_t begin, size_t count, const FloatTerms& terms, bool is_first,
                         double* HWY_RESTRICT accs) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  ForColumns(count, lanes, [&](size_t c, size_t n) HWY_ATTR {
    const size_t readable = begin + c + lanes <= source.num_values ? lanes : n;
    const auto made = terms(LoadDoubles<kDType>(source.values, begin + c, readable));
    hn::Store(is_first ? made : hn::Add(hn::Load(d, accs + c), made), d, accs + c);
  });
}

// The same for a folded row of the base, whose values are accumulators.
HWY_INLINE void AddFolded(const RowSource& source, uint64_t begin, size_t count, bool is_first,
                          double* HWY_RESTRICT accs) {
  const Doubles d;
  const auto* folded = reinterpret_cast<const double*>(source.values) + begin;
  ForColumns(count, hn::Lanes(d), [&](size_t c, size_t n) HWY_ATTR {
    const auto acc = LoadSome(d, folded + c, n);
    hn::Store(is_first ? acc : hn::Add(hn::Load(d, accs + c), acc), d, accs + c);
  });
}

// Adds one row, of any dtype. Not inlined: with all variants inlined into the loop over rows, the
// compiler optimises none of them well.
HWY_NOINLINE void AddRow(const RowSource& source, uint64_t begin, size_t count, bool is_first,
                         double* HWY_RESTRICT accs) {
  const FloatTerms terms(source.scale);
  if (source.is_folded) return AddFolded(source, begin, count, is_first, accs);
  WithFloatType(source.dtype, [&](auto type) HWY_ATTR {
    AddTerms<decltype(type)::value>(source, begin, count, terms, is_first, accs);
  });
}

// Finishes `count` accumulators and writes them to the output from value `at` on. kStreams: past the caches.
template <bool kStreams>
HWY_INLINE void WriteStrip(const double* accs, size_t count, double divisor, const DirectValues& output, size_t at) {
  const Doubles d;
  const auto divisors = hn::Set(d, divisor);
  ForColumns(count, hn::Lanes(d), [&](size_t c, size_t n) HWY_ATTR {
    WriteValues<kStreams>(hn::BitCast(Longs(), hn::Load(d, accs + c)), divisors, output, at + c, n);
  });
}

// Columns whose accumulators FoldHeld keeps in registers, in vectors.
constexpr size_t kHeldVectors = 8;

// Folds the columns [column, column + 8 vectors) of the rows order[begin, end) and writes them to the output from value
// `at` on. Between two rows, the accumulators stay in registers: in memory, they would be loaded and stored once for
// each row. They start from +0.0, which turns a first term of −0.0 into +0.0 as FloatTerms does.
// Requires: all rows are float32 and not of the base.
template <bool kStreams>
HWY_INLINE void FoldHeld(const CollectedRows& rows, size_t begin, size_t end, size_t columns, size_t column,
                         size_t prefetch_end, double divisor, const DirectValues& output, size_t at) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
  for (size_t i = begin; i < end; ++i) {
    if (i + kRowsAhead < prefetch_end) PrefetchRow(rows, i + kRowsAhead, columns);
    const RowOrigin origin = rows.origins[rows.order[i]];
    const RowSource& source = rows.sources[origin.source];
    const FloatTerms terms(source.scale);
    const auto* const from = reinterpret_cast<const float*>(source.values) + origin.row * columns + column;
    const auto add = [&](size_t vector, auto acc) HWY_ATTR {
      return hn::Add(acc, terms.Of(hn::PromoteTo(Doubles(), hn::LoadU(Floats(), from + vector * lanes))));
    };
    a0 = add(0, a0), a1 = add(1, a1), a2 = add(2, a2), a3 = add(3, a3);
    a4 = add(4, a4), a5 = add(5, a5), a6 = add(6, a6), a7 = add(7, a7);
  }
  const auto divisors = hn::Set(Doubles(), divisor);
  const auto write = [&](size_t vector, auto acc) HWY_ATTR {
    WriteValues<kStreams>(hn::BitCast(Longs(), acc), divisors, output, at + vector * lanes, lanes);
  };
  write(0, a0), write(1, a1), write(2, a2), write(3, a3);
  write(4, a4), write(5, a5), write(6, a6), write(7, a7);
}

// Multiplies folded rows as their update says, as terms are made: no product is −0.0.
HWY_INLINE void ApplyScale(ValueScale scale, size_t count, double* HWY_RESTRICT accs) {
  const FloatTerms terms(scale);
  const Doubles d;
  for (size_t c = 0; c < count; c += hn::Lanes(d)) hn::Store(terms(hn::Load(d, accs + c)), d, accs + c);
}

template <bool kStreams>
HWY_INLINE void FoldRowsToT(const CollectedRows& rows, const DirectValues& output) {
  HWY_ALIGN double accs[kStrip];
  const size_t columns = output.columns;
  const size_t size = rows.num_keys == 0 ? 0 : rows.ends[rows.num_keys - 1];
  const size_t held = kHeldVectors * hn::Lanes(Doubles());
  const bool holds = rows.all_float32 && rows.folded.factor == 1.0 && rows.folded.weight == 1.0;
  for (size_t i = 0; i < HWY_MIN(kRowsAhead, size); ++i) PrefetchRow(rows, i, columns);
  size_t begin = 0;
  for (size_t row = 0; row < rows.num_keys; ++row) {
    const size_t end = rows.ends[row];
    const double divisor = rows.divisors != nullptr ? rows.divisors[row] : output.total;
    const size_t place = rows.places != nullptr ? rows.places[row] : row;
    size_t column = 0;
    for (; holds && column + held <= columns; column += held) {
      FoldHeld<kStreams>(rows, begin, end, columns, column, column == 0 ? size : 0, divisor, output,
                         place * columns + column);
    }
    for (; column < columns; column += kStrip) {
      const size_t count = HWY_MIN(kStrip, columns - column);
      for (size_t i = begin; i < end; ++i) {
        if (column == 0 && i + kRowsAhead < size) PrefetchRow(rows, i + kRowsAhead, columns);
        const RowOrigin origin = rows.origins[rows.order[i]];
        AddRow(rows.sources[origin.source], origin.row * columns + column, count, i == begin, accs);
      }
      if (rows.folded.factor != 1.0 || rows.folded.weight != 1.0) ApplyScale(rows.folded, count, accs);
      WriteStrip<kStreams>(accs, count, divisor, output, place * columns + column);
    }
    begin = end;
  }
}

void FoldRowsToAny(const CollectedRows& rows, const DirectValues& output) {
  // Streaming stores write aligned whole vectors only, so rows must begin and end with a cache line.
  const bool has_whole_lines = reinterpret_cast<uintptr_t>(output.values) % 64 == 0 && output.row_bytes() % 64 == 0;
  if (!output.streams || !has_whole_lines) return FoldRowsToT<false>(rows, output);
  FoldRowsToT<true>(rows, output);
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::cpu {

HWY_EXPORT(FoldRowsToAny);

void FoldRowsTo(const CollectedRows& rows, const DirectValues& output) {
  HWY_DYNAMIC_DISPATCH(FoldRowsToAny)(rows, output);
}

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
