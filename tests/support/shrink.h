// Reduction of a failing random case to one that is small enough to read.
#ifndef SPARSEAGG_TESTS_SUPPORT_SHRINK_H_
#define SPARSEAGG_TESTS_SUPPORT_SHRINK_H_

#include <functional>

#include "tests/support/generators.h"

namespace sparseagg::testing {

// Removes tensors, submissions and tuples greedily while `fails` holds, in at most `max_attempts` calls of `fails`.
Case Shrink(Case c, const std::function<bool(const Case&)>& fails, int max_attempts = 2000);

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_SHRINK_H_
