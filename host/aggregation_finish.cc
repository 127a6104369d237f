// Aggregation: its results.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/aggregation.h"
#include "host/base/float_environment.h"
#include "host/base/status_macros.h"
#include "host/private_sums.h"
#include "host/result.h"

namespace sparseagg {
namespace {

// Returns: OK if an aggregation without submissions has a result for a tensor of dense layout.
absl::Status CheckMayBeEmpty(const TensorSpec& spec) {
  if (spec.aggregation.on_empty == EmptyPolicy::kKeep) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Quoted(spec), ": there are no submissions, so that a dense tensor has no ",
                   Name(spec.aggregation.op), " (on_empty is fail; keep gives a sparse result without rows)"));
}

// Sets result.moments: for each row of `result` the row of `moments` of the same key, and zeros where it has none, or
// where `result` has a count of 0: at keys of a dense result that were dropped.
// `moments`: the sparse result of MomentsSpec, of float64. Throws std::bad_alloc.
void AddMoments(const Result& moments, Result& result) {
  const size_t width = result.row_width;
  result.moments.resize(result.num_keys * width);
  uint64_t from = 0;
  for (uint64_t row = 0; row < result.num_keys; ++row) {
    const uint64_t key = result.KeyAt(row);
    while (from < moments.num_keys && moments.KeyAt(from) < key) ++from;
    double* const out = result.moments.data() + row * width;
    const bool is_dropped = !result.counts.empty() && result.counts[row] == 0;
    if (!is_dropped && from < moments.num_keys && moments.KeyAt(from) == key) {
      std::memcpy(out, moments.values.data() + from * width * sizeof(double), width * sizeof(double));
    } else {
      std::fill_n(out, width, 0.0);
    }
  }
}

}  // namespace

privacy::Bytes32 Aggregation::RoundKey(absl::Span<const uint32_t> order) const {
  privacy::Sha256 root;
  for (const uint32_t index : order) {
    root.AddText(client_ids_[index]);
    root.Add(digests_[index].data(), digests_[index].size());
  }
  return DeriveRoundKey(noise_, SpecDigest(tensors_), root.Finish());
}

absl::StatusOr<Result> Aggregation::FinishTensor(size_t tensor, absl::Span<const uint32_t> order,
                                                 const privacy::Bytes32& round_key) {
  Result result = EmptyResult(specs_[tensor]);
  if (!is_private_ || !order.empty()) {  // noise without submissions is noise on nothing
    ASSIGN_OR_RETURN(result, std::move(*accumulators_[tensor]).Finish(order));
  }
  if (is_private_) result = MakePrivateResult(tensors_[tensor], result, round_key);
  CutResult(tensors_[tensor], result);  // of a private result by norms that anyone may see
  if (moments_[tensor] == 0) return result;
  ASSIGN_OR_RETURN(const Result moments, std::move(*accumulators_[moments_[tensor]]).Finish(order));
  AddMoments(moments, result);
  if (!ReturnsCounts(tensors_[tensor])) result.counts = {};
  accumulators_[moments_[tensor]].reset();
  return result;
}

absl::StatusOr<std::vector<Result>> Aggregation::Finish() && {
  const DefaultFloatEnvironment environment;
  const std::vector<uint32_t> order = CanonicalOrder();
  const privacy::Bytes32 round_key = is_private_ ? RoundKey(order) : privacy::Bytes32{};
  std::vector<Result> results;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (order.empty() && tensors_[t].layout == Layout::kDense && !is_private_) {
      RETURN_IF_ERROR(CheckMayBeEmpty(tensors_[t]));
      results.push_back(EmptyResult(tensors_[t]));
    } else {
      ASSIGN_OR_RETURN(Result result, FinishTensor(t, order, round_key));
      results.push_back(std::move(result));
    }
    accumulators_[t].reset();
  }
  return results;
}

absl::StatusOr<std::vector<DeviceResult>> Aggregation::FinishOnDevice() && {
  const DefaultFloatEnvironment environment;
  if (is_private_) {
    return absl::UnimplementedError("privacy has no results in device memory: noise is drawn on the host");
  }
  for (const TensorSpec& spec : tensors_) {
    if (!HasCut(spec) && !spec.aggregation.return_moments) continue;
    return absl::UnimplementedError(absl::StrCat(
        Quoted(spec),
        ": no result in device memory: result_top_k, result_min_norm and return_moments are computed on the host"));
  }
  const std::vector<uint32_t> order = CanonicalOrder();
  std::vector<DeviceResult> results;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (order.empty() && tensors_[t].layout == Layout::kDense) {
      RETURN_IF_ERROR(CheckMayBeEmpty(tensors_[t]));
      results.push_back(FormOf(EmptyResult(tensors_[t])));
    } else {
      ASSIGN_OR_RETURN(DeviceResult result, std::move(*accumulators_[t]).FinishOnDevice(order));
      results.push_back(std::move(result));
    }
    accumulators_[t].reset();
  }
  return results;
}

}  // namespace sparseagg
