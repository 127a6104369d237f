// Reading and comparing of results.
#ifndef SPARSEAGG_TESTS_SUPPORT_RESULTS_H_
#define SPARSEAGG_TESTS_SUPPORT_RESULTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "host/result.h"

namespace sparseagg::testing {

std::vector<uint64_t> KeysOf(const Result& result);
// Values of a float result, widened exactly.
std::vector<double> FloatsOf(const Result& result);
// Values of an integer result; those of uint64 above 2^63 wrap.
std::vector<int64_t> IntegersOf(const Result& result);
std::vector<uint32_t> CountsOf(const Result& result);
std::vector<double> WeightsOf(const Result& result);
// Raw bits of the values, each in the low bits of a number.
std::vector<uint64_t> BitsOf(const Result& result);

// Empty when the two are the same in every field and bit, else the first difference in words. A result without values
// has no dtype to compare.
std::string Diff(const Result& actual, const Result& expected);
std::string Diff(const std::vector<Result>& actual, const std::vector<Result>& expected);

// A hash over all that Diff compares.
uint64_t ResultDigest(const Result& result);
uint64_t ResultDigest(const std::vector<Result>& results);

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_RESULTS_H_
