// The first step of the reference: one submission as a function from keys to rows.
#ifndef SPARSEAGG_TESTS_SUPPORT_FOLD_H_
#define SPARSEAGG_TESTS_SUPPORT_FOLD_H_

#include <cstdint>
#include <vector>

#include "host/spec/spec.h"
#include "tests/support/submission.h"
#include "tests/support/values.h"

namespace sparseagg::testing {

// The row of one submission at one key: the sum, in order of occurrence, of all rows that the update lists for the key.
// Float tensors use `floats`, integer tensors `integers`, UNION neither.
struct FoldedRow {
  uint64_t key = 0;
  std::vector<double> floats;
  std::vector<Int128> integers;
};

// Returns: the rows in ascending order of key, each key once.
// Requires: the numbers of keys and values agree.
std::vector<FoldedRow> Fold(const TensorSpec& spec, const RawTensor& raw);

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_FOLD_H_
