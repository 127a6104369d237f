// Codec DELTA_BITPACKED: strictly ascending keys as bit-packed gaps. The layout is in docs/wire-format.md.
//
//   keys 1000, 1001, 1007, 1010   first_key 1000, gaps 0 0 5 2 of 3 bits: 03 40 05
//
// The gap of a key is its distance to the smallest key possible at its position: the previous key plus 1, or first_key.
// A block has 128 gaps of one width in bits. First come the widths of all blocks, one byte each. Then come the blocks.
// Each block begins on a byte boundary and stores its gaps from the lowest bit up. Unused bits of its last byte are
// zero.
#ifndef SPARSEAGG_HOST_WIRE_DELTA_KEYS_H_
#define SPARSEAGG_HOST_WIRE_DELTA_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sparseagg::wire {

// The outcome of decoding.
struct DecodedKeys {
  uint64_t count = 0;  // number of good keys in front of the first bad one; all keys if none is bad
  // The first key beyond the largest allowed one. `wraps`: the key is beyond 2^64-1, and bad_key is its low 64 bits.
  uint64_t bad_key = 0;
  bool wraps = false;
};

// Checks that `bytes` has exactly the length of the encoding of `num_keys` keys. Must pass before decoding.
// Errors: INVALID_ARGUMENT says what disagrees.
// Cost: O(num_keys / 128).
absl::Status CheckDeltaKeys(absl::string_view bytes, uint64_t num_keys);

// Decodes keys to `out`, up to the first key beyond `largest`.
// Requires: CheckDeltaKeys(bytes, num_keys) has passed; for 32-bit keys `largest` fits 32 bits.
DecodedKeys DecodeDeltaKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                            uint32_t* out);
DecodedKeys DecodeDeltaKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                            uint64_t* out);

// Returns: bytes of the encoded keys.
// Requires: keys strictly ascend.
uint64_t DeltaKeyBytes(absl::Span<const uint32_t> keys);
uint64_t DeltaKeyBytes(absl::Span<const uint64_t> keys);

// Encodes keys; their first_key is keys[0].
// Requires: keys strictly ascend.
std::string EncodeDeltaKeys(absl::Span<const uint32_t> keys);
std::string EncodeDeltaKeys(absl::Span<const uint64_t> keys);

}  // namespace sparseagg::wire

#endif  // SPARSEAGG_HOST_WIRE_DELTA_KEYS_H_
