// A model as a list of all its versions, each a map of rows: slow and obvious.
#ifndef SPARSEAGG_TESTS_HOST_MODEL_MODEL_ORACLE_H_
#define SPARSEAGG_TESTS_HOST_MODEL_MODEL_ORACLE_H_

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/model/initial_rows.h"
#include "host/model/model.h"
#include "host/result.h"
#include "tests/host/model/step_reference.h"
#include "tests/support/random.h"

namespace sparseagg::testing {

using Row = std::vector<float>;
using Rows = std::map<uint64_t, Row>;

// Returns: a sparse result of float32, with keys of 32 bits if `is_narrow`.
inline Result ResultOf(const Rows& rows, const ModelTensorSpec& tensor, bool is_narrow = false) {
  Result result;
  result.row_width = tensor.row_width;
  result.num_rows = tensor.num_rows;
  result.num_keys = rows.size();
  if (!is_narrow) result.keys.emplace<Column<uint64_t>>();
  for (const auto& [key, row] : rows) {
    std::visit(
        [&, k = key](auto& keys) { keys.push_back(static_cast<uint32_t>(k) == k ? static_cast<uint32_t>(k) : k); },
        result.keys);
    result.values.Append(reinterpret_cast<const std::byte*>(row.data()), row.size() * sizeof(float));
  }
  return result;
}

// Returns: the same as a dense result with counts, whose absent rows are NaN.
inline Result DenseResultOf(const Rows& rows, const ModelTensorSpec& tensor) {
  Result result;
  result.layout = Layout::kDense;
  result.row_width = tensor.row_width;
  result.num_rows = result.num_keys = tensor.num_rows;
  for (uint64_t key = 0; key < tensor.num_rows; ++key) {
    const auto found = rows.find(key);
    const Row row = found == rows.end() ? Row(tensor.row_width, std::nanf("")) : found->second;
    result.counts.push_back(found != rows.end());
    result.values.Append(reinterpret_cast<const std::byte*>(row.data()), row.size() * sizeof(float));
  }
  return result;
}

// One float32 tensor.
class ModelOracle {
 public:
  ModelOracle(const ModelTensorSpec& tensor, const Rows& initial) : tensor_(tensor) {
    Version first;
    for (const auto& [key, row] : initial) {
      first.rows[key] = row;
      state_[key].assign(row.size(), {});
      touched_[key] = 0;
    }
    versions_.push_back(first);
  }

  void Apply(const Rows& delta) {
    Version next = versions_.back();
    const auto version = versions_.size();
    next.changed.clear();
    if (!delta.empty()) ++steps_;
    for (const auto& [key, row] : delta) {
      Row& x = next.rows.try_emplace(key, Initial(key)).first->second;
      auto& state = state_[key];
      state.resize(row.size());
      for (size_t c = 0; c < row.size(); ++c) {
        const StepValue after =
            ReferenceStep(tensor_.optimizer, steps_, {x[c], state[c].first, state[c].second}, row[c]);
        x[c] = static_cast<float>(after.x);
        state[c] = {static_cast<float>(after.m), static_cast<float>(after.v)};
      }
      touched_[key] = version;
      next.changed.insert(key);
    }
    std::vector<std::pair<uint64_t, uint64_t>> left;
    std::vector<uint64_t> dead;
    for (const auto& [key, touched] : touched_) {
      if (tensor_.expire_after != 0 && version - touched > tensor_.expire_after) {
        dead.push_back(key);
      } else {
        left.emplace_back(touched, key);
      }
    }
    std::sort(left.begin(), left.end());
    for (size_t i = 0; tensor_.max_rows != 0 && i + tensor_.max_rows < left.size(); ++i) dead.push_back(left[i].second);
    for (const uint64_t key : dead) {
      next.rows.erase(key);
      touched_.erase(key);
      state_.erase(key);
      next.changed.insert(key);
    }
    num_removed_ += dead.size();
    versions_.push_back(next);
  }

  uint64_t version() const { return versions_.size() - 1; }
  uint64_t num_removed() const { return num_removed_; }
  const Rows& At(uint64_t version) const { return versions_[version].rows; }
  bool IsChanged(uint64_t key, uint64_t since, uint64_t version) const {
    for (uint64_t v = since + 1; v <= version; ++v) {
      if (versions_[v].changed.count(key) != 0) return true;
    }
    return false;
  }
  Row Initial(uint64_t key) const {
    Row row(tensor_.row_width);
    WriteInitialRows(tensor_, 0, {&key, 1}, reinterpret_cast<std::byte*>(row.data()));
    return row;
  }

 private:
  struct Version {
    Rows rows;
    std::set<uint64_t> changed;  // against the version before
  };

  const ModelTensorSpec tensor_;
  std::vector<Version> versions_;
  std::map<uint64_t, std::vector<std::pair<float, float>>> state_;
  std::map<uint64_t, uint64_t> touched_;
  int steps_ = 0;
  uint64_t num_removed_ = 0;
};

// Returns: the pieces of Model::Save.
inline std::vector<std::string> Saved(const Model& model) {
  std::vector<std::string> pieces;
  const absl::Status saved = model.Save([&](absl::Span<const absl::string_view> spans) {
    std::string& piece = pieces.emplace_back();
    for (const absl::string_view span : spans) absl::StrAppend(&piece, span);
    return absl::OkStatus();
  });
  return saved.ok() ? pieces : std::vector<std::string>{};
}

inline absl::Status RestoreAll(const std::vector<std::string>& pieces, Model& model) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (const absl::Status restored = model.Restore(pieces[i], i + 1 == pieces.size()); !restored.ok()) return restored;
  }
  return absl::OkStatus();
}

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_HOST_MODEL_MODEL_ORACLE_H_
