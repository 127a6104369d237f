// The passes over untrusted keys and values that validation consists of, and the copies of keys that callers may
// change.
#ifndef SPARSEAGG_HOST_UPDATES_INPUT_CHECKS_H_
#define SPARSEAGG_HOST_UPDATES_INPUT_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::internal {

// What one pass finds out about a sequence of keys.
struct KeyFacts {
  uint64_t largest = 0;
  bool descends = false;  // some key is smaller than the one before it
  bool repeats = false;   // some key equals the one before it
};

// Requires: count ≥ 1. `keys` may be unaligned.
KeyFacts FindKeyFacts32(const void* keys, size_t count);
KeyFacts FindKeyFacts64(const void* keys, size_t count);

// to[i] = the low half of from[i], a 64-bit key. Reads each key once. `from` may be unaligned.
// Returns: the OR of all keys of `from`. If its upper half is 0, no key was cut.
uint64_t NarrowKeys(const void* from, size_t count, uint32_t* to);

// Returns: the position of the first value that has all bits of `mask`, or `count`. `values` may be unaligned.
size_t FindAllBits16(const void* values, size_t count, uint16_t mask);
size_t FindAllBits32(const void* values, size_t count, uint32_t mask);
size_t FindAllBits64(const void* values, size_t count, uint64_t mask);

// What the key passes have found of a sequence of keys so far.
struct KeyOrder {
  bool sorted = true;  // keys never descend
  bool unique = true;  // keys strictly ascend
  bool empty = true;
  uint64_t last = 0;  // meaningless while empty
};

// The tensor and chunk that a pass reads, for error texts.
struct InputLocation {
  const TensorSpec* spec;
  std::optional<uint64_t> chunk;  // none for an update that is in memory already
  // Returns: "tensor 'NAME', chunk N, position P", of a key.
  std::string ToString(uint64_t position) const;
  // Returns: "tensor 'NAME', chunk N, key K, position P", of the value at `index` among the values of the slice or
  // update, and ", column C" where rows have several values.
  std::string ToString(uint64_t key, uint64_t index) const;
};

// The key at a position in the slice or update.
using KeyAtPosition = absl::FunctionRef<uint64_t(uint64_t position)>;

// Checks `count` keys against num_rows and continues `order` with them. `keys` may be unaligned; each key has
// `key_bytes` bytes, 4 or 8. The first key has the position `position`.
// Errors: INVALID_ARGUMENT names the first key that is not below num_rows. `order` is then unspecified.
// Cost: one pass if all keys are good.
absl::Status CheckKeys(const InputLocation& location, uint64_t position, const char* keys, uint64_t count,
                       int key_bytes, KeyOrder& order);

// The same as CheckKeys for the run first, first + 1, …, in O(1).
absl::Status CheckKeyRun(const InputLocation& location, uint64_t first, uint64_t count, KeyOrder& order);

// Continues `order` with checked keys that strictly ascend from `first` to `last`.
void ExtendOrder(KeyOrder& order, uint64_t first, uint64_t last);

// The INVALID_ARGUMENT of a key that is not below num_rows.
absl::Status KeyBeyondNumRows(const InputLocation& location, uint64_t position, uint64_t key);

// Checks that `count` values are finite, unless the spec propagates NaN and ±Inf. `values` may be unaligned. The slice
// has `before` values in front of them. `key_at` is called for an error only.
// Errors: INVALID_ARGUMENT names the first NaN or ±Inf, and its key.
// Cost: one pass.
absl::Status CheckValues(const InputLocation& location, uint64_t before, const char* values, uint64_t count,
                         KeyAtPosition key_at);

// Copies a caller's keys into the tensor's key type, checks the copy, and continues `order` with it. Other threads may
// write to the caller's array during the call or later: every key of the copy is read once, and the copy is what is
// checked.
// Takes the memory of the copy from `arena`, or a new one if `arena` is null or full.
// Returns: columns that own the arena and `owner`, without values; a run stays a run.
// Errors: INVALID_ARGUMENT names tensor, position and value of a key that is negative, too large for the type or not
// below num_rows, or says that the array changed during the call. `order` is then unspecified.
// Cost: one pass over `keys`, batch by batch: each is copied and checked while it is in the first cache.
absl::StatusOr<UpdateColumns> CopyKeys(const InputLocation& location, const InputKeys& keys,
                                       std::shared_ptr<const void> owner, std::shared_ptr<KeyArena> arena,
                                       KeyOrder& order);

}  // namespace sparseagg::internal

#endif  // SPARSEAGG_HOST_UPDATES_INPUT_CHECKS_H_
