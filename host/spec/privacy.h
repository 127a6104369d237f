// Options of differential privacy (docs/privacy.md). Experimental.
#ifndef SPARSEAGG_HOST_SPEC_PRIVACY_H_
#define SPARSEAGG_HOST_SPEC_PRIVACY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace sparseagg {

struct TensorSpec;

// How the keys of a private result are chosen.
enum class KeySelection : uint8_t {
  kPublic,            // keys that do not depend on submissions; all of them are in the result
  kWeightedGaussian,  // noisy sums of the weights 1/√m of submissions of m keys, above a threshold
  kCountGaussian      // noisy numbers of contributors, above a threshold
};

// "public", "weighted_gaussian", … as in the Python API.
absl::string_view Name(KeySelection keys);

// The options of a round, as a caller gives them. ResolvePrivacy makes TensorPrivacy of them.
struct PrivacySpec {
  double noise_multiplier = 0.0;  // z: standard deviation of the noise on values, in units of the sensitivity
  std::optional<double> weight_bound = std::nullopt;  // W, the largest weight; kByWeight needs it
  KeySelection keys = KeySelection::kWeightedGaussian;
  std::optional<double> key_noise_multiplier = std::nullopt;  // σ of the two Gaussian selections
  std::optional<double> delta = std::nullopt;                 // of the selections of keys, of all tensors together
  // Of kPublic, by tensor: the keys, ascending. A tensor without an entry has all of its rows.
  std::map<std::string, std::vector<uint64_t>> public_keys;
};

// The options that apply to one tensor.
struct TensorPrivacy {
  double noise_multiplier = 0.0;  // z
  double weight_bound = 1.0;      // W
  double l2 = 0.0;                // C, of the tensors of the round together
  KeySelection keys = KeySelection::kPublic;
  double key_noise_multiplier = 0.0;
  double key_delta = 0.0;                                    // of this tensor's selection
  std::shared_ptr<const std::vector<uint64_t>> public_keys;  // null: all rows
};

inline constexpr double kMaxKeyNoiseMultiplier = 32.0;
inline constexpr double kMinKeyDelta = 0x1p-40;
inline constexpr double kMaxKeyDelta = 0.5;

// Sets TensorSpec::privacy of all tensors of a round. Requires: the specs are valid but for `privacy`, with their
// bounds (ResolveClips). Errors: INVALID_ARGUMENT names tensor and field: an option out of range or without effect; or
// an option of a tensor that would tell more of the submissions than the noise allows. The text says why.
absl::Status ResolvePrivacy(const PrivacySpec& round, absl::Span<TensorSpec> specs);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_SPEC_PRIVACY_H_
