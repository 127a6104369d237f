// Early return on absl::Status errors, and the conversion of exceptions to statuses.
#ifndef SPARSEAGG_HOST_BASE_STATUS_MACROS_H_
#define SPARSEAGG_HOST_BASE_STATUS_MACROS_H_

#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#define SPARSEAGG_CONCAT_INNER(a, b) a##b
#define SPARSEAGG_CONCAT(a, b) SPARSEAGG_CONCAT_INNER(a, b)

// Returns the error of `expression` from the enclosing function, if there is one.
#define RETURN_IF_ERROR(expression)                           \
  do {                                                        \
    if (absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (false)

#define SPARSEAGG_ASSIGN_OR_RETURN(result, lhs, expression) \
  auto result = (expression);                               \
  if (!result.ok()) return std::move(result).status();      \
  lhs = *std::move(result)

// Assigns the value of a StatusOr to `lhs`, or returns its error from the enclosing function.
#define ASSIGN_OR_RETURN(lhs, expression) \
  SPARSEAGG_ASSIGN_OR_RETURN(SPARSEAGG_CONCAT(result_, __LINE__), lhs, expression)

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

#endif  // SPARSEAGG_HOST_BASE_STATUS_MACROS_H_
