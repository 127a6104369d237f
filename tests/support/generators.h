// Seeded random specs, keys, values and submissions.
#ifndef SPARSEAGG_TESTS_SUPPORT_GENERATORS_H_
#define SPARSEAGG_TESTS_SUPPORT_GENERATORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "host/spec/spec.h"
#include "tests/support/random.h"
#include "tests/support/submission.h"

namespace sparseagg::testing {

// Returns: the seed of a test: SPARSEAGG_TEST_SEED if set, otherwise `fallback`.
uint64_t TestSeed(uint64_t fallback);
// Returns: the number of random cases of a test: SPARSEAGG_TEST_CASES if set, otherwise `fallback`.
uint64_t TestCases(uint64_t fallback);

// The distribution of keys.
enum class KeyStyle { kUniform, kZipf, kClustered, kOneKey, kLargest, kEdges };
// The order of keys in a submission.
enum class KeyOrder { kSortedUnique, kSorted, kDescending, kShuffled, kShuffledUnique };

// `count` keys below `num_rows` (0: any); the unique ones may be fewer. Zipf's exponent is 1.
std::vector<uint64_t> RandomKeys(Rng& rng, uint64_t num_rows, size_t count, KeyStyle style, KeyOrder order);

enum class ValueStyle {
  kSmallIntegers,
  kUnit,  // in [-1, 1)
  kWide,  // any exponent of the dtype
  kDenormal,
  kHuge,        // near the largest of the dtype
  kZeros,       // 0.0 and −0.0 and a few others
  kCancelling,  // ±1, ±2^30, ±2^60: sums depend on their order
  kNonfinite,   // NaN and ±Inf among others
};

// `count` packed values. Integers are of any size up to the whole range of the dtype for kHuge and kWide.
std::string RandomValues(Rng& rng, DType dtype, size_t count, ValueStyle style);

// One aggregation: specs that pass Validate and submissions, some of which may deserve to be refused.
struct Case {
  uint64_t seed = 0;
  std::vector<TensorSpec> specs;
  std::vector<RawSubmission> submissions;
};

Case RandomCase(uint64_t seed);

// RandomCase with cuts of the results (result_top_k, result_min_norm) and moments, where tensors take them.
Case RandomCutCase(uint64_t seed);

// About `num_tuples` tuples of rows of one value, whose keys ascend in every submission: some sparse and some dense, of
// few and of many submissions. Weights of keys are not asked for, so that the CUDA engine may merge by tiles.
Case RandomTileCase(uint64_t seed, size_t num_tuples);

// A spec, of num_rows 1000 and with counts, for each valid combination of op, dtype, weighting, numerics and layout of
// the result. Sums of up to 8 submissions with weights up to 8 and values up to 1 stay within its bounds.
std::vector<TensorSpec> EveryCombination();

// For failure messages: everything, in a form that a test can be written from; long lists are cut.
std::string Describe(const TensorSpec& spec);
std::string Describe(const Case& c);

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_GENERATORS_H_
