#include "host/wire/packed_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "host/base/float_environment.h"
#include "host/base/half.h"

namespace sparseagg::wire {
namespace {

template <typename T>
T Load(const char* from, uint64_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

// Returns: a float16 as float32, exactly. Shifted into place, the exponent is 112 too small; the product with 2^112
// corrects it, also of subnormals. Without a branch, so that loops are vectorised.
float WidenHalf(uint16_t bits) {
  const uint32_t magnitude = (bits & 0x7fffu) << 13;
  const auto scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t widened = magnitude > (0x7bffu << 13) ? magnitude | 0x7f800000u : scaled;
  return std::bit_cast<float>(widened | (bits & 0x8000u) << 16);
}

uint64_t NumScales(uint64_t count) { return (count + kScaleBlock - 1) / kScaleBlock; }

absl::Status UnpackInt8s(absl::string_view bytes, uint64_t count, float* __restrict out) {
  absl::Status good = CheckScales(bytes, count);
  if (!good.ok()) return good;
  const uint64_t num_scales = NumScales(count);
  const char* multiples = bytes.data() + num_scales * sizeof(float);
  for (uint64_t b = 0; b < num_scales; ++b) {
    const auto scale = Load<float>(bytes.data(), b);
    const uint64_t begin = b * kScaleBlock;
    for (uint64_t i = begin; i < std::min(begin + kScaleBlock, count); ++i) out[i] = scale * Load<int8_t>(multiples, i);
  }
  return absl::OkStatus();
}

// Multiplies in float64, where the product is exact.
absl::Status UnpackInt8s(absl::string_view bytes, uint64_t count, double* out) {
  absl::Status good = CheckScales(bytes, count);
  if (!good.ok()) return good;
  const char* multiples = bytes.data() + NumScales(count) * sizeof(float);
  for (uint64_t i = 0; i < count; ++i) {
    const auto scale = Load<float>(bytes.data(), i / kScaleBlock);
    out[i] = static_cast<double>(scale) * Load<int8_t>(multiples, i);
  }
  return absl::OkStatus();
}

absl::Status Unpack(ValuePacking packing, absl::string_view bytes, uint64_t count, float* __restrict out) {
  switch (packing) {
    case ValuePacking::kFloat16:
      for (uint64_t i = 0; i < count; ++i) out[i] = WidenHalf(Load<uint16_t>(bytes.data(), i));
      return absl::OkStatus();
    case ValuePacking::kBFloat16:
      for (uint64_t i = 0; i < count; ++i) out[i] = WidenBFloat16(Load<uint16_t>(bytes.data(), i));
      return absl::OkStatus();
    case ValuePacking::kInt8Scaled:
      return UnpackInt8s(bytes, count, out);
    default:
      return absl::InternalError("these values do not widen to float32");
  }
}

absl::Status Unpack(ValuePacking packing, absl::string_view bytes, uint64_t count, double* out) {
  if (packing == ValuePacking::kInt8Scaled) return UnpackInt8s(bytes, count, out);
  if (packing == ValuePacking::kFloat32) {
    for (uint64_t i = 0; i < count; ++i) out[i] = Load<float>(bytes.data(), i);
    return absl::OkStatus();
  }
  constexpr uint64_t kStretch = 256;
  float widened[kStretch];
  for (uint64_t begin = 0; begin < count; begin += kStretch) {
    const uint64_t n = std::min(kStretch, count - begin);
    absl::Status status = Unpack(packing, bytes.substr(begin * sizeof(uint16_t)), n, widened);
    if (!status.ok()) return status;
    std::copy_n(widened, n, out + begin);
  }
  return absl::OkStatus();
}

template <typename T>
std::optional<std::string> PackInt8s(const T* values, uint64_t count) {
  std::string bytes(NumScales(count) * sizeof(float) + count, '\0');
  char* multiples = bytes.data() + NumScales(count) * sizeof(float);
  for (uint64_t begin = 0; begin < count; begin += kScaleBlock) {
    const uint64_t end = std::min<uint64_t>(count, begin + kScaleBlock);
    double largest = 0.0;
    for (uint64_t i = begin; i < end; ++i) {
      if (!std::isfinite(values[i])) return std::nullopt;
      largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
    }
    if (largest / 127.0 > kMaxScale) return std::nullopt;
    const auto scale = static_cast<float>(largest / 127.0);
    std::memcpy(bytes.data() + begin / kScaleBlock * sizeof(float), &scale, sizeof(scale));
    if (scale == 0.0f) continue;  // all zero, or too small for any scale
    for (uint64_t i = begin; i < end; ++i) {
      const double multiple = std::nearbyint(static_cast<double>(values[i]) / static_cast<double>(scale));
      multiples[i] = static_cast<char>(static_cast<int8_t>(std::clamp(multiple, -127.0, 127.0)));
    }
  }
  return bytes;
}

template <typename T, typename Narrow, typename Round>
std::optional<std::string> PackFloats(const T* values, uint64_t count, Narrow infinity, Narrow magnitude,
                                      const Round& round) {
  std::string bytes(count * sizeof(Narrow), '\0');
  for (uint64_t i = 0; i < count; ++i) {
    const Narrow bits = round(values[i]);
    if ((bits & magnitude) == infinity && std::isfinite(values[i])) return std::nullopt;
    std::memcpy(bytes.data() + i * sizeof(Narrow), &bits, sizeof(bits));
  }
  return bytes;
}

template <typename T>
std::optional<std::string> Pack(ValuePacking packing, const T* values, uint64_t count) {
  switch (packing) {
    case ValuePacking::kFloat32:
      return PackFloats<T, uint32_t>(values, count, 0x7f800000u, 0x7fffffffu,
                                     [](T value) { return std::bit_cast<uint32_t>(static_cast<float>(value)); });
    case ValuePacking::kFloat16:
      return PackFloats<T, uint16_t>(values, count, 0x7c00, 0x7fff, [](T value) { return RoundToFloat16(value); });
    case ValuePacking::kBFloat16:
      return PackFloats<T, uint16_t>(values, count, 0x7f80, 0x7fff, [](T value) { return RoundToBFloat16(value); });
    case ValuePacking::kInt8Scaled:
      return PackInt8s(values, count);
    case ValuePacking::kOwn:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

absl::string_view Name(ValuePacking packing) {
  constexpr absl::string_view kNames[] = {"own", "float32", "float16", "bfloat16", "INT8_SCALED"};
  return kNames[static_cast<size_t>(packing)];
}

bool Widens(ValuePacking packing, DType dtype) {
  if (packing == ValuePacking::kOwn) return true;
  return dtype == DType::kFloat64 || (dtype == DType::kFloat32 && packing != ValuePacking::kFloat32);
}

std::optional<ValuePacking> PackingOf(DType from, DType to) {
  if (from == to) return ValuePacking::kOwn;
  const auto packing = from == DType::kFloat32    ? ValuePacking::kFloat32
                       : from == DType::kFloat16  ? ValuePacking::kFloat16
                       : from == DType::kBFloat16 ? ValuePacking::kBFloat16
                                                  : ValuePacking::kOwn;
  if (packing == ValuePacking::kOwn || !Widens(packing, to)) return std::nullopt;
  return packing;
}

size_t PackedSize(ValuePacking packing, DType dtype) {
  switch (packing) {
    case ValuePacking::kOwn:
      return SizeOf(dtype);
    case ValuePacking::kFloat32:
      return sizeof(float);
    case ValuePacking::kFloat16:
    case ValuePacking::kBFloat16:
      return sizeof(uint16_t);
    case ValuePacking::kInt8Scaled:
      return sizeof(int8_t);
  }
  return 0;
}

absl::StatusOr<uint64_t> CountValues(ValuePacking packing, DType dtype, uint64_t num_bytes) {
  if (packing == ValuePacking::kInt8Scaled) {
    constexpr uint64_t kBlockBytes = sizeof(float) + kScaleBlock;
    const uint64_t rest = num_bytes % kBlockBytes;
    if (rest == 0 || rest > sizeof(float)) {
      return num_bytes / kBlockBytes * kScaleBlock + (rest == 0 ? 0 : rest - sizeof(float));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(num_bytes, " bytes of values end with a scale that has no value, or within a scale"));
  }
  const size_t size = PackedSize(packing, dtype);
  if (num_bytes % size == 0) return num_bytes / size;
  const absl::string_view type = packing == ValuePacking::kOwn ? sparseagg::Name(dtype) : Name(packing);
  return absl::InvalidArgumentError(
      absl::StrCat(num_bytes, " bytes of values are no multiple of ", size, ", the size of a ", type));
}

uint64_t FindBadScale(absl::string_view bytes, uint64_t count) {
  for (uint64_t block = 0; block < NumScales(count); ++block) {
    const auto scale = Load<float>(bytes.data(), block);
    if (!(scale >= 0.0f && scale <= kMaxScale)) return block * kScaleBlock;
  }
  return count;
}

absl::Status CheckScales(absl::string_view bytes, uint64_t count) {
  const uint64_t value = FindBadScale(bytes, count);
  if (value == count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("scale ", Load<float>(bytes.data(), value / kScaleBlock),
                                                 " of values ", value, " and following is not in [0, 2^120]"));
}

absl::Status UnpackValues(ValuePacking packing, DType dtype, absl::string_view bytes, uint64_t count, std::byte* out) {
  const DefaultFloatEnvironment environment;
  if (dtype == DType::kFloat32) return Unpack(packing, bytes, count, reinterpret_cast<float*>(out));
  if (dtype == DType::kFloat64) return Unpack(packing, bytes, count, reinterpret_cast<double*>(out));
  return absl::InternalError("these values do not widen");
}

std::optional<std::string> PackValues(ValuePacking packing, DType dtype, const std::byte* values, uint64_t count) {
  const DefaultFloatEnvironment environment;
  if (!Widens(packing, dtype)) return std::nullopt;
  if (dtype == DType::kFloat32) return Pack(packing, reinterpret_cast<const float*>(values), count);
  if (dtype == DType::kFloat64) return Pack(packing, reinterpret_cast<const double*>(values), count);
  return std::nullopt;
}

}  // namespace sparseagg::wire
