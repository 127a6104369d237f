#include "cuda/merge/tensor_shape.h"

#include <bit>
#include <utility>

#include "host/base/status_macros.h"
#include "host/spec/spec.h"

namespace sparseagg::cuda {
namespace {

FoldKind FoldOf(const TensorSpec& spec) {
  const Op op = spec.aggregation.op;
  if (op == Op::kMin) return IsFloat(spec.dtype) ? FoldKind::kMinFloat : FoldKind::kMinInteger;
  if (op == Op::kMax) return IsFloat(spec.dtype) ? FoldKind::kMaxFloat : FoldKind::kMaxInteger;
  if (op == Op::kUnion) return FoldKind::kSumModular;  // without columns to fold
  if (spec.modular) return FoldKind::kSumModular;
  if (spec.aggregation.numerics == Numerics::kBinned) {
    return spec.dtype == DType::kFloat64 ? FoldKind::kSumWideBinned : FoldKind::kSumNarrowBinned;
  }
  return IsSignedInteger(spec.dtype) ? FoldKind::kSumInteger : FoldKind::kSumFloat;
}

}  // namespace

TensorShape::TensorShape(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  num_rows = spec.num_rows;
  key_bytes = KeyBytes(spec);
  key_bits = spec.num_rows == 0 ? 64 : std::bit_width(spec.num_rows - 1);
  columns = NumColumns(spec);
  row_bytes = columns * SizeOf(spec.dtype);
  type = spec.dtype;
  fold = FoldOf(spec);
  weighted = a.weighting != Weighting::kUniform && MultipliesByWeight(a.op) && !spec.modular;
  uniform = !weighted && !spec.clip.has_bound();
  counts = NeedsCounts(spec);
  if (NeedsKeyWeights(spec)) {
    key_weights = BinsKeyWeights(spec) ? WeightKind::kBinned : WeightKind::kFloat;
  }
}

Source TensorShape::MakeSource(const ValidatedUpdate& update) const {
  const double weight = update.weight();
  Source source;
  source.factor = update.factor();
  if (weighted) {
    source.weight = weight;
    if (fold == FoldKind::kSumInteger) source.integer_weight = static_cast<int64_t>(weight);
  }
  source.key_weight = weight;
  return source;
}

size_t TensorShape::RowBytes() const {
  size_t bytes = 0;
  for (const RowColumn column : kRowColumns) bytes += BytesPerRow(*this, column);
  return bytes;
}

absl::StatusOr<DeviceRows> AllocateRows(Session& session, const TensorShape& shape, uint32_t num_rows,
                                        const FoldedRows& rounding) {
  DeviceRows rows;
  rows.num_rows = num_rows;
  rows.rounded = rounding.rounded;
  for (const RowColumn column : kRowColumns) {
    if (rounding.rounded && column == RowColumn::kTops) continue;
    const bool is_value = rounding.rounded && column == RowColumn::kAccs;
    const size_t row_bytes = is_value ? size_t{shape.columns} * SizeOf(rounding.type) : BytesPerRow(shape, column);
    ASSIGN_OR_RETURN(rows[column], session.Allocate(num_rows * row_bytes));
  }
  return rows;
}

}  // namespace sparseagg::cuda
