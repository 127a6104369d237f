// Unfinished rows: what an engine has summed up of a tensor, before it makes the result of it.
#ifndef SPARSEAGG_HOST_UNFINISHED_ROWS_H_
#define SPARSEAGG_HOST_UNFINISHED_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "host/base/binned.h"
#include "host/base/column.h"
#include "host/engine.h"

namespace sparseagg {

// Rows in ascending order of key, as all engines hold them. Columns that the tensor does not need are empty.
struct UnfinishedRows {
  uint64_t num_rows = 0;
  Column<std::byte> keys;     // uint32 or uint64, as HasNarrowKeys says
  Column<std::byte> accs;     // row_width accumulators a row, each of 8 bytes; of 16 for sums of signed integers; of
                              // the digits of binned sums
  Column<std::byte> counts;   // uint32: the contributors of the key
  Column<std::byte> weights;  // BinnedWeights: the sum of the weights of the key's contributors
  Column<std::byte> tops;     // uint8: BinnedSum::top of each accumulator of binned sums

  size_t memory_bytes() const { return keys.size() + accs.size() + counts.size() + weights.size() + tops.size(); }
};

// Writes a binned sum as value i of the rows, whose columns are large enough.
template <class Sum>
void SetBinned(const Sum& sum, uint64_t i, UnfinishedRows& rows) {
  std::copy_n(sum.digits, Sum::kBins, reinterpret_cast<int64_t*>(rows.accs.data()) + i * Sum::kBins);
  rows.tops[i] = std::byte{sum.top};
}
// Returns: value i of rows of binned sums.
template <class Sum>
Sum BinnedAt(const UnfinishedRows& rows, uint64_t i) {
  Sum sum;
  std::copy_n(reinterpret_cast<const int64_t*>(rows.accs.data()) + i * Sum::kBins, Sum::kBins, sum.digits);
  sum.top = std::to_integer<uint8_t>(rows.tops[i]);
  return sum;
}

// The weight of a submission in an accumulator that stands for a partial, whose totals are counted apart.
inline constexpr double kPartialWeight = -1.0;

// Unfinished rows, for Accumulator::Add. Every engine takes it as it is.
class PartialUpdate : public PreparedUpdate {
 public:
  // `weights`: one for each submission in the rows; kPartialWeight: the submission is a partial, which `totals` count.
  PartialUpdate(std::shared_ptr<const UnfinishedRows> rows, std::vector<double> weights, PartialTotals totals)
      : rows_(std::move(rows)), weights_(std::move(weights)), totals_(totals) {}

  bool is_partial() const override { return true; }
  size_t memory_bytes() const override { return rows_->memory_bytes(); }
  const UnfinishedRows& rows() const { return *rows_; }
  const std::vector<double>& weights() const { return weights_; }
  const PartialTotals& totals() const { return totals_; }

 private:
  const std::shared_ptr<const UnfinishedRows> rows_;
  const std::vector<double> weights_;
  const PartialTotals totals_;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_UNFINISHED_ROWS_H_
