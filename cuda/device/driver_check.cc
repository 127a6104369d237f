#include "cuda/device/driver_check.h"

#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sparseagg::cuda {
namespace {

// The first release of the driver for a major version of CUDA; from NVIDIA's table of minor version compatibility.
absl::string_view FirstRelease(int major) {
  if (major == 13) return ", which is R580 or later";
  if (major == 12) return ", which is R525 or later";
  return "";
}

}  // namespace

absl::Status CheckDriver(int driver, int runtime, absl::string_view release) {
  if (driver == 0) return absl::UnavailableError("no usable GPU: this machine has no NVIDIA driver");
  const int major = runtime / 1000;
  if (driver / 1000 >= major) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("no usable GPU: the NVIDIA driver", release.empty() ? "" : " ", release,
                                             " is for CUDA ", driver / 1000, ".", driver % 1000 / 10,
                                             ", and the CUDA engine needs a driver for CUDA ", major,
                                             FirstRelease(major), "; the CPU engine works without"));
}

std::string DriverRelease(const std::string& path) {
  std::ifstream file(path);
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar …": the first word that is a number with a dot.
  for (std::string word; file >> word;) {
    if (absl::ascii_isdigit(static_cast<unsigned char>(word[0])) && word.find('.') != std::string::npos) return word;
  }
  return "";
}

}  // namespace sparseagg::cuda
