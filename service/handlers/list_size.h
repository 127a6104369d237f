// ListSize: how many entries a page of a list has.
#ifndef SPARSEAGG_SERVICE_HANDLERS_LIST_SIZE_H_
#define SPARSEAGG_SERVICE_HANDLERS_LIST_SIZE_H_

#include <algorithm>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace sparseagg::service {

inline constexpr int kMaxListSize = 1000;

// `page_size`: of the request; 0: `default_size`. Errors: INVALID_ARGUMENT: it is negative.
inline absl::StatusOr<int> ListSize(int page_size, int default_size = 100) {
  if (page_size < 0) return absl::InvalidArgumentError(absl::StrCat("page_size ", page_size, " is negative"));
  return page_size == 0 ? default_size : std::min(page_size, kMaxListSize);
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_LIST_SIZE_H_
