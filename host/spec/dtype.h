// Element types of tensors and results.
#ifndef SPARSEAGG_HOST_SPEC_DTYPE_H_
#define SPARSEAGG_HOST_SPEC_DTYPE_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace sparseagg {

// The numbers stand in partials (host/partial.h): append only.
enum class DType : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat64,
  kInt32,
  kInt64,
  kUInt32,  // modular sums only
  kUInt64,  // modular sums only
};

// Bytes of one value.
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUInt32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUInt64:
      return 8;
  }
  return 0;
}

constexpr bool IsFloat(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat64;
}

constexpr bool IsSignedInteger(DType dtype) { return dtype == DType::kInt32 || dtype == DType::kInt64; }

constexpr bool IsModular(DType dtype) { return dtype == DType::kUInt32 || dtype == DType::kUInt64; }

// "float32", "bfloat16", … as in the Python API.
absl::string_view Name(DType dtype);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_SPEC_DTYPE_H_
