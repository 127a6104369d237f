// The conversion of exceptions to statuses.
#ifndef SPARSEAGG_HOST_BASE_TO_STATUS_H_
#define SPARSEAGG_HOST_BASE_TO_STATUS_H_

#include <exception>
#include <new>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sparseagg {

// Calls `function`, which returns a Status or StatusOr and may throw.
// Returns: the result of `function`.
// Errors: RESOURCE_EXHAUSTED for std::bad_alloc, and for a std::system_error about a lack that may pass, such as of
// threads; INTERNAL for any other exception.
template <typename Function>
auto ToStatus(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) {
      return absl::InternalError(absl::StrCat("unexpected exception: ", e.what()));
    }
    return absl::ResourceExhaustedError(absl::StrCat("the system starts no more threads: ", e.what()));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("unexpected exception: ", e.what()));
  }
}

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_TO_STATUS_H_
