// The tests' own number formats, written from their definitions; shares nothing with host/.
#ifndef SPARSEAGG_TESTS_SUPPORT_VALUES_H_
#define SPARSEAGG_TESTS_SUPPORT_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "host/spec/dtype.h"

namespace sparseagg::testing {

using Int128 = __int128;

// One little-endian value of a float dtype, widened exactly.
double ReadFloat(DType dtype, const char* bytes);
// One little-endian value of an integer dtype.
Int128 ReadInteger(DType dtype, const char* bytes);

// `value` rounded once, to nearest even, to a float dtype. Results have one NaN (quiet, positive) and no −0.0.
uint64_t RoundToBits(DType dtype, double value);

// The lowest SizeOf(dtype) bytes of `bits`, little-endian.
void AppendBits(DType dtype, uint64_t bits, std::string& bytes);

// Wire bytes of values. Floats are rounded to the dtype but keep their NaNs' and zeros' signs; integers must fit.
std::string PackFloats(DType dtype, const std::vector<double>& values);
std::string PackIntegers(DType dtype, const std::vector<int64_t>& values);
// Either of the two, for values that the dtype can hold.
std::string Pack(DType dtype, const std::vector<double>& values);

// 2^exponent; exponents from −1022 to 1023.
double PowerOfTwo(int exponent);

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_VALUES_H_
