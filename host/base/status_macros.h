// Early return on absl::Status errors.
#ifndef SPARSEAGG_HOST_BASE_STATUS_MACROS_H_
#define SPARSEAGG_HOST_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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

#endif  // SPARSEAGG_HOST_BASE_STATUS_MACROS_H_
