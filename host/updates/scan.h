// The passes over untrusted keys and values that validation consists of. Bytes may be unaligned.
#ifndef SPARSEAGG_HOST_UPDATES_SCAN_H_
#define SPARSEAGG_HOST_UPDATES_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "host/spec/spec.h"

namespace sparseagg::internal {

// What is known of a key sequence so far.
struct KeyOrder {
  bool sorted = true;  // never descends
  bool unique = true;  // strictly ascends
  bool empty = true;
  uint64_t last = 0;
};

// Where in the input a slice stands: the prefix of messages.
struct Place {
  const TensorSpec* spec;
  std::optional<uint64_t> chunk;  // none in process
  std::string ToString(uint64_t position) const;
};

// Checks `count` keys of `key_bytes` (4 or 8) each against the dimension and updates `order`. One pass when all is
// well. INVALID_ARGUMENT names the first bad key, where `keys` begin at `position`; `order` is then unspecified.
absl::Status ScanKeys(const Place& place, uint64_t position, const char* keys, uint64_t count, int key_bytes,
                      KeyOrder& order);

// INVALID_ARGUMENT: a key that is not below the dimension.
absl::Status KeyTooLarge(const Place& place, uint64_t position, uint64_t key);

// Takes keys into account that strictly ascend from `first` to `last`.
void ExtendOrder(KeyOrder& order, uint64_t first, uint64_t last);

// The same as ScanKeys for the run first, first + 1, ….
absl::Status ScanRun(const Place& place, uint64_t first, uint64_t count, KeyOrder& order);

// Refuses NaN and ±Inf where the spec says so. INVALID_ARGUMENT names the first, where `values`, `count` scalars,
// follow on `before` others.
absl::Status ScanValues(const Place& place, uint64_t before, const char* values, uint64_t count);

}  // namespace sparseagg::internal

#endif  // SPARSEAGG_HOST_UPDATES_SCAN_H_
