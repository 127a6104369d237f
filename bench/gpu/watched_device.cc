#include "bench/gpu/watched_device.h"

#include <iterator>
#include <utility>
#include <variant>

#include "bench/common/machine.h"
#include "host/base/status_macros.h"

namespace sparseagg::bench {
namespace {

// In the order of cuda::KernelCall.
constexpr const char* kKernels[] = {"expand_run", "gather_segments",  "fold_values",  "find_tile_bounds",
                                    "list_parts", "find_part_bounds", "fold_tiles",   "import_updates",
                                    "judge_rows", "judge_values",     "write_result", "fill_values",
                                    "fetch",      "copy_words"};
static_assert(std::size(kKernels) == std::variant_size_v<cuda::KernelCall>);

// Elements of an element-wise kernel; 0 of one of blocks.
struct SizeOf {
  template <typename Kernel>
  uint64_t operator()(const Kernel& kernel) const {
    if constexpr (requires { kernel.size(); }) return kernel.size();
    return 0;
  }
};

class HostClock : public SpanClock {
 public:
  void Begin() override { begin_ = Now(); }
  void End(const std::string& name) override { seconds_[name] += Now() - begin_; }
  std::map<std::string, double> Collect() override { return std::exchange(seconds_, {}); }

 private:
  double begin_ = 0;
  std::map<std::string, double> seconds_;
};

}  // namespace

std::unique_ptr<SpanClock> MakeHostClock() { return std::make_unique<HostClock>(); }

absl::StatusOr<void*> WatchedDevice::Allocate(size_t bytes, cuda::Lane lane) {
  Count("allocate", bytes);
  ASSIGN_OR_RETURN(void* const d_memory, device_->Allocate(bytes, lane));
  if (watch_.poison && bytes > 0) {
    if (absl::Status status = device_->Fill(d_memory, Watch::kPoison, bytes, lane); !status.ok()) {
      device_->Free(d_memory, lane);
      return status;
    }
  }
  sizes_[d_memory] = bytes;
  watch_.used_bytes += bytes;
  watch_.peak_bytes = std::max(watch_.peak_bytes, watch_.used_bytes);
  return d_memory;
}

void WatchedDevice::Free(void* d_memory, cuda::Lane lane) {
  const auto found = sizes_.find(d_memory);
  if (found != sizes_.end()) {
    watch_.used_bytes -= found->second;
    sizes_.erase(found);
  }
  device_->Free(d_memory, lane);
}

absl::Status WatchedDevice::LaunchOn(const cuda::KernelCall& call, cuda::Lane lane) {
  return Watched(kKernels[call.index()], std::visit(SizeOf(), call), lane,
                 [&] { return device_->LaunchOn(call, lane); });
}

}  // namespace sparseagg::bench
