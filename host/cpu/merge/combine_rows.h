// Merges two stretches of folded rows into one.
#ifndef SPARSEAGG_HOST_CPU_MERGE_COMBINE_ROWS_H_
#define SPARSEAGG_HOST_CPU_MERGE_COMBINE_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "host/cpu/rows/folded_rows.h"

namespace sparseagg::cpu {

// Rows [begin, end).
template <typename Rows>
struct RowRange {
  const Rows& rows;
  size_t begin;
  size_t end;
};

// Copies rows as they are to `row` of the output and on, and returns the row behind the last.
template <typename Rows>
size_t CopyRows(const RowRange<Rows>& from, const RowShape& shape, size_t row, Rows& out) {
  const auto copy = [&](const auto& source, auto& target, size_t columns) {
    if (source.empty()) return;
    std::copy(source.begin() + from.begin * columns, source.begin() + from.end * columns,
              target.begin() + row * columns);
  };
  copy(from.rows.keys, out.keys, 1);
  copy(from.rows.accs, out.accs, shape.columns);
  copy(from.rows.counts, out.counts, 1);
  copy(from.rows.weights, out.weights, 1);
  return row + (from.end - from.begin);
}

namespace internal {

// The accumulator, or what a fold starts from. A compiler makes a branch of it where it is not told otherwise.
template <typename Fold>
typename Fold::Acc Masked(bool takes, typename Fold::Acc acc) {
  using Acc = typename Fold::Acc;
  if constexpr (Fold::kStart == Acc{0}) {
    return acc & -static_cast<Acc>(takes);
  } else {
    return takes ? acc : Fold::kStart;
  }
}

// One accumulator a key and no weights. Which of the two keys comes first is as good as random, so every step takes one
// row of either or of both without a branch: an absent one combines as what a fold starts from.
template <typename Fold, bool kCounts, typename Rows>
size_t CombineOverlap(RowRange<Rows>& a, RowRange<Rows>& b, Rows& out) {
  using Key = typename decltype(out.keys)::value_type;
  using Acc = typename Fold::Acc;
  const Key* __restrict keys_a = a.rows.keys.data();
  const Key* __restrict keys_b = b.rows.keys.data();
  const Acc* __restrict accs_a = a.rows.accs.data();
  const Acc* __restrict accs_b = b.rows.accs.data();
  const uint32_t* __restrict counts_a = a.rows.counts.data();
  const uint32_t* __restrict counts_b = b.rows.counts.data();
  Key* __restrict keys = out.keys.data();
  Acc* __restrict accs = out.accs.data();
  uint32_t* __restrict counts = out.counts.data();
  const size_t end_a = a.end;
  const size_t end_b = b.end;
  size_t i = a.begin;
  size_t j = b.begin;
  size_t row = 0;
  for (; i < end_a && j < end_b; ++row) {
    const Key key_a = keys_a[i];
    const Key key_b = keys_b[j];
    const bool takes_a = key_a <= key_b;
    const bool takes_b = key_b <= key_a;
    Acc acc = Masked<Fold>(takes_a, accs_a[i]);
    Fold::Combine(acc, Masked<Fold>(takes_b, accs_b[j]));
    keys[row] = std::min(key_a, key_b);
    accs[row] = acc;
    if constexpr (kCounts) {
      counts[row] = counts_a[i] * uint32_t{takes_a} + counts_b[j] * uint32_t{takes_b};
    }
    i += takes_a;
    j += takes_b;
  }
  a.begin = i;
  b.begin = j;
  return row;
}

template <typename Fold, typename Rows>
size_t CombineAny(RowRange<Rows>& a, RowRange<Rows>& b, const RowShape& shape, Rows& out) {
  size_t row = 0;
  while (a.begin < a.end && b.begin < b.end) {
    const auto key_a = a.rows.keys[a.begin];
    const auto key_b = b.rows.keys[b.begin];
    const bool takes_a = key_a <= key_b;
    const bool takes_b = key_b <= key_a;
    RowRange<Rows>& first = takes_a ? a : b;
    CopyRows({first.rows, first.begin, first.begin + 1}, shape, row, out);
    if (takes_a && takes_b) {
      for (size_t c = 0; c < shape.columns; ++c) {
        Fold::Combine(out.accs[row * shape.columns + c], b.rows.accs[b.begin * shape.columns + c]);
      }
      if (shape.counts) out.counts[row] += b.rows.counts[b.begin];
      if (shape.key_weights != KeyWeights::kNone) {
        AddWeight(shape.key_weights, b.rows.weights[b.begin], out.weights[row]);
      }
    }
    a.begin += takes_a;
    b.begin += takes_b;
    ++row;
  }
  return row;
}

}  // namespace internal

// The rows of `a` and of `b`, both of `shape`, in ascending order of key; those at one key combined. Only for folds of
// any order. `out` must not be one of them.
template <typename Fold, typename Rows>
void CombineRows(RowRange<Rows> a, RowRange<Rows> b, const RowShape& shape, Rows& out) {
  static_assert(Fold::kAnyOrder);
  out.resize(0, shape);
  out.resize((a.end - a.begin) + (b.end - b.begin), shape);
  const bool is_plain = shape.columns == 1 && shape.key_weights == KeyWeights::kNone;
  size_t rows = 0;
  if (!is_plain) {
    rows = internal::CombineAny<Fold>(a, b, shape, out);
  } else if (shape.counts) {
    rows = internal::CombineOverlap<Fold, true>(a, b, out);
  } else {
    rows = internal::CombineOverlap<Fold, false>(a, b, out);
  }
  rows = CopyRows(a, shape, rows, out);
  rows = CopyRows(b, shape, rows, out);
  out.resize(rows, shape);
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_COMBINE_ROWS_H_
