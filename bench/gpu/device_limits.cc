#include "bench/gpu/device_limits.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "bench/common/machine.h"
#include "host/base/status_macros.h"

namespace sparseagg::bench {
namespace {

constexpr int kRows = 5;
constexpr int kCopiesPerRow = 8;

// Of the fastest row.
template <typename Copy>
absl::StatusOr<double> CopiesPerSecond(cuda::Device& device, Copy copy) {
  double best = 0;
  for (int row = -1; row < kRows; ++row) {  // the first one touches what was not touched before
    const double start = Now();
    for (int i = 0; i < kCopiesPerRow; ++i) RETURN_IF_ERROR(copy());
    RETURN_IF_ERROR(device.AwaitLane(cuda::Lane::kCopy));
    if (row >= 0) best = std::max(best, kCopiesPerRow / (Now() - start));
  }
  return best;
}

}  // namespace

absl::StatusOr<DeviceLimits> MeasureLimits(cuda::Device& device, size_t bytes) {
  constexpr auto kLane = cuda::Lane::kCopy;
  ASSIGN_OR_RETURN(void* const d_from, device.Allocate(bytes, kLane));
  const absl::Cleanup free_from = [&] { device.Free(d_from, kLane); };
  ASSIGN_OR_RETURN(void* const d_to, device.Allocate(bytes, kLane));
  const absl::Cleanup free_to = [&] { device.Free(d_to, kLane); };
  ASSIGN_OR_RETURN(void* const pinned, device.AllocatePinned(bytes));
  const absl::Cleanup free_pinned = [&] { device.FreePinned(pinned); };
  std::memset(pinned, 1, bytes);
  std::vector<char> pageable(bytes, 1);
  RETURN_IF_ERROR(device.Fill(d_from, 1, bytes, kLane));

  DeviceLimits limits;
  const auto size = static_cast<double>(bytes);
  ASSIGN_OR_RETURN(limits.copy_bytes_per_s,
                   CopiesPerSecond(device, [&] { return device.CopyWithin(d_to, d_from, bytes, kLane); }));
  limits.copy_bytes_per_s *= 2 * size;
  ASSIGN_OR_RETURN(limits.pinned_in_bytes_per_s,
                   CopiesPerSecond(device, [&] { return device.CopyIn(d_to, pinned, bytes, kLane); }));
  limits.pinned_in_bytes_per_s *= size;
  ASSIGN_OR_RETURN(limits.pageable_in_bytes_per_s,
                   CopiesPerSecond(device, [&] { return device.CopyIn(d_to, pageable.data(), bytes, kLane); }));
  limits.pageable_in_bytes_per_s *= size;
  ASSIGN_OR_RETURN(limits.pinned_out_bytes_per_s,
                   CopiesPerSecond(device, [&] { return device.CopyOut(pinned, d_from, bytes, kLane); }));
  limits.pinned_out_bytes_per_s *= size;
  return limits;
}

}  // namespace sparseagg::bench
