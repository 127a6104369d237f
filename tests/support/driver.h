// The path of raw submissions through chunks, UpdateBuilder, ValidatedUpdate and Aggregation.
#ifndef SPARSEAGG_TESTS_SUPPORT_DRIVER_H_
#define SPARSEAGG_TESTS_SUPPORT_DRIVER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/aggregation.h"
#include "host/engine.h"
#include "host/result.h"
#include "host/spec/spec.h"
#include "tests/support/reference.h"
#include "tests/support/submission.h"

namespace sparseagg::testing {

struct DriveOptions {
  // If given: shuffles the submissions, cuts them into random chunks and encodes their keys in random ways. Otherwise
  // the submissions come in the order given, in one chunk each.
  std::optional<uint64_t> shuffle_seed = std::nullopt;
  // Deals the submissions to this many aggregations, and then merges these in random pairs.
  int num_aggregations = 1;
  // Adds the aggregations to one of `partial_engine` as partials of random blocks, if the specs have partials; the last
  // half of them through another aggregation, as a tree. Null: they are merged with MergeFrom.
  Engine* partial_engine = nullptr;
  // If given: adds the submissions in ascending order of client id, and folds the pending ones after random
  // submissions. For one aggregation only.
  std::optional<uint64_t> fold_seed = std::nullopt;
};

// The outcome of Drive.
struct Driven {
  std::vector<absl::Status> submissions;  // one status for each submission, in the order given
  absl::StatusOr<std::vector<Result>> results;
};

// Builds the validated updates of one submission.
// Errors: the submission is refused.
absl::StatusOr<std::vector<ValidatedUpdate>> BuildUpdates(const std::vector<TensorSpec>& specs,
                                                          const RawSubmission& submission,
                                                          std::optional<uint64_t> chunk_seed = std::nullopt);

// Adds one submission to an aggregation.
// Errors: the submission is refused.
absl::Status Submit(Aggregation& aggregation, const RawSubmission& submission,
                    std::optional<uint64_t> chunk_seed = std::nullopt);

// Runs a whole aggregation of `submissions`.
// Requires: `specs` pass Validate.
Driven Drive(Engine& engine, const std::vector<TensorSpec>& specs, const std::vector<RawSubmission>& submissions,
             const DriveOptions& options = {});

// Compares the engine with the reference: every submission counted or refused with the right code, and the same bits or
// the right failure.
// Returns: the first disagreement; empty if there is none.
std::string Disagreement(const std::vector<TensorSpec>& specs, const Driven& driven, const Verdict& verdict);

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_DRIVER_H_
