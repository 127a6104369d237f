// BITMAP: ascending keys as the bits of a set, for keys that lie densely. docs/wire-format.md has the layout.
//
//   keys 1000, 1001, 1007, 1010   first_key 1000, bits 0 1 7 10: 83 04
//
// Bit i, the lowest of each byte first, stands for the key first_key + i. The last byte is not zero.
#ifndef SPARSEAGG_HOST_WIRE_BITMAP_KEYS_H_
#define SPARSEAGG_HOST_WIRE_BITMAP_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/wire/delta_keys.h"

namespace sparseagg::wire {

// Number of keys. INVALID_ARGUMENT: the last byte is zero. One pass.
absl::StatusOr<uint64_t> CountBitmapKeys(absl::string_view bytes);

// Writes the keys of `bytes`, of which CountBitmapKeys counted `num_keys`, if all are at most `largest`; otherwise
// writes none and tells the first that is not. With 32 bits, `largest` must fit them.
DecodedKeys DecodeBitmapKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                             uint32_t* out);
DecodedKeys DecodeBitmapKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                             uint64_t* out);

// Bytes that these keys take, which must strictly ascend. Cost: O(1).
uint64_t BitmapKeyBytes(absl::Span<const uint32_t> keys);
uint64_t BitmapKeyBytes(absl::Span<const uint64_t> keys);

// Encodes keys that strictly ascend; first_key is the first of them.
std::string EncodeBitmapKeys(absl::Span<const uint32_t> keys);
std::string EncodeBitmapKeys(absl::Span<const uint64_t> keys);

}  // namespace sparseagg::wire

#endif  // SPARSEAGG_HOST_WIRE_BITMAP_KEYS_H_
