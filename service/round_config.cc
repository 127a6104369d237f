#include "service/round_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "host/result.h"

namespace sparseagg::service {
absl::StatusOr<size_t> RoundConfig::FindTensor(absl::string_view name) const {
  const auto found = tensor_index.find(name);
  if (found != tensor_index.end()) return found->second;
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown tensor '", name, "'; this round has ",
      absl::StrJoin(tensors, ", ",
                    [](std::string* out, const TensorSpec& spec) { absl::StrAppend(out, "'", spec.name, "'"); })));
}

uint64_t DenseResultBytes(const TensorSpec& spec) {
  if (spec.aggregation.result_layout != ResultLayout::kDense) return 0;
  return SaturatingMultiply(spec.dimension, ResultRowBytes(spec));
}

uint64_t SparseResultBytes(const TensorSpec& spec, uint64_t num_tuples) {
  if (spec.aggregation.result_layout == ResultLayout::kDense) return 0;
  const uint64_t rows = spec.dimension == 0 ? num_tuples : std::min(num_tuples, spec.dimension);
  const uint64_t key_bytes = HasNarrowKeys(spec) ? sizeof(uint32_t) : sizeof(uint64_t);
  const uint64_t sparse = SaturatingMultiply(rows, SaturatingAdd(key_bytes, ResultRowBytes(spec)));
  if (spec.aggregation.result_layout != ResultLayout::kAuto || spec.dimension == 0) return sparse;
  // AUTO: by the rule of the dense-fallback, in which UNION has the 4 bytes of a count for values.
  const uint64_t value_bytes =
      spec.aggregation.op == Op::kUnion ? sizeof(uint32_t) : uint64_t{spec.width} * SizeOf(ResultDType(spec));
  const auto threshold = spec.aggregation.dense_threshold;
  const bool may_be_dense =
      SaturatingMultiply(rows, key_bytes + value_bytes) >= SaturatingMultiply(spec.dimension, value_bytes) ||
      (threshold.has_value() && static_cast<double>(rows) >= *threshold * static_cast<double>(spec.dimension));
  return may_be_dense ? std::max(sparse, SaturatingMultiply(spec.dimension, ResultRowBytes(spec))) : sparse;
}

}  // namespace sparseagg::service
