// Merge of two sorted lists of folded rows.
#ifndef SPARSEAGG_HOST_CPU_MERGE_COMBINE_ROWS_H_
#define SPARSEAGG_HOST_CPU_MERGE_COMBINE_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "host/cpu/rows/folded_rows.h"

namespace sparseagg::cpu {

// Rows [begin, end) of `rows`.
template <typename Rows>
struct RowRange {
  const Rows& rows;
  size_t begin;
  size_t end;
};

// Copies rows to `out`, from row `row` on.
// Returns: the row behind the last one written.
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

// Returns: `acc` if `takes`, else the fold's start. Written without a branch where the start is 0: compilers turn the
// conditional expression into a branch.
template <typename Fold>
typename Fold::Acc Masked(bool takes, typename Fold::Acc acc) {
  using Acc = typename Fold::Acc;
  if constexpr (!std::is_class_v<Acc> && !std::is_floating_point_v<Acc>) {
    if constexpr (Fold::kStart == 0) return acc & -static_cast<Acc>(takes);
  }
  return takes ? acc : Fold::kStart;
}

// Merges rows of one accumulator without weights until one list ends; advances `a.begin` and `b.begin`.
// Returns: the number of rows written.
//
// Which list has the smaller key is unpredictable, so no step branches on it. Each step takes one row from either list
// or from both. A list from which no row is taken contributes the fold's start, which changes nothing.
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

// The same for rows of any shape.
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
      if (shape.weights) {
        AddWeight(b.rows.weights[b.begin], out.weights[row]);
      }
    }
    a.begin += takes_a;
    b.begin += takes_b;
    ++row;
  }
  return row;
}

}  // namespace internal

// Merges the rows of `a` and `b`, both of `shape`, into `out` in ascending order of key. Rows of the same key are
// combined. Only for folds whose terms may come in any order.
// Requires: `out` is neither of the two.
template <typename Fold, typename Rows>
void CombineRows(RowRange<Rows> a, RowRange<Rows> b, const RowShape& shape, Rows& out) {
  static_assert(Fold::kAnyOrder);
  out.resize(0, shape);
  out.resize((a.end - a.begin) + (b.end - b.begin), shape);
  const bool is_simple = shape.columns == 1 && !shape.weights;
  size_t rows = 0;
  if (!is_simple) {
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
