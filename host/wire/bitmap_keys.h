// Codec BITMAP: ascending keys as the bits of a set, for dense key ranges. The layout is in docs/wire-format.md.
//
//   keys 1000, 1001, 1007, 1010   first_key 1000, bits 0 1 7 10: 83 04
//
// Bit i stands for the key first_key + i; the lowest bit of a byte comes first. The last byte is not zero.
#ifndef SPARSEAGG_HOST_WIRE_BITMAP_KEYS_H_
#define SPARSEAGG_HOST_WIRE_BITMAP_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/wire/delta_keys.h"

namespace sparseagg::wire {

// Returns: the number of keys.
// Errors: INVALID_ARGUMENT: the last byte is zero.
// Cost: one pass.
absl::StatusOr<uint64_t> CountBitmapKeys(absl::string_view bytes);

// Decodes keys to `out` if all are at most `largest`; otherwise writes nothing and returns the first key that is not.
// Requires: `num_keys` is from CountBitmapKeys; for 32-bit keys `largest` fits 32 bits.
DecodedKeys DecodeBitmapKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                             uint32_t* out);
DecodedKeys DecodeBitmapKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                             uint64_t* out);

// Returns: bytes of the encoded keys.
// Requires: keys strictly ascend.
// Cost: O(1).
uint64_t BitmapKeyBytes(absl::Span<const uint32_t> keys);
uint64_t BitmapKeyBytes(absl::Span<const uint64_t> keys);

// Encodes keys; their first_key is keys[0].
// Requires: keys strictly ascend.
std::string EncodeBitmapKeys(absl::Span<const uint32_t> keys);
std::string EncodeBitmapKeys(absl::Span<const uint64_t> keys);

}  // namespace sparseagg::wire

#endif  // SPARSEAGG_HOST_WIRE_BITMAP_KEYS_H_
