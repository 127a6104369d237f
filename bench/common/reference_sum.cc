#include "bench/common/reference_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sparseagg::bench {

ReferenceSums::ReferenceSums(const Workload& workload) : row_width_(workload.spec.row_width) {
  struct Tuple {
    uint64_t key;
    const float* row;
  };
  std::vector<Tuple> tuples;
  tuples.reserve(workload.num_tuples);
  for (const ClientArrays& client : workload.clients) {
    const float* row = client.values.data();
    const auto append = [&](const auto& keys) {
      for (const uint64_t key : keys) {
        tuples.push_back({key, row});
        row += row_width_;
      }
    };
    append(client.narrow_keys);
    append(client.wide_keys);
  }
  std::stable_sort(tuples.begin(), tuples.end(), [](const Tuple& a, const Tuple& b) { return a.key < b.key; });
  for (const Tuple& tuple : tuples) {
    if (keys_.empty() || keys_.back() != tuple.key) {
      keys_.push_back(tuple.key);
      sums_.resize(sums_.size() + row_width_);
      magnitudes_.resize(sums_.size());
    }
    for (size_t c = 0; c < row_width_; ++c) {
      sums_[sums_.size() - row_width_ + c] += tuple.row[c];
      magnitudes_[sums_.size() - row_width_ + c] += std::abs(tuple.row[c]);
    }
  }
}

std::string ReferenceSums::FindDifference(const Result& result) const {
  for (size_t row = 0; row < keys_.size(); ++row) {
    const uint64_t key = keys_[row];
    if (row >= result.num_keys || result.KeyAt(row) != key) return absl::StrCat("row ", row, " is not key ", key);
    for (size_t c = 0; c < row_width_; ++c) {
      float value;
      std::memcpy(&value, result.values.data() + (row * row_width_ + c) * sizeof(value), sizeof(value));
      const float expected = static_cast<float>(sums_[row * row_width_ + c]) + 0.0f;  // −0 is 0
      if (std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(expected)) continue;
      return absl::StrCat("key ", key, ", column ", c, ": ", value, ", not ", expected);
    }
  }
  if (result.num_keys != keys_.size()) return absl::StrCat(result.num_keys, " rows, not ", keys_.size());
  return "";
}

template <typename Key>
std::string ReferenceSums::FindDifference(const std::vector<Key>& keys, const std::vector<float>& sums) const {
  for (size_t i = 0; i < std::min(keys.size(), keys_.size()); ++i) {
    if (keys[i] != keys_[i]) return absl::StrCat("row ", i, " is key ", keys[i], ", not ", keys_[i]);
    // Written so that NaN is a difference.
    if (!(std::abs(sums[i] - sums_[i]) <= 1e-4 * magnitudes_[i])) {
      return absl::StrCat("key ", keys_[i], ": ", sums[i], ", not ", sums_[i]);
    }
  }
  if (keys.size() != keys_.size()) return absl::StrCat(keys.size(), " rows, not ", keys_.size());
  return "";
}

template std::string ReferenceSums::FindDifference(const std::vector<uint32_t>&, const std::vector<float>&) const;
template std::string ReferenceSums::FindDifference(const std::vector<uint64_t>&, const std::vector<float>&) const;

}  // namespace sparseagg::bench
