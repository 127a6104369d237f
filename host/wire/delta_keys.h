// DELTA_BITPACKED: strictly ascending keys as the gaps between them, in few bits each. docs/wire-format.md has the
// layout.
//
//   keys 1000, 1001, 1007, 1010   first_key 1000, gaps 0 0 5 2 of 3 bits: 03 40 05
//
// The gap of a key is its distance to the least key that may stand there: the one before it plus 1, or first_key. Gaps
// come in blocks of 128, each with a width in bits of its own. First the widths of all blocks, a byte each; then the
// blocks, each from a byte of its own, the lowest bits first. The bits that are left in a block's last byte are zero.
#ifndef SPARSEAGG_HOST_WIRE_DELTA_KEYS_H_
#define SPARSEAGG_HOST_WIRE_DELTA_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sparseagg::wire {

// What was decoded.
struct DecodedKeys {
  uint64_t count = 0;  // keys that are good and have been written
  // Of the first key that is not, the one at position `count`: it is beyond the largest key, and, if it `wraps`,
  // beyond 2^64-1.
  uint64_t bad_key = 0;
  bool wraps = false;
};

// Whether `bytes` are as long as the encoding of `num_keys` keys: not a byte more or less. Must hold before they are
// decoded. INVALID_ARGUMENT says what disagrees. Cost: O(num_keys / 128).
absl::Status CheckDeltaKeys(absl::string_view bytes, uint64_t num_keys);

// Writes the keys of `bytes`, which have passed CheckDeltaKeys, up to the first that is beyond `largest`. With 32 bits,
// `largest` must fit them.
DecodedKeys DecodeDeltaKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                            uint32_t* out);
DecodedKeys DecodeDeltaKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                            uint64_t* out);

// Bytes that these keys take, which must strictly ascend.
uint64_t DeltaKeyBytes(absl::Span<const uint32_t> keys);
uint64_t DeltaKeyBytes(absl::Span<const uint64_t> keys);

// Encodes keys that strictly ascend; first_key is the first of them.
std::string EncodeDeltaKeys(absl::Span<const uint32_t> keys);
std::string EncodeDeltaKeys(absl::Span<const uint64_t> keys);

}  // namespace sparseagg::wire

#endif  // SPARSEAGG_HOST_WIRE_DELTA_KEYS_H_
