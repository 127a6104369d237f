// Values of a float tensor in fewer bytes than its dtype has: as a narrower float, or as 8-bit multiples of a scale.
// docs/wire-format.md has the layouts.
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

enum class ValuePacking : uint8_t { kOwn, kFloat32, kFloat16, kBFloat16, kInt8Scaled };

// "float16", "INT8_SCALED", …; "own" for kOwn.
absl::string_view Name(ValuePacking packing);

// Values that share a scale in kInt8Scaled.
inline constexpr size_t kScaleBlock = 64;
// The largest scale: 127 times it is within float32.
inline constexpr float kMaxScale = 0x1p120f;

// Whether every number of `packing` is one of `dtype`, or, for kInt8Scaled, float32 or float64 with one rounding.
bool Widens(ValuePacking packing, DType dtype);
// How values of `from` are packed in a tensor of `to`: kOwn if they are the same, nullopt if that does not widen.
std::optional<ValuePacking> PackingOf(DType from, DType to);

// Bytes of one value of a tensor of `dtype`; of kInt8Scaled the multiple alone: its scale is elsewhere.
size_t PackedSize(ValuePacking packing, DType dtype);

// Number of values of a tensor of `dtype` in so many bytes. INVALID_ARGUMENT: they are no whole number of values.
absl::StatusOr<uint64_t> CountValues(ValuePacking packing, DType dtype, uint64_t num_bytes);

// What UnpackValues has against the scales of `count` values in kInt8Scaled. With good ones every value is finite.
absl::Status CheckScales(absl::string_view bytes, uint64_t count);

// Writes the `count` values of `bytes`, which CountValues has counted, as `dtype`, which `packing` widens to.
// INVALID_ARGUMENT names a scale that is negative, NaN or above kMaxScale, and its position. `out` is aligned.
absl::Status UnpackValues(ValuePacking packing, DType dtype, absl::string_view bytes, uint64_t count, std::byte* out);

// Packs `count` values of `dtype`, each rounded once to nearest even. nullopt: one of them is beyond the range of
// `packing`, or, with kInt8Scaled, not finite.
std::optional<std::string> PackValues(ValuePacking packing, DType dtype, const std::byte* values, uint64_t count);

}  // namespace sparseagg::wire

#endif  // SPARSEAGG_HOST_WIRE_PACKED_VALUES_H_
