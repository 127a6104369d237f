// What the fuzz targets share.
#ifndef SPARSEAGG_TESTS_FUZZ_FUZZ_H_
#define SPARSEAGG_TESTS_FUZZ_FUZZ_H_

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Ends the process, which the fuzzer reports with its input, unless `condition` holds. `what`: what should hold.
inline void Require(bool condition, const char* what, absl::string_view found = "") {
  if (condition) return;
  std::fprintf(stderr, "%s: %.*s\n", what, static_cast<int>(found.size()), found.data());
  std::abort();
}

// Whether an error says that the caller has sent something wrong, or too much.
inline bool IsCallersFault(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status) ||
         absl::IsOutOfRange(status);
}

// Returns: the bytes as they are received, in pieces of `cut` bytes. The fuzzed input owns them.
inline absl::Cord Cut(absl::string_view bytes, size_t cut) {
  absl::Cord cord;
  for (size_t at = 0; at < bytes.size(); at += cut) {
    cord.Append(absl::MakeCordFromExternal(bytes.substr(at, cut), [] {}));
  }
  return cord;
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_FUZZ_FUZZ_H_
