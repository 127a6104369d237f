// The inner loops of the engine that are vectorised, one implementation a target (AVX-512, AVX2, … , portable), chosen
// at run time for the machine. All targets give the same bits: they do the same IEEE operations on each element.
#ifndef SPARSEAGG_HOST_CPU_SIMD_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sparseagg::cpu {

// Restricts the kernels to one target: "AVX3", "AVX2", "SSE4", "SSSE3", and "SCALAR" or "EMU128", whichever the
// compiler made (as far as this machine has them); empty: the best. INVALID_ARGUMENT lists the known ones. Not while
// kernels run.
absl::Status ForceSimdTarget(const std::string& name);
// The targets of this machine, best first, and the one in use.
std::vector<std::string> SimdTargets();
std::string CurrentSimdTarget();

// Outputs of the loading and quantising kernels, and their float64 inputs, need room for this many elements more than
// they hold: the last vector is read and written whole.
inline constexpr size_t kVectorSlack = 16;

// terms[i] = widen(values[i]) · weight + 0.0; the sum turns −0.0 into +0.0 and changes nothing else. Values may be
// unaligned; `readable` ≥ `count` of them may be read.
void LoadFloat32(const void* values, size_t count, size_t readable, double weight, double* terms);
void LoadFloat64(const void* values, size_t count, size_t readable, double weight, double* terms);
void LoadFloat16(const void* values, size_t count, size_t readable, double weight, double* terms);
void LoadBFloat16(const void* values, size_t count, size_t readable, double weight, double* terms);

// terms[i] = rint(clamp(products[i], ±bound) · scale), ties to even.
void QuantiseTerms(const double* products, size_t count, double bound, double scale, int64_t* terms);

// What is found where keys should ascend, each greater than the one before, and do not.
inline constexpr uint64_t kOutOfOrder = ~uint64_t{0};

// How many keys, from the first on, are ≤ last. Cost: one pass over those, for runs that are short. With `ascend`
// kOutOfOrder unless they ascend.
uint64_t CountUpTo(const uint32_t* keys, uint64_t count, uint32_t last, bool ascend);
uint64_t CountUpTo(const uint64_t* keys, uint64_t count, uint64_t last, bool ascend);

// Position of the first |products[i]| > bound (or NaN), or `count`.
size_t FindBeyond(const double* products, size_t count, double bound);

// out[i] = values[i] rounded to float32 (to nearest even), NaN canonical, no −0.0.
void RoundToFloat32(const double* values, size_t count, float* out);
// out[i] = float64(values[i]) · unit. One rounding each; the product with a power of two is exact.
void ScaleIntegers(const int64_t* values, size_t count, double unit, double* out);
// values[i] /= divisor.
void Divide(double* values, size_t count, double divisor);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_KERNELS_H_
