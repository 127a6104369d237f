// Makes a failing random case small enough to read.
#ifndef SPARSEAGG_TESTS_SUPPORT_SHRINK_H_
#define SPARSEAGG_TESTS_SUPPORT_SHRINK_H_

#include <functional>

#include "tests/support/generators.h"

namespace sparseagg::testing {

// Leaves out tensors, submissions and tuples for as long as `fails` holds, greedily, within `max_attempts` calls.
Case Shrink(Case c, const std::function<bool(const Case&)>& fails, int max_attempts = 2000);

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_SHRINK_H_
