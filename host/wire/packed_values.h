// Codecs for values of a float tensor in fewer bytes than its dtype: narrower floats, or 8-bit multiples of a scale.
// The layouts are in docs/wire-format.md.
#ifndef SPARSEAGG_HOST_WIRE_PACKED_VALUES_H_
#define SPARSEAGG_HOST_WIRE_PACKED_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/spec/dtype.h"

namespace sparseagg::wire {

// How values are packed. kOwn: in the tensor's own dtype. kInt8Scaled: multiples of a float32 scale for each block.
enum class ValuePacking : uint8_t { kOwn, kFloat32, kFloat16, kBFloat16, kInt8Scaled };

// "float16", "INT8_SCALED", …; "own" for kOwn.
absl::string_view Name(ValuePacking packing);

// Number of values that share a scale in kInt8Scaled.
inline constexpr size_t kScaleBlock = 64;
// The largest allowed scale: 127 times this scale is within float32.
inline constexpr float kMaxScale = 0x1p120f;

// Whether values of `packing` can be unpacked to `dtype`: exactly, or for kInt8Scaled with at most one rounding.
bool Widens(ValuePacking packing, DType dtype);
// Returns: the packing of values of dtype `from` in a tensor of dtype `to`; nullopt if `from` does not widen to `to`.
std::optional<ValuePacking> PackingOf(DType from, DType to);

// Returns: bytes of one packed value of a tensor of `dtype`. For kInt8Scaled without the scale, which is stored apart.
size_t PackedSize(ValuePacking packing, DType dtype);

// Returns: the number of packed values in `num_bytes` bytes of a tensor of `dtype`.
// Errors: INVALID_ARGUMENT: not a whole number of values.
absl::StatusOr<uint64_t> CountValues(ValuePacking packing, DType dtype, uint64_t num_bytes);

// Checks the scales of `count` values in kInt8Scaled. With good scales every value is finite.
// Errors: INVALID_ARGUMENT names a scale that is negative, NaN or above kMaxScale, and its position.
absl::Status CheckScales(absl::string_view bytes, uint64_t count);

// Returns: the index of the first value of the block whose scale CheckScales refuses; `count` if there is none.
uint64_t FindBadScale(absl::string_view bytes, uint64_t count);

// Writes the `count` values of `bytes` to `out` as `dtype`.
// Requires: Widens(packing, dtype); `count` is from CountValues; `out` is aligned for `dtype`.
// Errors: as of CheckScales.
absl::Status UnpackValues(ValuePacking packing, DType dtype, absl::string_view bytes, uint64_t count, std::byte* out);

// Packs `count` values of `dtype`, each rounded once to nearest even.
// Returns: nullopt if a value is beyond the range of `packing`, or, for kInt8Scaled, not finite.
std::optional<std::string> PackValues(ValuePacking packing, DType dtype, const std::byte* values, uint64_t count);

}  // namespace sparseagg::wire

#endif  // SPARSEAGG_HOST_WIRE_PACKED_VALUES_H_
