// The conversion of exceptions to statuses.
#ifndef SPARSEAGG_SERVICE_BASE_TO_STATUS_H_
#define SPARSEAGG_SERVICE_BASE_TO_STATUS_H_

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sparseagg::service {

// Calls `function`, which returns a Status or StatusOr and may throw.
// Returns: the result of `function`.
// Errors: RESOURCE_EXHAUSTED for std::bad_alloc; INTERNAL for any other exception.
template <typename Function>
auto ToStatus(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("unexpected exception: ", e.what()));
  }
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_TO_STATUS_H_
