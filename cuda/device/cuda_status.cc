#include "cuda/device/cuda_status.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sparseagg::cuda {

absl::Status ToStatus(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return absl::OkStatus();
  absl::string_view name = file;
  const size_t slash = name.rfind('/');
  if (slash != absl::string_view::npos) name.remove_prefix(slash + 1);
  const std::string text =
      absl::StrCat(cudaGetErrorName(error), ": ", cudaGetErrorString(error), " (", call, " at ", name, ":", line, ")");
  cudaGetLastError();  // resets the error, which the next launch would report again
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

void IgnoreError(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
}

}  // namespace sparseagg::cuda
