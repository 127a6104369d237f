// Exceptions as statuses.
#ifndef SPARSEAGG_CUDA_PLUGIN_GUARDED_H_
#define SPARSEAGG_CUDA_PLUGIN_GUARDED_H_

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sparseagg::cuda {

// Calls `function`, which returns a Status or StatusOr and may throw.
// Errors: RESOURCE_EXHAUSTED for std::bad_alloc, INTERNAL for any other exception.
template <typename Function>
auto Guarded(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("unexpected exception: ", e.what()));
  }
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_PLUGIN_GUARDED_H_
