// Where exceptions of the standard library end.
#ifndef SPARSEAGG_SERVICE_BASE_TO_STATUS_H_
#define SPARSEAGG_SERVICE_BASE_TO_STATUS_H_

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sparseagg::service {

// Calls `function`, which returns a Status or StatusOr. RESOURCE_EXHAUSTED if an allocation fails on the way, INTERNAL
// for any other exception.
template <typename Function>
auto ToStatus(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the machine has no memory left");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("unexpected: ", e.what()));
  }
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_TO_STATUS_H_
