#include "cuda/device/device.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"

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

namespace {

constexpr absl::string_view kNoRoom = "sparseagg/no_room";  // payload type that marks NoRoom errors

}  // namespace

absl::Status NoRoom(absl::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kNoRoom, absl::Cord());
  return status;
}

bool IsNoRoom(const absl::Status& status) { return status.GetPayload(kNoRoom).has_value(); }

absl::StatusOr<DeviceBuffer> DeviceMemory::Allocate(size_t bytes, Lane lane) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  if (bytes > budget_bytes_ - std::min(used_bytes_, budget_bytes_)) {
    return absl::ResourceExhaustedError(absl::StrCat("device memory: ", bytes, " bytes more than the ", used_bytes_,
                                                     " in use are beyond the budget of ", budget_bytes_));
  }
  ASSIGN_OR_RETURN(buffer.d_memory_, device_.Allocate(bytes, lane));
  buffer.owner_ = this;
  buffer.allocated_bytes_ = buffer.bytes_ = bytes;
  buffer.lane_ = lane;
  used_bytes_ += bytes;
  return buffer;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  owner_ = std::exchange(other.owner_, nullptr);
  d_memory_ = std::exchange(other.d_memory_, nullptr);
  allocated_bytes_ = std::exchange(other.allocated_bytes_, 0);
  bytes_ = std::exchange(other.bytes_, 0);
  lane_ = other.lane_;
  return *this;
}

void DeviceBuffer::Release() {
  if (d_memory_ == nullptr) return;
  owner_->device_.Free(d_memory_, lane_);
  owner_->used_bytes_ -= allocated_bytes_;
  d_memory_ = nullptr;
  bytes_ = 0;
}

}  // namespace sparseagg::cuda
