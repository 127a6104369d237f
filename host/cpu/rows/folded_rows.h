// Folded rows: keys with their accumulators, the output of a merge before finishing.
#ifndef SPARSEAGG_HOST_CPU_ROWS_FOLDED_ROWS_H_
#define SPARSEAGG_HOST_CPU_ROWS_FOLDED_ROWS_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "host/base/column.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Arithmetic in which the weights of a key's contributors are summed. A sum is held as 64 bits, those of a float64 or
// of an int64. Zero bits are the empty sum of both.
enum class KeyWeights : uint8_t {
  kNone,   // no sum: not needed, or the weights are uniform, so that the count is their sum
  kFloat,  // float64, in canonical order
  kFixed,  // int64 multiples of 2^-t, in any order
};

// Returns: the arithmetic that results of this tensor need.
inline KeyWeights KeyWeightsOf(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (a.weighting == Weighting::kUniform) return KeyWeights::kNone;
  if (a.op != Op::kCoordinateMean && !a.return_weights) return KeyWeights::kNone;
  return a.numerics == Numerics::kFixedPoint ? KeyWeights::kFixed : KeyWeights::kFloat;
}

// Returns: a weight as a multiple of 2^-t, for KeyWeights::kFixed. `scale`: 2^t.
inline int64_t FixedWeight(double weight, double scale) { return std::llrint(weight * scale); }

// Adds `weight` to `sum`, both as bits of `kind`.
inline void AddWeight(KeyWeights kind, uint64_t weight, uint64_t& sum) {
  sum = kind == KeyWeights::kFloat ? std::bit_cast<uint64_t>(std::bit_cast<double>(sum) + std::bit_cast<double>(weight))
                                   : sum + weight;
}

// Returns: the number of accumulators a key; 0 for UNION.
inline size_t NumColumns(const TensorSpec& spec) { return spec.aggregation.op == Op::kUnion ? 0 : spec.row_width; }

// Returns: whether finishing needs the number of contributors of each key.
inline bool NeedsCounts(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  const bool weights_are_counts = a.weighting == Weighting::kUniform;
  return ReturnsCounts(spec) || a.min_contributors > 1 ||
         (weights_are_counts && (a.return_weights || a.op == Op::kCoordinateMean));
}

// The columns of folded rows besides the keys.
struct RowShape {
  size_t columns = 1;  // accumulators a key
  bool counts = true;
  KeyWeights key_weights = KeyWeights::kNone;
};

// Rows in ascending order of key. All columns have an entry a row (`accs`: RowShape::columns); absent ones are empty.
template <typename Key, typename Acc>
struct FoldedRows {
  Column<Key> keys;
  Column<Acc> accs;
  Column<uint32_t> counts;
  Column<uint64_t> weights;  // bits of sums, see KeyWeights

  size_t size() const { return keys.size(); }
  // Changes the number of rows. New rows are uninitialised.
  void resize(size_t rows, const RowShape& shape) {
    keys.resize(rows);
    accs.resize(rows * shape.columns);
    if (shape.counts) counts.resize(rows);
    if (shape.key_weights != KeyWeights::kNone) weights.resize(rows);
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
           weights.size() * sizeof(uint64_t);
  }
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ROWS_FOLDED_ROWS_H_
