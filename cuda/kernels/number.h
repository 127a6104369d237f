// Arithmetic that gives the same bits on the host and on the device: every operation rounds to nearest even, nothing is
// fused, subnormals are kept.
#ifndef SPARSEAGG_CUDA_KERNELS_NUMBER_H_
#define SPARSEAGG_CUDA_KERNELS_NUMBER_H_

#include <cmath>
#include <cstdint>

#include "host/base/half.h"
#include "host/base/host_device.h"
#include "host/spec/dtype.h"

namespace sparseagg::cuda {

// SizeOf, on a device too.
SPARSEAGG_HD constexpr uint32_t BytesOf(DType type) {
  switch (type) {
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUInt32:
      return 4;
    default:
      return 8;
  }
}

#ifdef __CUDA_ARCH__  // allow(conditional): intrinsics that the compiler may not contract exist on the device only
#define SPARSEAGG_UNROLL _Pragma("unroll")  // before a loop with constant bounds, so that its arrays may be registers
SPARSEAGG_HD inline double AddRn(double a, double b) { return __dadd_rn(a, b); }
SPARSEAGG_HD inline double MulRn(double a, double b) { return __dmul_rn(a, b); }
SPARSEAGG_HD inline double DivRn(double a, double b) { return __ddiv_rn(a, b); }
SPARSEAGG_HD inline uint32_t CountBits(uint32_t bits) { return __popc(bits); }
SPARSEAGG_HD inline uint32_t LowestBit(uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }  // not of 0
#else
// Host code is compiled with contraction off.
#define SPARSEAGG_UNROLL
SPARSEAGG_HD inline uint32_t CountBits(uint32_t bits) { return __builtin_popcount(bits); }
SPARSEAGG_HD inline uint32_t LowestBit(uint32_t bits) { return __builtin_ctz(bits); }
SPARSEAGG_HD inline double AddRn(double a, double b) { return a + b; }
SPARSEAGG_HD inline double MulRn(double a, double b) { return a * b; }
SPARSEAGG_HD inline double DivRn(double a, double b) { return a / b; }
#endif

SPARSEAGG_HD inline bool IsNan(double value) { return value != value; }

// Returns: the bits of `value`, rounded once to float type `type`. −0 becomes +0, and every NaN one bit pattern.
SPARSEAGG_HD inline uint64_t RoundTo(DType type, double value) {
  switch (type) {
    case DType::kFloat16:
    case DType::kBFloat16: {
      const uint16_t rounded = type == DType::kFloat16 ? RoundToFloat16(value) : RoundToBFloat16(value);
      return rounded == 0x8000 ? 0 : rounded;
    }
    case DType::kFloat32: {
      if (IsNan(value)) return 0x7fc00000u;
      const float rounded = static_cast<float>(value);
      return rounded == 0.0f ? 0u : BitsAs<uint32_t>(rounded);
    }
    default:
      if (IsNan(value)) return 0x7ff8000000000000u;
      return value == 0.0 ? 0u : BitsAs<uint64_t>(value);
  }
}

// Row and column of value `i`, for rows of `columns` values. Avoids 64-bit division, which is slow on devices, in the
// usual cases: one column, or a small index.
struct Cell {
  uint64_t row;
  uint32_t column;
};
SPARSEAGG_HD inline Cell CellOf(uint64_t i, uint32_t columns) {
  if (columns == 1) return {i, 0};
  if (i <= 0xffffffffu) {
    const auto narrow = static_cast<uint32_t>(i);
    return {narrow / columns, narrow % columns};
  }
  return {i / columns, static_cast<uint32_t>(i % columns)};
}

// Returns: the bits of element `index`. FloatOf and IntegerOf convert the bits, exactly. Two steps, so that a thread
// can load several elements before it converts one.
SPARSEAGG_HD inline uint64_t LoadBits(const void* values, DType type, uint64_t index) {
  switch (BytesOf(type)) {
    case 2:
      return static_cast<const uint16_t*>(values)[index];
    case 4:
      return static_cast<const uint32_t*>(values)[index];
    default:
      return static_cast<const uint64_t*>(values)[index];
  }
}

SPARSEAGG_HD inline double FloatOf(DType type, uint64_t bits) {
  switch (type) {
    case DType::kFloat16:
      return WidenFloat16(static_cast<uint16_t>(bits));
    case DType::kBFloat16:
      return WidenBFloat16(static_cast<uint16_t>(bits));
    case DType::kFloat64:
      return BitsAs<double>(bits);
    default:
      return static_cast<double>(BitsAs<float>(static_cast<uint32_t>(bits)));
  }
}

SPARSEAGG_HD inline int64_t IntegerOf(DType type, uint64_t bits) {
  return type == DType::kInt32 ? int64_t{static_cast<int32_t>(bits)} : static_cast<int64_t>(bits);
}

// kCount neighbouring elements of an array of rows, which a thread loads and stores at once, 16 bytes at a time.
template <typename T, uint32_t kCount>
struct alignas(kCount == 1 ? alignof(T) : 16) Pack {
  T values[kCount];
};

// Calls body(c) for the columns c of a pack.
template <uint32_t kCount, typename Body>
SPARSEAGG_HD void ForColumns(const Body& body) {
  SPARSEAGG_UNROLL
  for (uint32_t c = 0; c < kCount; ++c) body(c);
}

// Returns: the bits of element `index` of 16 bytes that hold kCount elements; the first one in the lowest bits.
template <uint32_t kCount>
SPARSEAGG_HD uint64_t BitsIn(const Pack<uint64_t, 2>& pack, uint32_t index) {
  constexpr uint32_t kPerHalf = kCount / 2;
  constexpr uint32_t kBits = 64 / kPerHalf;
  return (pack.values[index / kPerHalf] >> (index % kPerHalf * kBits)) & (~uint64_t{0} >> (64 - kBits));
}

// Writes the low bytes of `bits` as element `index`.
SPARSEAGG_HD inline void StoreBits(void* values, DType type, uint64_t index, uint64_t bits) {
  switch (BytesOf(type)) {
    case 2:
      static_cast<uint16_t*>(values)[index] = static_cast<uint16_t>(bits);
      return;
    case 4:
      static_cast<uint32_t*>(values)[index] = static_cast<uint32_t>(bits);
      return;
    default:
      static_cast<uint64_t*>(values)[index] = bits;
  }
}

SPARSEAGG_HD inline uint64_t LoadKey(const void* keys, uint32_t key_bytes, uint64_t index) {
  return key_bytes == 4 ? uint64_t{static_cast<const uint32_t*>(keys)[index]}
                        : static_cast<const uint64_t*>(keys)[index];
}

SPARSEAGG_HD inline void StoreKey(void* keys, uint32_t key_bytes, uint64_t index, uint64_t key) {
  if (key_bytes == 4) {
    static_cast<uint32_t*>(keys)[index] = static_cast<uint32_t>(key);
  } else {
    static_cast<uint64_t*>(keys)[index] = key;
  }
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_NUMBER_H_
