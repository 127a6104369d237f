// The inner loops of decoding packed keys and narrow values, vectorised.
#ifndef SPARSEAGG_HOST_WIRE_UNPACK_KERNELS_H_
#define SPARSEAGG_HOST_WIRE_UNPACK_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace sparseagg::wire::internal {

// Keys of a whole block of DELTA_BITPACKED.
inline constexpr size_t kBlockKeys = 128;
// Widest gaps that the block kernels take: a gap and its offset in a byte fit 32 bits, and the gaps of a block add up
// to less than 2^32.
inline constexpr int kMaxKernelWidth = 25;
// Bytes behind a block's own that the block kernels may read.
inline constexpr size_t kReadSlack = 16;

// A whole block of gaps of `width` ≤ kMaxKernelWidth bits: out[i] = before + Σ_{j≤i} (gap_j + 1), modulo 2^32 for 32
// bits. For 64 bits `before` + the block's span must stay below 2^64, or the keys wrap. `packed` has 16·width bytes and
// kReadSlack more that may be read.
void UnpackBlock32(const uint8_t* packed, int width, uint32_t before, uint32_t* out);
void UnpackBlock64(const uint8_t* packed, int width, uint64_t before, uint64_t* out);

// Number of bits set.
uint64_t CountBits(const uint8_t* bits, size_t num_bytes);

// Writes `base` + the position of every bit set, lowest bit of each byte first, ascending, and returns how many. `out`
// has room for exactly that many: no more than `room` are written.
size_t UnpackBits32(const uint8_t* bits, size_t num_bytes, uint32_t base, size_t room, uint32_t* out);

// Widens float16 or bfloat16 bits to float32, exactly.
void WidenFloat16s(const void* bits, size_t count, float* out);
void WidenBFloat16s(const void* bits, size_t count, float* out);

// out[i] = scale · multiples[i], rounded to float32.
void ScaleInt8s(const void* multiples, size_t count, float scale, float* out);

}  // namespace sparseagg::wire::internal

#endif  // SPARSEAGG_HOST_WIRE_UNPACK_KERNELS_H_
