// From a round as a caller describes it to the specs of its tensors. Every default, rule and error text of a round's
// spec is here, in clip.h and in privacy.h.
#ifndef SPARSEAGG_HOST_SPEC_VALIDATE_H_
#define SPARSEAGG_HOST_SPEC_VALIDATE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/spec/clip.h"
#include "host/spec/privacy.h"
#include "host/spec/spec.h"

namespace sparseagg {

// The options that a round sets and a tensor may override: the fields of AggregationSpec and OrderOptions, which say
// what they mean. nullopt: not set.
struct Options {
  std::optional<Op> op;
  std::optional<Weighting> weighting;
  std::optional<ResultLayout> result_layout;
  std::optional<Numerics> numerics;
  std::optional<bool> return_counts;
  std::optional<bool> return_weights;
  std::optional<bool> return_moments;
  std::optional<uint32_t> min_contributors;
  std::optional<bool> prune_zeros;
  std::optional<double> fill;
  std::optional<double> dense_threshold;
  std::optional<DType> result_dtype;
  std::optional<NonfinitePolicy> on_nonfinite;
  std::optional<EmptyPolicy> on_empty;
  std::optional<MeanDivisor> mean_divisor;
  std::optional<double> fixed_divisor;
  std::optional<uint64_t> result_top_k;
  std::optional<double> result_min_norm;
  std::optional<double> trim_fraction;
  std::optional<double> quantile;
  std::optional<AbsentPolicy> absent;
};

// A round as a caller describes it.
struct RoundDraft {
  struct Tensor {
    TensorSpec spec;  // name, dtype, num_rows, row_width, layout and modular; ResolveRound sets the rest
    Options options;
    ClipSpec clip;
    std::optional<std::vector<uint64_t>> shape;
  };
  std::vector<Tensor> tensors;
  Options options;  // of the round
  ClipSpec clip;
  std::optional<PrivacySpec> privacy;
  uint64_t min_submissions = 0;  // 0: none
  uint64_t max_submissions = 0;  // 0: none
  bool keep_submissions = false;
  bool accepts_partials = false;
  bool has_certificate = false;
  bool has_cluster = false;
  // Whether a server has taken the round before. An earlier release may have taken options without effect.
  bool is_stored = false;
};

// Returns: the specs of the tensors, with all defaults filled in: each option is that of the tensor, or else that of
// the round, or else the default.
// Errors: INVALID_ARGUMENT names tensor, option and value: an option out of range, or without effect (on the tensor
// that sets it, or on all tensors if the round sets it), or options that exclude each other.
absl::StatusOr<std::vector<TensorSpec>> ResolveRound(RoundDraft draft);

// Errors: INVALID_ARGUMENT unless the shape has num_rows · row_width elements.
absl::Status CheckShape(absl::Span<const uint64_t> sizes, const TensorSpec& spec);

// Returns: OK if a tensor has partials (host/partial.h).
// Errors: FAILED_PRECONDITION: the order of its submissions matters, so that only all of them together keep the bits of
// the result.
absl::Status CheckHasPartials(const TensorSpec& spec);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_SPEC_VALIDATE_H_
