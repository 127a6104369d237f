// One client's update of one tensor, validated.
#ifndef SPARSEAGG_HOST_UPDATES_UPDATE_H_
#define SPARSEAGG_HOST_UPDATES_UPDATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/base/column.h"
#include "host/spec/dtype.h"
#include "host/spec/spec.h"

namespace sparseagg {

// One column from which each update of a batch takes a part for its keys (ValidatedUpdate::CreateWithCopiedKeys). The
// keys of one update are often too few for huge pages, and page faults on small pages cost as much time as the merge;
// those of a batch are enough. The updates own the arena together: its memory is released with the last of them.
// Thread-safe.
class KeyArena {
 public:
  // Throws std::bad_alloc.
  explicit KeyArena(size_t bytes) : memory_(bytes) {}

  // Returns: bytes of the arena that Take uses for `bytes`: parts begin at cache lines.
  static size_t BytesFor(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // Returns: uninitialised memory, aligned to 64; nullptr if fewer bytes are left.
  std::byte* Take(size_t bytes) {
    const size_t begin = used_.fetch_add(BytesFor(bytes), std::memory_order_relaxed);
    return begin <= memory_.size() && bytes <= memory_.size() - begin ? memory_.data() + begin : nullptr;
  }

 private:
  static constexpr size_t kAlignment = 64;

  Column<std::byte> memory_;
  std::atomic<size_t> used_{0};
};

namespace internal {
struct KeyOrder;
}

// The keys first, first + 1, …, first + count − 1. A run takes no memory.
struct KeyRun {
  uint64_t first = 0;
  uint64_t count = 0;
};

using KeyColumn = std::variant<KeyRun, absl::Span<const uint32_t>, absl::Span<const uint64_t>>;

// A caller's keys: an array of 32-bit or 64-bit integers, or a run without an array.
using InputKeys = std::variant<KeyRun, absl::Span<const uint32_t>, absl::Span<const uint64_t>,
                               absl::Span<const int32_t>, absl::Span<const int64_t>>;

// The first and the last key of keys that have not been checked: smallest ≤ largest < num_rows.
struct KeyBounds {
  uint32_t smallest = 0;
  uint32_t largest = 0;
};

// Returns: the bounds of a caller's keys that seem to ascend strictly below num_rows, by their first few and the last;
// nullopt: they do not. Reads each of those once. Requires: 32-bit keys (HasNarrowKeys).
std::optional<KeyBounds> LookOver(const TensorSpec& spec, absl::Span<const uint64_t> keys);

// The keys and rows of one update, borrowed. `owner` keeps them alive.
struct UpdateColumns {
  KeyColumn keys;
  // num_keys × row_width values of the tensor's dtype, row-major, aligned. May be null for kUnion.
  const std::byte* values = nullptr;
  std::shared_ptr<const void> owner;
  // Keeps the values alive without the keys; null: only `owner` does.
  std::shared_ptr<const void> value_owner = nullptr;
  // Whether the arrays are in memory that an engine's devices read where it is; found by that engine.
  bool pinned_keys = false;
  bool pinned_values = false;
};

// Returns: the number of keys in a run or list.
uint64_t NumKeys(const KeyColumn& keys);
uint64_t NumKeys(const InputKeys& keys);
// Returns: the key at a position. Requires: index < NumKeys(keys).
uint64_t KeyAt(const KeyColumn& keys, uint64_t index);

// An update that engines trust: keys are below num_rows and in the tensor's key type; values are finite where the
// spec demands it, once ApplyClips has been called if that checks values of the tensor (TensorClip::checks_values).
// Validation also finds whether keys are sorted and unique. Only the Create functions and UpdateBuilder make one.
// Immutable and cheap to copy. Thread-safe.
class ValidatedUpdate {
 public:
  // Validates columns that are in memory already.
  // Requires: key spans have the width that HasNarrowKeys says. Nobody changes the keys until the update is merged or
  // destroyed: the merge trusts that they ascend and lie below num_rows, and would write out of bounds.
  // Errors: INVALID_ARGUMENT names tensor, key, position and value.
  // Cost: one pass over the keys and one over the values. Copies nothing.
  static absl::StatusOr<ValidatedUpdate> Create(const TensorSpec& spec, UpdateColumns columns, double weight);

  // Validates keys that other threads may change, during the call and later: copies them into the tensor's key type and
  // checks the copy. The copy is in `arena` if it fits there, else in memory of its own. The update owns that memory
  // and `owner`, which keeps `values` alive; values are borrowed as by Create. Errors: as of Create, and
  // INVALID_ARGUMENT for a key that is negative or too large for the key type, or if such a key changes during the
  // call. Cost: one pass over the keys, which copies and checks them batch by batch, and one over the values.
  static absl::StatusOr<ValidatedUpdate> CreateWithCopiedKeys(const TensorSpec& spec, const InputKeys& keys,
                                                              const std::byte* values,
                                                              std::shared_ptr<const void> owner, double weight,
                                                              std::shared_ptr<KeyArena> arena = nullptr);

  // Leaves the keys where they are and to the merge, which checks each where it reads it and fails with ABORTED unless
  // they strictly ascend below num_rows: so one pass less reads them. Other threads may change them meanwhile.
  // Requires: keys that LookOver has found `bounds` of; an engine and a tensor that CpuTakesUncheckedKeys names; the
  // owner keeps keys and values. Errors: of the weight and the values, as of Create.
  static absl::StatusOr<ValidatedUpdate> CreateWithUncheckedKeys(const TensorSpec& spec,
                                                                 absl::Span<const uint64_t> keys, KeyBounds bounds,
                                                                 const std::byte* values,
                                                                 std::shared_ptr<const void> owner, double weight);

  // An update of rows of a validated one. Requires: keys ascend and are below num_rows, in the tensor's key type;
  // `unique`: strictly; values are finite. `weight`: as of WeightInUse.
  static ValidatedUpdate CreateFromTrusted(UpdateColumns columns, double weight, bool unique);
  // Returns: the same update with this factor. Requires: a tensor of floats; 0 ≤ factor ≤ 1.
  ValidatedUpdate WithFactor(double factor) const;

  // Returns: the same update with this weight. Requires: a weight as of WeightInUse.
  ValidatedUpdate WithWeight(double weight) const;

  // Returns: the same update with these flags of UpdateColumns.
  ValidatedUpdate WithPinned(bool keys, bool values) const;

  // An update that an engine has checked on its device (Engine::Import), which alone may read it. `weight`: as of
  // WeightInUse.
  static ValidatedUpdate OnDevice(UpdateColumns columns, double weight, bool sorted, bool unique);

  // Whether keys (unless they are a run) and values are in device memory, where the host cannot read them.
  bool on_device() const { return on_device_; }
  const KeyColumn& keys() const { return columns_.keys; }
  // The keys are 64-bit integers, and only seem to be in order and below num_rows; nullopt: they are checked.
  const std::optional<KeyBounds>& unchecked() const { return unchecked_; }
  const std::byte* values() const { return columns_.values; }  // null for kUnion
  const std::shared_ptr<const void>& owner() const { return columns_.owner; }
  // Keeps values() alive, and perhaps not keys().
  const std::shared_ptr<const void>& value_owner() const {
    return columns_.value_owner != nullptr ? columns_.value_owner : columns_.owner;
  }
  bool pinned_keys() const { return columns_.pinned_keys; }
  bool pinned_values() const { return columns_.pinned_values; }
  uint64_t num_keys() const { return num_keys_; }
  double weight() const { return weight_; }  // 1 under kUniform
  // Engines multiply each value by it, after the fold of repeated keys and before the weight: (v · factor) · weight,
  // each product rounded to float64. 1 unless WithFactor has set it.
  double factor() const { return factor_; }
  // Keys never descend.
  bool sorted() const { return sorted_; }
  // No key occurs twice. Validation finds this for sorted keys only; false otherwise.
  bool unique() const { return unique_; }

 private:
  friend class UpdateBuilder;
  ValidatedUpdate() = default;
  // Checks layout and values. Requires: `order` is that of the keys, which are checked, as the weight is.
  static absl::StatusOr<ValidatedUpdate> CreateFromCheckedKeys(const TensorSpec& spec, UpdateColumns columns,
                                                               const internal::KeyOrder& order, double weight);

  UpdateColumns columns_;
  uint64_t num_keys_ = 0;
  double weight_ = 1.0;
  double factor_ = 1.0;
  bool sorted_ = true;
  bool unique_ = true;
  bool on_device_ = false;
  std::optional<KeyBounds> unchecked_;
};

// The largest weight. Even the sum of 2^63 such weights is finite.
inline constexpr double kMaxWeight = 0x1p960;

// Checks a weight against the tensor's weighting: finite and ≥ 0. Under kByWeight also: ≤ kMaxWeight; ≤ weight_bound
// with privacy; an integer below 2^53 for integer tensors. Errors: INVALID_ARGUMENT names the value.
absl::Status ValidateWeight(const TensorSpec& spec, double weight);

// Errors: INVALID_ARGUMENT: a weight other than 1 where no tensor is weighted kByWeight: its sender believes in an
// effect. Not for updates that are stored already. What ValidateWeight refuses passes.
absl::Status CheckWeightHasEffect(absl::Span<const TensorSpec> tensors, std::optional<double> weight);

// Returns: the weight that enters sums: 1 under kUniform, and 0.0 for −0.0, so that a sum of one weight has the same
// bits whether it starts from 0.0 or from the weight. Requires: `weight` has passed ValidateWeight.
double WeightInUse(const TensorSpec& spec, double weight);

// How the rows of an update are read.
enum class RowOrder : uint8_t {
  kAscending,  // by key
  kCoarse,     // as they are kept: UpdateRows::coarse_bits, and perhaps with UpdateRows::repeats
};

// The rows of an update that an accumulator has taken: distinct keys, repeated keys folded, and the bounds of the
// tensor applied. Row i has row_width values of the tensor. Borrowed; `owner` keeps keys and values alive, also
// after the accumulator has released the update. Without keys all other members are meaningless.
struct UpdateRows {
  KeyColumn keys = KeyRun{};  // ascend by key >> coarse_bits
  uint64_t num_keys = 0;
  const std::byte* values = nullptr;  // row-major; null for kUnion
  DType dtype = DType::kFloat32;      // of `values`: the tensor's; float64 or int64 where repeated keys were folded
  double factor = 1.0;                // of each value, as in a merge: value · factor, rounded to float64
  std::shared_ptr<const void> owner;
  int coarse_bits = 0;
  // More keys of the update, which `keys` has not: those that it lists several times, folded. They ascend. Null: none.
  std::shared_ptr<const UpdateRows> repeats = nullptr;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_UPDATES_UPDATE_H_
