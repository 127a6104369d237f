#include "host/spec/order.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "host/spec/spec.h"

namespace sparseagg {

uint64_t TrimOf(const OrderOptions& options, uint64_t n) {
  return static_cast<uint64_t>(std::floor(options.trim_fraction.value_or(0.0) * static_cast<double>(n)));
}

uint64_t QuantileIndex(double q, uint64_t n) {
  const double rank = std::max(std::ceil(q * static_cast<double>(n)), 1.0);
  return std::min(static_cast<uint64_t>(rank), n) - 1;
}

absl::Status ValidateOrder(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  const OrderOptions& order = a.order;
  const auto invalid = [&](auto... text) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": ", text...));
  };
  if (a.numerics == Numerics::kFixedPoint) {
    return invalid("fixed_point merges submissions as they arrive, but ", Name(a.op),
                   " needs all values of a key at once; use canonical numerics");
  }
  if (a.op == Op::kTrimmedMean) {
    if (!order.trim_fraction.has_value()) return invalid("trimmed_mean needs a trim_fraction, in [0, 0.5)");
    if (!(*order.trim_fraction >= 0.0 && *order.trim_fraction < 0.5)) {
      return invalid("trim_fraction ", *order.trim_fraction, " is not in [0, 0.5)");
    }
  }
  if (a.op == Op::kQuantile) {
    if (!order.quantile.has_value()) return invalid("the op quantile needs the option quantile, in [0, 1]");
    if (!(*order.quantile >= 0.0 && *order.quantile <= 1.0)) {
      return invalid("quantile ", *order.quantile, " is not in [0, 1]");
    }
  }
  return absl::OkStatus();
}

}  // namespace sparseagg
