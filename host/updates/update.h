// One client's update of one tensor, after validation.
#ifndef SPARSEAGG_HOST_UPDATES_UPDATE_H_
#define SPARSEAGG_HOST_UPDATES_UPDATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/spec/spec.h"

namespace sparseagg {

// The keys first, first + 1, …, first + count − 1: a dense run, which needs no memory.
struct KeyRun {
  uint64_t first = 0;
  uint64_t count = 0;
};

using KeyColumn = std::variant<KeyRun, absl::Span<const uint32_t>, absl::Span<const uint64_t>>;

// The keys and rows of one update, borrowed; `owner` keeps them alive.
struct UpdateColumns {
  KeyColumn keys;
  const std::byte* values = nullptr;  // num_keys × width of the tensor's dtype, row-major, aligned; kUnion: or null
  std::shared_ptr<const void> owner;
};

uint64_t NumKeys(const KeyColumn& keys);

// An update that engines trust: keys are below the dimension, in the tensor's key type, and values are finite where
// the spec says so. Sortedness and uniqueness are facts found on the way. Immutable, cheap to copy, thread-safe.
class ValidatedUpdate {
 public:
  // Checks `columns`, one pass over the keys and one over the values; copies
  // nothing. Key spans must have the width of HasNarrowKeys. INVALID_ARGUMENT names tensor, position and value.
  // `weight` is 1 under kUniform.
  static absl::StatusOr<ValidatedUpdate> Create(const TensorSpec& spec, UpdateColumns columns, double weight);

  const KeyColumn& keys() const { return columns_.keys; }
  const std::byte* values() const { return columns_.values; }  // null if kUnion
  const std::shared_ptr<const void>& owner() const { return columns_.owner; }
  uint64_t num_keys() const { return num_keys_; }
  double weight() const { return weight_; }
  // Keys never descend / no key occurs twice. `unique` is only found for sorted keys, and false otherwise.
  bool sorted() const { return sorted_; }
  bool unique() const { return unique_; }

 private:
  friend class UpdateBuilder;
  ValidatedUpdate() = default;

  UpdateColumns columns_;
  uint64_t num_keys_ = 0;
  double weight_ = 1.0;
  bool sorted_ = true;
  bool unique_ = true;
};

// The largest weight: the sum of as many as 2^63 of them is finite.
inline constexpr double kMaxWeight = 0x1p960;

// Checks a weight against the tensor's weighting: finite, ≥ 0; under kByWeight ≤ kMaxWeight, ≤ weight_bound where that
// is kFixedPoint, and an integer below 2^53 for integer tensors. INVALID_ARGUMENT names the value.
absl::Status ValidateWeight(const TensorSpec& spec, double weight);

// What a weight that passed ValidateWeight counts as: 1 under kUniform. −0.0 is 0.0: a sum of one weight may be that
// weight itself, or 0.0 + it.
double WeightInUse(const TensorSpec& spec, double weight);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_UPDATES_UPDATE_H_
