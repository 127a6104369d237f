// Loads of single values of each dtype.
#ifndef SPARSEAGG_HOST_CPU_ROWS_WIRE_VALUE_H_
#define SPARSEAGG_HOST_CPU_ROWS_WIRE_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "host/base/half.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// Returns: value number `index` of an array that may be unaligned.
template <typename T>
T LoadWire(const std::byte* values, uint64_t index) {
  T value;
  std::memcpy(&value, values + index * sizeof(T), sizeof(T));
  return value;
}

// Returns: the value as float64, exactly.
inline double Widen(float v) { return v; }
inline double Widen(double v) { return v; }
inline double Widen(Float16 v) { return WidenFloat16(v.bits); }
inline double Widen(BFloat16 v) { return WidenBFloat16(v.bits); }

// Returns: value number `index` of an array of floats of `dtype`, as float64, exactly.
inline double WidenAt(DType dtype, const std::byte* values, uint64_t index) {
  switch (dtype) {
    case DType::kFloat16:
      return Widen(LoadWire<Float16>(values, index));
    case DType::kBFloat16:
      return Widen(LoadWire<BFloat16>(values, index));
    case DType::kFloat64:
      return LoadWire<double>(values, index);
    default:
      return LoadWire<float>(values, index);
  }
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ROWS_WIRE_VALUE_H_
