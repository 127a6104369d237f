#include "host/cpu/finish/assemble.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "host/base/half.h"
#include "host/base/saturating.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/simd/kernels.h"

namespace sparseagg::cpu {
namespace {

template <uint16_t (*kRound)(double)>
void RoundToSixteen(const double* values, size_t count, std::byte* out) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits = kRound(values[i]);
    if (bits == 0x8000) bits = 0;
    std::memcpy(out + i * sizeof(bits), &bits, sizeof(bits));
  }
}

}  // namespace

void RoundTo(DType dtype, const double* values, size_t count, std::byte* out) {
  switch (dtype) {
    case DType::kFloat16:
      return RoundToSixteen<RoundToFloat16>(values, count, out);
    case DType::kBFloat16:
      return RoundToSixteen<RoundToBFloat16>(values, count, out);
    case DType::kFloat32:
      return RoundToFloat32(values, count, reinterpret_cast<float*>(out));
    default:
      for (size_t i = 0; i < count; ++i) {
        const double value = std::isnan(values[i]) ? std::numeric_limits<double>::quiet_NaN() : values[i] + 0.0;
        std::memcpy(out + i * sizeof(value), &value, sizeof(value));
      }
  }
}

namespace {

void Resize(const TensorSpec& spec, uint64_t num_keys, Result& result) {
  result.num_keys = num_keys;
  std::visit([&](auto& keys) { keys.resize(num_keys); }, result.keys);
  result.values.resize(num_keys * result.row_bytes());
  if (ReturnsCounts(spec)) result.counts.resize(num_keys);
  if (spec.aggregation.return_weights) result.weights.resize(num_keys);
}

// Writes the spec's `fill` as one value of the result's dtype.
void WriteFill(const TensorSpec& spec, std::byte* out) {
  const DType dtype = ResultDType(spec);
  const double fill = spec.aggregation.fill;
  if (IsFloat(dtype)) {
    RoundTo(dtype, &fill, 1, out);
  } else if (IsModular(dtype)) {
    const auto value = static_cast<uint64_t>(fill);
    std::memcpy(out, &value, SizeOf(dtype));
  } else {
    const auto value = static_cast<int64_t>(fill);
    std::memcpy(out, &value, sizeof(value));
  }
}

}  // namespace

Result MakeSparse(const TensorSpec& spec, uint64_t num_keys) {
  Result result = EmptyResult(spec);
  Resize(spec, num_keys, result);
  return result;
}

void CutSparse(const TensorSpec& spec, uint64_t num_keys, Result& result) {
  Resize(spec, num_keys, result);
  std::visit([](auto& keys) { keys.Trim(); }, result.keys);
  result.values.Trim();
  result.counts.Trim();
  result.weights.Trim();
}

Result MakeDense(const TensorSpec& spec) {
  Result result = EmptyResult(spec);
  result.layout = Layout::kDense;
  result.num_keys = spec.num_rows;
  result.values.resize(SaturatingMultiply(spec.num_rows, result.row_bytes()));
  if (ReturnsCounts(spec)) result.counts.resize(spec.num_rows);
  if (spec.aggregation.return_weights) result.weights.resize(spec.num_rows);
  return result;
}

DenseFill::DenseFill(const TensorSpec& spec) {
  if (spec.aggregation.op == Op::kUnion) return;
  WriteFill(spec, value_);
  is_zero_ = std::all_of(value_, value_ + SizeOf(ResultDType(spec)), [](std::byte b) { return b == std::byte{0}; });
}

void DenseFill::Rows(uint64_t begin, uint64_t end, Result& result) const {
  Values(begin, end, result);
  Counts(begin, end, result);
  Weights(begin, end, result);
}

void DenseFill::Values(uint64_t begin, uint64_t end, Result& result) const {
  const size_t row_bytes = result.row_bytes();
  std::byte* const first = result.values.data() + begin * row_bytes;
  const size_t bytes = (end - begin) * row_bytes;
  if (is_zero_) {
    std::fill_n(first, bytes, std::byte{0});
    return;
  }
  const size_t value_bytes = SizeOf(result.dtype);
  for (size_t at = 0; at < bytes; at += value_bytes) std::memcpy(first + at, value_, value_bytes);
}

void DenseFill::Counts(uint64_t begin, uint64_t end, Result& result) const {
  if (!result.counts.empty()) std::fill_n(result.counts.data() + begin, end - begin, 0u);
}

void DenseFill::Weights(uint64_t begin, uint64_t end, Result& result) const {
  if (!result.weights.empty()) std::fill_n(result.weights.data() + begin, end - begin, 0.0);
}

Result MakeDense(const TensorSpec& spec, const Result& sparse) {
  Result result = MakeDense(spec);
  DenseFill(spec).Rows(0, spec.num_rows, result);
  const size_t row_bytes = result.row_bytes();
  for (uint64_t row = 0; row < sparse.num_keys; ++row) {
    const uint64_t key = sparse.KeyAt(row);
    if (row_bytes > 0) {
      std::memcpy(result.values.data() + key * row_bytes, sparse.values.data() + row * row_bytes, row_bytes);
    }
    if (!result.counts.empty()) result.counts[key] = sparse.counts[row];
    if (!result.weights.empty()) result.weights[key] = sparse.weights[row];
  }
  return result;
}

Result CutAndLayOut(const TensorSpec& spec, uint64_t num_rows, Result result) {
  CutSparse(spec, num_rows, result);
  if (!IsDenseResult(spec, num_rows)) return result;
  Result dense = MakeDense(spec, result);
  dense.plan = std::move(result.plan);
  return dense;
}

}  // namespace sparseagg::cpu
