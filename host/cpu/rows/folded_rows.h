// Folded rows: keys with their accumulators, the output of a merge before finishing.
#ifndef SPARSEAGG_HOST_CPU_ROWS_FOLDED_ROWS_H_
#define SPARSEAGG_HOST_CPU_ROWS_FOLDED_ROWS_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "host/base/binned.h"
#include "host/base/column.h"
#include "host/cpu/rows/direct_output.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Arithmetic in which the weights of a key's contributors are summed. A sum is held as 64 bits, those of a float64 or
// of an int64, of which zero bits are the empty sum; or as a WideBinnedSum.
enum class KeyWeights : uint8_t {
  kNone,    // no sum: not needed, or the weights are uniform, so that the count is their sum
  kFloat,   // float64, in canonical order
  kFixed,   // int64 multiples of 2^-t, in any order
  kBinned,  // WideBinnedSum, in any order
};

// Returns: the arithmetic that results of this tensor need.
inline KeyWeights KeyWeightsOf(const TensorSpec& spec) {
  if (!NeedsKeyWeights(spec)) return KeyWeights::kNone;
  if (spec.aggregation.numerics == Numerics::kBinned) return KeyWeights::kBinned;
  return spec.aggregation.numerics == Numerics::kFixedPoint ? KeyWeights::kFixed : KeyWeights::kFloat;
}

// Returns: a weight as a multiple of 2^-t, for KeyWeights::kFixed. `scale`: 2^t.
inline int64_t FixedWeight(double weight, double scale) { return std::llrint(weight * scale); }

// Adds `weight` to `sum`, both as bits of `kind`.
inline void AddWeight(KeyWeights kind, uint64_t weight, uint64_t& sum) {
  sum = kind == KeyWeights::kFloat ? std::bit_cast<uint64_t>(std::bit_cast<double>(sum) + std::bit_cast<double>(weight))
                                   : sum + weight;
}
inline void AddWeight(KeyWeights, const WideBinnedSum& weight, WideBinnedSum& sum) { sum.Merge(weight); }

// Returns: the value of a sum of weights. `unit`: 2^-t.
inline double WeightValue(KeyWeights kind, uint64_t sum, double unit) {
  return kind == KeyWeights::kFloat ? std::bit_cast<double>(sum)
                                    : static_cast<double>(static_cast<int64_t>(sum)) * unit;
}
inline double WeightValue(KeyWeights, const WideBinnedSum& sum, double) { return sum.Value(); }

// Returns: sums of weights as kernels take them; null for binned ones, of which no kernel knows.
inline uint64_t* WordsOf(Column<uint64_t>& sums) { return sums.data(); }
inline uint64_t* WordsOf(Column<WideBinnedSum>&) { return nullptr; }

// The columns of folded rows besides the keys.
struct RowShape {
  size_t columns = 1;  // accumulators a key
  bool counts = true;
  KeyWeights key_weights = KeyWeights::kNone;
};

inline RowShape ShapeOf(const TensorSpec& spec) { return {NumColumns(spec), NeedsCounts(spec), KeyWeightsOf(spec)}; }

// Rows in ascending order of key. All columns have an entry a row (`accs`: RowShape::columns); absent ones are empty.
template <typename Key, typename Acc>
struct FoldedRows {
  static constexpr bool kBinned = std::is_same_v<Acc, NarrowBinnedSum> || std::is_same_v<Acc, WideBinnedSum>;
  using WeightSum = std::conditional_t<kBinned, WideBinnedSum, uint64_t>;  // see KeyWeights

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
           weights.size() * sizeof(WeightSum);
  }
};

// Returns: the direct output of unfinished rows: of those of `rows`, from row `at` on.
template <typename Key, typename Acc>
DirectOutput<Key> UnfinishedOutput(const RowShape& shape, FoldedRows<Key, Acc>& rows, uint64_t at = 0) {
  DirectOutput<Key> output;
  output.keys = rows.keys.data() + at;
  output.columns = shape.columns;
  output.dtype = std::is_same_v<Acc, double> ? DType::kFloat64 : DType::kInt64;
  output.values = reinterpret_cast<std::byte*>(rows.accs.data() + at * shape.columns);
  if (shape.counts) output.counts = rows.counts.data() + at;
  if (shape.key_weights != KeyWeights::kNone) output.weights = WordsOf(rows.weights) + at;
  return output;
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ROWS_FOLDED_ROWS_H_
