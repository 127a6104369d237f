// What the fuzz targets share.
#ifndef SPARSEAGG_TESTS_FUZZ_FUZZ_H_
#define SPARSEAGG_TESTS_FUZZ_FUZZ_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/status/status.h"
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

// Returns: the bytes as gRPC receives them, in slices of `cut` bytes.
inline grpc::ByteBuffer Cut(absl::string_view bytes, size_t cut) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += cut) {
    const absl::string_view piece = bytes.substr(at, cut);
    slices.emplace_back(piece.data(), piece.size());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_FUZZ_FUZZ_H_
