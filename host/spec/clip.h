// Bounds on what one submission may add to a round, and what they did.
#ifndef SPARSEAGG_HOST_SPEC_CLIP_H_
#define SPARSEAGG_HOST_SPEC_CLIP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace sparseagg {

struct TensorSpec;

// What happens to a submission beyond a bound.
enum class ClipPolicy : uint8_t {
  kClip,    // the submission is cut down to the bound
  kReject,  // the submission is refused
};

// Bounds as a caller gives them, for a round or for one tensor. ResolveClips makes TensorClips of them.
struct ClipSpec {
  std::optional<double> l2 = std::nullopt;          // of a tensor: infinity takes the tensor out of the round's bound
  std::optional<double> linf = std::nullopt;        // the same
  std::optional<uint64_t> max_keys = std::nullopt;  // of a tensor: 0 takes the tensor out of the round's bound
  std::optional<ClipPolicy> on_clip = std::nullopt;

  bool has_bound() const { return l2.has_value() || linf.has_value() || max_keys.has_value(); }
};

// The bounds that apply to one tensor.
struct TensorClip {
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  double l2 = kNone;       // of the L2 norm; kNone: no bound
  bool shares_l2 = false;  // l2 bounds all tensors that share it together; else this tensor alone
  double linf = kNone;     // of the magnitude of each value; kNone: no bound, else a number of the dtype
  uint64_t max_keys = 0;   // of the keys of a submission; 0: no bound
  ClipPolicy on_l2 = ClipPolicy::kClip;
  ClipPolicy on_clip = ClipPolicy::kClip;  // of linf and max_keys

  bool has_bound() const { return l2 != kNone || linf != kNone || max_keys != 0; }
  // Whether the norm shows whether all values are finite: those of updates in memory are not looked at before.
  bool checks_values() const { return l2 != kNone && linf == kNone && max_keys == 0; }
};

// Sets TensorSpec::clip of all tensors of a round. A bound of `tensors[t]` overrides that bound of `round` for
// specs[t]. The round's l2 bounds all float tensors without an l2 of their own together; its max_keys bounds each
// sparse one. Tensors without float values (integers, UNION) have no bounds. Requires: the specs are valid but for
// `clip`; one ClipSpec for each. Errors: INVALID_ARGUMENT names tensor, field and value: a bound out of range, without
// effect, or of a tensor that propagates NaN and ±Inf.
absl::Status ResolveClips(const ClipSpec& round, absl::Span<const ClipSpec> tensors, absl::Span<TensorSpec> specs);

// What the bounds have done to one submission.
struct ClipOutcome {
  double factor = 1.0;  // the smallest factor of a tensor; below 1 where an L2 norm was beyond its bound
  bool linf = false;    // a value was beyond it
  bool max_keys = false;

  bool l2() const { return factor < 1.0; }
  bool is_clipped() const { return l2() || linf || max_keys; }
};

// Counts of outcomes.
struct ClipSummary {
  // Bucket b of `factors`: factors in [2^-(b + 1), 2^-b); the last one: and all below.
  static constexpr size_t kBuckets = 16;

  uint64_t num_clipped = 0;  // submissions that any bound has changed
  uint64_t num_l2 = 0;       // and those that each bound has changed
  uint64_t num_linf = 0;
  uint64_t num_max_keys = 0;
  std::array<uint64_t, kBuckets> factors = {};  // of the num_l2 submissions

  // Counts an outcome, or with count −1 takes it out again.
  void Add(const ClipOutcome& outcome, int count = 1);
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_SPEC_CLIP_H_
