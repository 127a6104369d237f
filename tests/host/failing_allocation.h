// Makes one allocation of memory fail.
#ifndef SPARSEAGG_TESTS_HOST_FAILING_ALLOCATION_H_
#define SPARSEAGG_TESTS_HOST_FAILING_ALLOCATION_H_

#include <cstddef>

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

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_HOST_FAILING_ALLOCATION_H_
