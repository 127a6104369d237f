// One aggregation over several tensors: what the server's rounds, the one-shot call and in-process use share. It knows
// nothing of time, network or limits.
#ifndef SPARSEAGG_HOST_AGGREGATION_H_
#define SPARSEAGG_HOST_AGGREGATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/engine.h"
#include "host/result.h"
#include "host/spec.h"
#include "host/update.h"

namespace sparseagg {

// A submission ready to be counted: one prepared update a tensor.
struct PreparedSubmission {
  std::vector<std::unique_ptr<PreparedUpdate>> updates;
  size_t memory_bytes() const;
};

class Aggregation {
 public:
  // INVALID_ARGUMENT: a bad tensor spec, no tensors, or two of one name.
  static absl::StatusOr<std::unique_ptr<Aggregation>> Create(Engine& engine, std::vector<TensorSpec> tensors);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // Index of a tensor by name, or INVALID_ARGUMENT that lists the known ones.
  absl::StatusOr<size_t> FindTensor(absl::string_view name) const;

  // Any number of threads at once. `updates[t]` belongs to tensors()[t]; all of one weight.
  absl::StatusOr<PreparedSubmission> Prepare(std::vector<ValidatedUpdate> updates) const;

  // One thread at a time. `client_id` decides the canonical order; ALREADY_EXISTS if it was added before;
  // RESOURCE_EXHAUSTED beyond the max_submissions of a fixed-point tensor. Other errors leave a partial state behind,
  // and the aggregation must not be finished.
  absl::Status Add(std::string client_id, PreparedSubmission submission);

  // Takes over all submissions of `other`, which has the same tensors and engine.
  absl::Status MergeFrom(Aggregation&& other);

  // Results in the order of tensors(). Spent afterwards.
  absl::StatusOr<std::vector<Result>> Finish() &&;

  uint64_t num_submissions() const { return client_ids_.size(); }
  size_t memory_bytes() const;

 private:
  Aggregation() = default;

  // RESOURCE_EXHAUSTED when a fixed-point tensor has no room for `num_more` submissions.
  absl::Status CheckRoom(uint64_t num_more) const;

  std::vector<TensorSpec> tensors_;
  std::vector<std::unique_ptr<Accumulator>> accumulators_;
  std::vector<std::string> client_ids_;  // in order of Add
  absl::flat_hash_set<std::string> known_clients_;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_AGGREGATION_H_
