// The slow reference of the engines: the whole semantics over raw submissions.
//
// Shares no code with host/, only the types of specs and results. Never linked into a program that people run.
#ifndef SPARSEAGG_TESTS_SUPPORT_REFERENCE_H_
#define SPARSEAGG_TESTS_SUPPORT_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/result.h"
#include "host/spec/spec.h"
#include "tests/support/submission.h"

namespace sparseagg::testing {

// Every reason to refuse `submission`, in order of tensors; none: it counts. A submission may have several flaws, and
// an engine may report any of them.
std::vector<absl::Status> Flaws(const std::vector<TensorSpec>& specs, const RawSubmission& submission);

// Why a round has no result.
struct Failure {
  absl::StatusCode code;
  size_t tensor;
  uint64_t key;           // the smallest with this failure
  bool is_key_named;      // unless min_contributors hides it
  bool is_empty = false;  // there are no submissions, and so no key
};

struct Verdict {
  std::vector<std::vector<absl::Status>> flaws;  // of each submission; empty: it counts
  std::vector<Failure> failures;                 // at most one of each code for a tensor
  std::vector<Result> results;                   // of all tensors, when there are no failures
};

// Requires specs that pass Validate. Of two submissions of one client the first stands.
Verdict Judge(const std::vector<TensorSpec>& specs, const std::vector<RawSubmission>& submissions);

// The results alone, over the submissions that count; or the first failure.
absl::StatusOr<std::vector<Result>> Reference(const std::vector<TensorSpec>& specs,
                                              const std::vector<RawSubmission>& submissions);

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_REFERENCE_H_
