#include "bench/common/reference_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace sparseagg::bench {
namespace {

std::vector<WorkloadTuple> SortedTuples(const Workload& workload) {
  std::vector<WorkloadTuple> tuples;
  tuples.reserve(workload.num_tuples);
  for (uint32_t k = 0; k < workload.clients.size(); ++k) {
    const ClientArrays& client = workload.clients[k];
    const bool narrow = !client.narrow_keys.empty();
    const size_t count = narrow ? client.narrow_keys.size() : client.wide_keys.size();
    for (uint32_t row = 0; row < count; ++row) {
      tuples.push_back({narrow ? client.narrow_keys[row] : client.wide_keys[row], k, row});
    }
  }
  std::sort(tuples.begin(), tuples.end(), [](const WorkloadTuple& a, const WorkloadTuple& b) {
    return std::tie(a.key, a.client, a.row) < std::tie(b.key, b.client, b.row);
  });
  return tuples;
}

// Returns: whether a row of a dense result is all zero bits.
bool IsUntouched(const Result& result, uint64_t row) {
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  const auto first = result.values.begin() + row * result.row_bytes();
  return std::all_of(first, first + result.row_bytes(), is_zero) && (result.counts.empty() || result.counts[row] == 0);
}

}  // namespace

CanonicalSums::CanonicalSums(const Workload& workload) : workload_(workload), tuples_(SortedTuples(workload)) {}

std::string CanonicalSums::FindDifference(const AggregationSpec& aggregation, const Result& result) const {
  const size_t row_width = workload_.spec.row_width;
  const auto weight_of = [&](const ClientArrays& client) {
    return aggregation.weighting == Weighting::kByWeight ? client.weight : 1.0;
  };
  double total_weight = 0.0;
  for (const ClientArrays& client : workload_.clients) total_weight += weight_of(client);
  std::vector<double> sum(row_width);
  std::vector<double> own(row_width);
  uint64_t row = 0;
  for (size_t i = 0; i < tuples_.size(); ++row) {
    const uint64_t key = tuples_[i].key;
    std::fill(sum.begin(), sum.end(), 0.0);
    uint32_t count = 0;
    double key_weight = 0.0;
    while (i < tuples_.size() && tuples_[i].key == key) {
      // A client's repeated rows are folded before they are weighted.
      const uint32_t client = tuples_[i].client;
      std::fill(own.begin(), own.end(), 0.0);
      for (; i < tuples_.size() && tuples_[i].key == key && tuples_[i].client == client; ++i) {
        const float* values = workload_.clients[client].values.data() + tuples_[i].row * row_width;
        for (size_t c = 0; c < row_width; ++c) own[c] += values[c];
      }
      const double weight = weight_of(workload_.clients[client]);
      for (size_t c = 0; c < row_width; ++c) sum[c] += weight * own[c];
      ++count;
      key_weight += weight;
    }
    const double divisor = aggregation.op == Op::kMean             ? total_weight
                           : aggregation.op == Op::kCoordinateMean ? key_weight
                                                                   : 1.0;
    for (double& value : sum) value /= divisor;
    for (; result.layout == Layout::kDense && row < std::min(key, result.num_keys); ++row) {
      if (!IsUntouched(result, row)) return absl::StrCat("key ", row, " has a row that nobody sent");
    }
    if (row >= result.num_keys || result.KeyAt(row) != key) return absl::StrCat("row ", row, " is not key ", key);
    if (!result.counts.empty() && result.counts[row] != count) {
      return absl::StrCat("key ", key, ": count ", result.counts[row], ", not ", count);
    }
    for (size_t c = 0; c < row_width; ++c) {
      float value;
      std::memcpy(&value, result.values.data() + (row * row_width + c) * sizeof(value), sizeof(value));
      const auto expected = static_cast<float>(sum[c]);
      if (result.fixed_point_shift.has_value()) {
        const double tolerance = count * std::ldexp(1.0, -*result.fixed_point_shift) + std::abs(sum[c]) * 0x1p-24;
        if (std::abs(value - sum[c]) <= tolerance) continue;
      } else if (std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(expected + 0.0f)) {
        continue;
      }
      return absl::StrCat("key ", key, ", column ", c, ": ", value, ", not ", expected);
    }
  }
  for (; result.layout == Layout::kDense && row < result.num_keys; ++row) {
    if (!IsUntouched(result, row)) return absl::StrCat("key ", row, " has a row that nobody sent");
  }
  if (row != result.num_keys) return absl::StrCat(result.num_keys, " rows, not ", row);
  return "";
}

PlainSums::PlainSums(const Workload& workload) {
  for (const WorkloadTuple& tuple : SortedTuples(workload)) {
    const float value = workload.clients[tuple.client].values[tuple.row];
    if (rows_.empty() || rows_.back().key != tuple.key) rows_.push_back({tuple.key, 0.0, 0.0});
    rows_.back().sum += value;
    rows_.back().magnitude += std::abs(value);
  }
}

template <typename Key>
std::string PlainSums::FindDifference(const std::vector<Key>& keys, const std::vector<float>& sums) const {
  for (size_t i = 0; i < std::min(keys.size(), rows_.size()); ++i) {
    const Row& row = rows_[i];
    if (keys[i] != row.key) return absl::StrCat("row ", i, " is key ", keys[i], ", not ", row.key);
    // Written so that NaN is a difference.
    if (!(std::abs(sums[i] - row.sum) <= 1e-4 * row.magnitude)) {
      return absl::StrCat("key ", row.key, ": ", sums[i], ", not ", row.sum);
    }
  }
  if (keys.size() != rows_.size()) return absl::StrCat(keys.size(), " rows, not ", rows_.size());
  return "";
}

template std::string PlainSums::FindDifference(const std::vector<uint32_t>&, const std::vector<float>&) const;
template std::string PlainSums::FindDifference(const std::vector<uint64_t>&, const std::vector<float>&) const;

}  // namespace sparseagg::bench
