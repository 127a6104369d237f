// Makes one allocation of memory fail.
#ifndef SPARSEAGG_TESTS_SUPPORT_FAILING_ALLOCATION_H_
#define SPARSEAGG_TESTS_SUPPORT_FAILING_ALLOCATION_H_

#include <cstddef>
#include <new>

#include "absl/status/status.h"

namespace sparseagg::testing {

// While it lives, `before` calls of operator new for `least_bytes` or more succeed, on whatever threads, and the one
// after those throws std::bad_alloc. One at a time.
class FailingAllocation {
 public:
  explicit FailingAllocation(long before, size_t least_bytes = 1);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  // Whether it has come to that.
  bool failed() const;
};

// What `step` returns; RESOURCE_EXHAUSTED where it throws for want of memory.
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
