// Keys with what has been folded at each: the output of a merge, before finishing.
#ifndef SPARSEAGG_HOST_CPU_ROWS_FOLDED_ROWS_H_
#define SPARSEAGG_HOST_CPU_ROWS_FOLDED_ROWS_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "host/base/column.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Whether, and in what arithmetic, the weights of a key's contributors are summed. A sum is held as a word, the bits of
// a float64 or of an int64; 0 is where both start.
enum class KeyWeights : uint8_t {
  kNone,   // not needed, or uniform: then they are the counts
  kFloat,  // float64, in canonical order
  kFixed,  // int64 multiples of 2^-t, any order
};

inline KeyWeights KeyWeightsOf(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (a.weighting == Weighting::kUniform) return KeyWeights::kNone;
  if (a.op != Op::kCoordinateMean && !a.return_weights) return KeyWeights::kNone;
  return a.numerics == Numerics::kFixedPoint ? KeyWeights::kFixed : KeyWeights::kFloat;
}

// A weight as KeyWeights::kFixed sums it; scale = 2^t.
inline int64_t FixedWeight(double weight, double scale) { return std::llrint(weight * scale); }

inline void AddWeight(KeyWeights kind, uint64_t weight, uint64_t& sum) {
  sum = kind == KeyWeights::kFloat ? std::bit_cast<uint64_t>(std::bit_cast<double>(sum) + std::bit_cast<double>(weight))
                                   : sum + weight;
}

// Accumulators a key: none for kUnion.
inline size_t NumColumns(const TensorSpec& spec) { return spec.aggregation.op == Op::kUnion ? 0 : spec.width; }

// Whether finishing asks how many submissions contributed to a key.
inline bool NeedsCounts(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  const bool weights_are_counts = a.weighting == Weighting::kUniform;
  return ReturnsCounts(spec) || a.min_contributors > 1 ||
         (weights_are_counts && (a.return_weights || a.op == Op::kCoordinateMean));
}

// Which columns there are besides the keys.
struct RowShape {
  size_t columns = 1;  // accumulators a key
  bool counts = true;
  KeyWeights key_weights = KeyWeights::kNone;
};

// Columns of one length (accs: `columns` times that); keys ascend strictly. Absent columns are empty.
template <typename Key, typename Acc>
struct FoldedRows {
  Column<Key> keys;
  Column<Acc> accs;
  Column<uint32_t> counts;
  Column<uint64_t> weights;  // sums as of KeyWeights

  size_t size() const { return keys.size(); }
  // New rows are uninitialised.
  void resize(size_t rows, const RowShape& shape) {
    keys.resize(rows);
    accs.resize(rows * shape.columns);
    if (shape.counts) counts.resize(rows);
    if (shape.key_weights != KeyWeights::kNone) weights.resize(rows);
  }
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
