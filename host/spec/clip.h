// Bounds on what one submission may add to a round.
#ifndef SPARSEAGG_HOST_SPEC_CLIP_H_
#define SPARSEAGG_HOST_SPEC_CLIP_H_

#include <cstdint>
#include <limits>
#include <optional>

namespace sparseagg {

// What happens to a submission beyond a bound.
enum class ClipPolicy : uint8_t {
  kClip,    // the submission is cut down to the bound
  kReject,  // the submission is refused
};

// Bounds as a caller gives them, for a round or for one tensor. ResolveClips (resolve_clips.h) makes TensorClips of
// them.
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

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_SPEC_CLIP_H_
