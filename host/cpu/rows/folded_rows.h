// Folded rows: keys with their accumulators, the output of a merge before finishing.
#ifndef SPARSEAGG_HOST_CPU_ROWS_FOLDED_ROWS_H_
#define SPARSEAGG_HOST_CPU_ROWS_FOLDED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "host/base/binned.h"
#include "host/base/column.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/fold.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Sums of the weights of a key's contributors (BinsKeyWeights); beside SumFloat they are float64, in canonical order.
using BinnedWeight = PackedBinned<WideBinnedSum>;

// Adds a sum of weights to another.
inline void AddWeight(double weight, double& sum) { sum += weight; }
inline void AddWeight(const BinnedWeight& weight, BinnedWeight& sum) { SumBinned<WideBinnedSum>::Combine(sum, weight); }

inline double WeightValue(double sum) { return sum; }
inline double WeightValue(const BinnedWeight& sum) { return sum.Get().Value(); }

// Returns: sums of weights as kernels take them; null for binned ones, of which no kernel knows.
inline double* FloatsOf(Column<double>& sums) { return sums.data(); }
inline double* FloatsOf(Column<BinnedWeight>&) { return nullptr; }

// The columns of folded rows besides the keys.
struct RowShape {
  size_t columns = 1;  // accumulators a key
  bool counts = true;
  bool weights = false;  // false: not needed, or the weights are uniform, so that the count is their sum
};

inline RowShape ShapeOf(const TensorSpec& spec) { return {NumColumns(spec), NeedsCounts(spec), NeedsKeyWeights(spec)}; }

// Rows in ascending order of key. All columns have an entry a row (`accs`: RowShape::columns); absent ones are empty.
template <typename Key, typename Fold>
struct FoldedRows {
  using Acc = typename Fold::Acc;
  using WeightSum = std::conditional_t<std::is_same_v<Fold, SumFloat>, double, BinnedWeight>;

  Column<Key> keys;
  Column<Acc> accs;
  Column<uint32_t> counts;
  Column<WeightSum> weights;

  size_t size() const { return keys.size(); }
  // Changes the number of rows. New rows are uninitialised.
  void resize(size_t rows, const RowShape& shape) {
    keys.resize(rows);
    accs.resize(rows * shape.columns);
    if (shape.counts) counts.resize(rows);
    if (shape.weights) weights.resize(rows);
  }
  // Returns unused memory to the system.
  void Trim() {
    keys.Trim();
    accs.Trim();
    counts.Trim();
    weights.Trim();
  }
  size_t memory_bytes() const {
    return keys.size() * sizeof(Key) + accs.size() * sizeof(Acc) + counts.size() * sizeof(uint32_t) +
           weights.size() * sizeof(WeightSum);
  }
};

// Returns: the direct output of unfinished rows: of those of `rows`, from row `at` on.
template <typename Key, typename Fold>
DirectOutput<Key> UnfinishedOutput(const RowShape& shape, FoldedRows<Key, Fold>& rows, uint64_t at = 0) {
  DirectOutput<Key> output;
  output.keys = rows.keys.data() + at;
  output.columns = shape.columns;
  output.dtype = std::is_same_v<typename Fold::Acc, double> ? DType::kFloat64 : DType::kInt64;
  output.values = reinterpret_cast<std::byte*>(rows.accs.data() + at * shape.columns);
  if (shape.counts) output.counts = rows.counts.data() + at;
  if (shape.weights) output.weights = FloatsOf(rows.weights) + at;
  return output;
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ROWS_FOLDED_ROWS_H_
