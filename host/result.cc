#include "host/result.h"

namespace sparseagg {

size_t Result::memory_bytes() const {
  const size_t key_bytes = std::visit([](const auto& column) { return column.size() * sizeof(column[0]); }, keys);
  return key_bytes + values.size() + counts.size() * sizeof(uint32_t) + weights.size() * sizeof(double);
}

uint64_t ResultRowBytes(const TensorSpec& spec) {
  uint64_t bytes = spec.aggregation.op == Op::kUnion ? 0 : uint64_t{spec.width} * SizeOf(ResultDType(spec));
  if (ReturnsCounts(spec)) bytes += sizeof(uint32_t);
  if (spec.aggregation.return_weights) bytes += sizeof(double);
  return bytes;
}

}  // namespace sparseagg
