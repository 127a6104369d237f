#include "host/spec/spec.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace sparseagg {

absl::string_view Name(DType dtype) {
  constexpr absl::string_view kNames[] = {"float32", "float16", "bfloat16", "float64",
                                          "int32",   "int64",   "uint32",   "uint64"};
  return kNames[static_cast<size_t>(dtype)];
}

absl::string_view Name(Op op) {
  constexpr absl::string_view kNames[] = {"sum", "mean",   "coordinate_mean", "union",   "min",
                                          "max", "median", "trimmed_mean",    "quantile"};
  return kNames[static_cast<size_t>(op)];
}

std::string Quoted(const TensorSpec& spec) { return absl::StrCat("tensor '", spec.name, "'"); }

uint64_t TrimOf(const OrderOptions& options, uint64_t n) {
  return static_cast<uint64_t>(std::floor(options.trim_fraction.value_or(0.0) * static_cast<double>(n)));
}

uint64_t QuantileIndex(double q, uint64_t n) {
  const double rank = std::max(std::ceil(q * static_cast<double>(n)), 1.0);
  return std::min(static_cast<uint64_t>(rank), n) - 1;
}

}  // namespace sparseagg
