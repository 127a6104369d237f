// Takes raw submissions through the real path: chunks, UpdateBuilder, ValidatedUpdate, Aggregation.
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
  // Shuffles the submissions, cuts them into random chunks and packs their keys in random ways; none: in the order
  // given, one chunk each.
  std::optional<uint64_t> shuffle_seed = std::nullopt;
  // Submissions are dealt to so many aggregations, which are then merged in random pairs.
  int num_aggregations = 1;
  // Gives the submissions in ascending order of their client ids, and folds what there is after some of them. Only for
  // the CPU engine, in one aggregation.
  std::optional<uint64_t> fold_seed = std::nullopt;
};

struct Driven {
  std::vector<absl::Status> submissions;  // of each submission, in the order given
  absl::StatusOr<std::vector<Result>> results;
};

// The validated updates of one submission; an error when it is refused.
absl::StatusOr<std::vector<ValidatedUpdate>> BuildUpdates(const std::vector<TensorSpec>& specs,
                                                          const RawSubmission& submission,
                                                          std::optional<uint64_t> chunk_seed = std::nullopt);

// One submission, all the way into an aggregation.
absl::Status Submit(Aggregation& aggregation, const RawSubmission& submission,
                    std::optional<uint64_t> chunk_seed = std::nullopt);

// `specs` must pass Validate.
Driven Drive(Engine& engine, const std::vector<TensorSpec>& specs, const std::vector<RawSubmission>& submissions,
             const DriveOptions& options = {});

// Empty when the engine did what the reference demands: every submission counted or refused with the right code, and
// the same bits or the right failure. Else the first disagreement.
std::string Disagreement(const std::vector<TensorSpec>& specs, const Driven& driven, const Verdict& verdict);

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_DRIVER_H_
