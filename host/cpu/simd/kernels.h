// Vector kernels of the CPU engine, and the choice of their SIMD target.
//
// Each kernel is written once, with Highway, and compiled for several targets (AVX-512, AVX2, …, portable). At run time
// the best target of the machine is used. All targets give the same bits, because they do the same IEEE operations on
// each element.
#ifndef SPARSEAGG_HOST_CPU_SIMD_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "host/cpu/simd/value_scale.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// Restricts the kernels to one target: "AVX3", "AVX2", or "SCALAR" or "EMU128", whichever the compiler
// made. An empty name restores the best.
// Errors: INVALID_ARGUMENT, listing this machine's targets, if it does not have this one.
// Not thread-safe: no kernel may run meanwhile.
absl::Status ForceSimdTarget(const std::string& name);

// Returns: the targets of this machine, best first.
std::vector<std::string> SimdTargets();

// Returns: the target in use.
std::string CurrentSimdTarget();

// Elements by which outputs of the loading and quantising kernels, and their float64 inputs, must be longer than what
// they hold: the last vector is read and written whole.
inline constexpr size_t kVectorSlack = 16;

// terms[i] = (widen(values[i]) · factor) · weight + 0.0. Adding +0.0 turns −0.0 into +0.0 and changes nothing else.
// Values may be unaligned. `readable` ≥ `count`: the number of values that may be read.
void LoadFloat32(const void* values, size_t count, size_t readable, ValueScale scale, double* terms);
void LoadFloat64(const void* values, size_t count, size_t readable, ValueScale scale, double* terms);
void LoadFloat16(const void* values, size_t count, size_t readable, ValueScale scale, double* terms);
void LoadBFloat16(const void* values, size_t count, size_t readable, ValueScale scale, double* terms);

// terms[i] = rint(clamp(products[i], ±bound) · scale), ties to even.
void QuantiseTerms(const double* products, size_t count, double bound, double scale, int64_t* terms);

// Returns: the number of keys, from the first on, that are ≤ last.
// Cost: one pass over these keys.
uint64_t CountUpTo(const uint32_t* keys, uint64_t count, uint32_t last);
uint64_t CountUpTo(const uint64_t* keys, uint64_t count, uint64_t last);

// Returns: whether every |(values[i] · factor) · weight| is at most `bound`; of NaN it is not. `values`: floats of
// `dtype`, may be unaligned. Cost: one pass, which reads only.
bool AreWithin(const std::byte* values, DType dtype, size_t count, ValueScale scale, double bound);

// out[i] = values[i] rounded to float32, to nearest even. NaN becomes canonical, −0.0 becomes +0.0.
void RoundToFloat32(const double* values, size_t count, float* out);
// out[i] = float64(values[i]) · unit. `unit` is a power of two, so only the conversion rounds.
void ScaleIntegers(const int64_t* values, size_t count, double unit, double* out);
// values[i] /= divisor.
void Divide(double* values, size_t count, double divisor);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_KERNELS_H_
