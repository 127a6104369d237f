// A scope in which one memory allocation fails.
#ifndef SPARSEAGG_TESTS_SUPPORT_FAILING_ALLOCATION_H_
#define SPARSEAGG_TESTS_SUPPORT_FAILING_ALLOCATION_H_

#include <cstddef>
#include <new>

#include "absl/status/status.h"

namespace sparseagg::testing {

// Scope in which `before` calls of operator new for `least_bytes` or more succeed, on all threads together, and the
// next such call throws std::bad_alloc. Only one scope at a time.
class FailingAllocation {
 public:
  explicit FailingAllocation(long before, size_t least_bytes = 1);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  // Whether the call that throws has happened.
  bool failed() const;
};

// Returns: what `step` returns; RESOURCE_EXHAUSTED if it throws std::bad_alloc.
template <typename Step>
absl::Status Try(Step step) {
  try {
    return step();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("thrown");
  }
}

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_FAILING_ALLOCATION_H_
