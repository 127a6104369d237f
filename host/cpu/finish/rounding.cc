#include "host/cpu/finish/rounding.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "host/base/half.h"
#include "host/cpu/simd/kernels.h"

namespace sparseagg::cpu {
namespace {

template <uint16_t (*kRound)(double)>
void RoundToSixteen(const double* values, size_t count, std::byte* out) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits = kRound(values[i]);
    if (bits == 0x8000) bits = 0;
    std::memcpy(out + i * sizeof(bits), &bits, sizeof(bits));
  }
}

}  // namespace

void RoundTo(DType dtype, const double* values, size_t count, std::byte* out) {
  switch (dtype) {
    case DType::kFloat16:
      return RoundToSixteen<RoundToFloat16>(values, count, out);
    case DType::kBFloat16:
      return RoundToSixteen<RoundToBFloat16>(values, count, out);
    case DType::kFloat32:
      return RoundToFloat32(values, count, reinterpret_cast<float*>(out));
    default:
      for (size_t i = 0; i < count; ++i) {
        const double value = std::isnan(values[i]) ? std::numeric_limits<double>::quiet_NaN() : values[i] + 0.0;
        std::memcpy(out + i * sizeof(value), &value, sizeof(value));
      }
  }
}

}  // namespace sparseagg::cpu
