#include "cuda/merge/tensor_shape.h"

#include <bit>
#include <cmath>
#include <utility>

#include "host/base/status_macros.h"
#include "host/spec/spec.h"

namespace sparseagg::cuda {
namespace {

FoldKind FoldOf(const TensorSpec& spec) {
  const Op op = spec.aggregation.op;
  if (op == Op::kMin) return IsFloat(spec.dtype) ? FoldKind::kMinFloat : FoldKind::kMinInteger;
  if (op == Op::kMax) return IsFloat(spec.dtype) ? FoldKind::kMaxFloat : FoldKind::kMaxInteger;
  if (op == Op::kUnion || UsesFixedPoint(spec)) return FoldKind::kSumFixed;  // UNION has no columns to fold
  if (spec.modular) return FoldKind::kSumModular;
  return IsSignedInteger(spec.dtype) ? FoldKind::kSumInteger : FoldKind::kSumFloat;
}

WeightKind KeyWeightsOf(const AggregationSpec& a) {
  if (a.weighting == Weighting::kUniform) return WeightKind::kCounts;
  if (a.op != Op::kCoordinateMean && !a.return_weights) return WeightKind::kCounts;
  return a.numerics == Numerics::kFixedPoint ? WeightKind::kFixed : WeightKind::kFloat;
}

bool NeedsCounts(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  const bool weights_are_counts =
      a.weighting == Weighting::kUniform && (a.return_weights || a.op == Op::kCoordinateMean);
  return ReturnsCounts(spec) || a.min_contributors > 1 || weights_are_counts;
}

std::optional<OrderRule> OrderOf(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (!IsOrderStatistic(a.op)) return std::nullopt;
  OrderRule rule;
  rule.op = a.op == Op::kMedian ? OrderOp::kMedian : a.op == Op::kQuantile ? OrderOp::kQuantile : OrderOp::kTrimmedMean;
  rule.trim_fraction = a.order.trim_fraction.value_or(0.0);
  rule.quantile = a.order.quantile.value_or(0.5);
  rule.absent_is_zero = a.order.absent == AbsentPolicy::kZero;
  rule.may_be_nan = a.on_nonfinite == NonfinitePolicy::kPropagate;
  return rule;
}

}  // namespace

bool IsForDevice(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (a.numerics == Numerics::kBinned) return false;
  return !IsOrderStatistic(a.op) || (IsFloat(spec.dtype) && a.weighting == Weighting::kUniform);
}

Number ToNumber(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Number::kFloat32;
    case DType::kFloat16:
      return Number::kFloat16;
    case DType::kBFloat16:
      return Number::kBFloat16;
    case DType::kFloat64:
      return Number::kFloat64;
    case DType::kInt32:
      return Number::kInt32;
    case DType::kInt64:
      return Number::kInt64;
    case DType::kUInt32:
      return Number::kUInt32;
    case DType::kUInt64:
      return Number::kUInt64;
  }
  return Number::kFloat32;
}

TensorShape::TensorShape(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  num_rows = spec.num_rows;
  key_bytes = KeyBytes(spec);
  key_bits = spec.num_rows == 0 ? 64 : std::bit_width(spec.num_rows - 1);
  columns = a.op == Op::kUnion ? 0 : spec.row_width;
  row_bytes = columns * SizeOf(spec.dtype);
  type = ToNumber(spec.dtype);
  fold = FoldOf(spec);
  if (UsesFixedPoint(spec)) scale = {a.value_bound, std::ldexp(1.0, ValueShift(a))};
  weighted = a.weighting != Weighting::kUniform && MultipliesByWeight(a.op) && !spec.modular;
  scaled = spec.clip.has_bound();
  uniform = !weighted && !scaled;
  counts = NeedsCounts(spec);
  key_weights = KeyWeightsOf(a);
  if (key_weights == WeightKind::kFixed) weight_scale = std::ldexp(1.0, WeightShift(a));
  order = OrderOf(spec);
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
  if (key_weights == WeightKind::kFixed) source.fixed_weight = std::llrint(weight * weight_scale);
  return source;
}

size_t TensorShape::RowBytes() const {
  return key_bytes + size_t{columns} * AccBytes(fold) + (counts ? sizeof(uint32_t) : 0) +
         (key_weights == WeightKind::kCounts ? 0 : sizeof(double));
}

absl::StatusOr<DeviceRows> AllocateRows(Session& session, const TensorShape& shape, uint32_t num_rows) {
  DeviceRows rows;
  rows.num_rows = num_rows;
  for (const RowColumn column : kRowColumns) {
    ASSIGN_OR_RETURN(rows[column], session.Allocate(num_rows * BytesPerRow(shape, column)));
  }
  return rows;
}

UnfinishedRows ToUnfinished(HostRows&& rows) {
  UnfinishedRows unfinished;
  unfinished.num_rows = rows.num_rows;
  unfinished.keys = std::move(rows[RowColumn::kKeys]);
  unfinished.accs = std::move(rows[RowColumn::kAccs]);
  unfinished.counts = std::move(rows[RowColumn::kCounts]);
  unfinished.weights = std::move(rows[RowColumn::kWeights]);
  return unfinished;
}

HostRows FromUnfinished(UnfinishedRows&& rows) {
  HostRows host;
  host.num_rows = static_cast<uint32_t>(rows.num_rows);
  host[RowColumn::kKeys] = std::move(rows.keys);
  host[RowColumn::kAccs] = std::move(rows.accs);
  host[RowColumn::kCounts] = std::move(rows.counts);
  host[RowColumn::kWeights] = std::move(rows.weights);
  return host;
}

}  // namespace sparseagg::cuda
