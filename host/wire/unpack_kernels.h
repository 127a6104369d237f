// The vectorised loops that decode packed keys and narrow values.
#ifndef SPARSEAGG_HOST_WIRE_UNPACK_KERNELS_H_
#define SPARSEAGG_HOST_WIRE_UNPACK_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace sparseagg::wire::internal {

// Number of keys in a whole block of DELTA_BITPACKED.
inline constexpr size_t kBlockKeys = 128;
// Widest gaps that the block kernels take. A gap and its bit offset in a byte fit 32 bits, and the gaps of a block add
// up to less than 2^32.
inline constexpr int kMaxKernelWidth = 25;
// Bytes that the block kernels may read behind a block.
inline constexpr size_t kReadSlack = 16;

// Decodes a whole block of gaps of `width` bits: out[i] = before + Σ_{j≤i} (gap_j + 1), modulo 2^32 or 2^64.
// Requires: width ≤ kMaxKernelWidth; `packed` has 16·width bytes, and kReadSlack more that may be read.
void UnpackBlock32(const uint8_t* packed, int width, uint32_t before, uint32_t* out);
void UnpackBlock64(const uint8_t* packed, int width, uint64_t before, uint64_t* out);

// Widen float16 or bfloat16 bits to float32, exactly.
void WidenFloat16s(const void* bits, size_t count, float* out);
void WidenBFloat16s(const void* bits, size_t count, float* out);

// out[i] = scale · multiples[i], rounded to float32.
void ScaleInt8s(const void* multiples, size_t count, float scale, float* out);

}  // namespace sparseagg::wire::internal

#endif  // SPARSEAGG_HOST_WIRE_UNPACK_KERNELS_H_
