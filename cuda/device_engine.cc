#include "cuda/device_engine.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "cuda/device_accumulator.h"
#include "cuda/fallback_bytes.h"
#include "cuda/host_device.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {

DeviceEngine::DeviceEngine(std::unique_ptr<Device> device, const DeviceEngineOptions& options)
    : options_(options),
      cpu_engine_(CreateCpuEngine(options.cpu)),
      device_description_(device->description()),
      device_(std::move(device)) {
  const size_t budget = options.memory_budget_bytes > 0 ? options.memory_budget_bytes : device_->memory_bytes();
  session_ = std::make_unique<Session>(*device_, budget, options.tuning, options.cpu.num_threads);
}

DeviceEngine::~DeviceEngine() = default;

std::string DeviceEngine::description() const {
  return Probe().ok() ? device_description_
                      : absl::StrCat(cpu_engine_->description(), ", after a fault of ", device_description_);
}

absl::Status DeviceEngine::Probe() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return fault_;
}

DeviceUse DeviceEngine::use() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return use_;
}

absl::StatusOr<std::unique_ptr<Accumulator>> DeviceEngine::CreateAccumulator(const TensorSpec& spec) {
  ASSIGN_OR_RETURN(std::unique_ptr<Accumulator> cpu, cpu_engine_->CreateAccumulator(spec));
  return std::make_unique<DeviceAccumulator>(*this, spec, std::move(cpu), /*on_cpu=*/!Probe().ok());
}

absl::Status DeviceEngine::RunOnDevice(const Operation& operation) {
  absl::Status status;
  bool is_news = false;
  uint64_t staged_bytes = 0;
  uint64_t direct_bytes = 0;
  {
    const std::lock_guard<std::mutex> lock(device_mutex_);
    status = Probe();
    if (status.ok()) {
      for (int shrink = 0; shrink <= options_.tuning.num_retries; ++shrink) {
        status = RunOnce(*session_, operation, shrink);
        if (!absl::IsResourceExhausted(status) || IsNoRoom(status)) break;
      }
      is_news = absl::IsResourceExhausted(status) || SetFault(status);
    }
    staged_bytes = session_->staging().staged_bytes();
    direct_bytes = session_->staging().direct_bytes();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++(status.ok() ? use_.num_done : use_.num_fallbacks);
    use_.staged_bytes = staged_bytes;
    use_.direct_bytes = direct_bytes;
  }
  if (is_news) TellFallback(status);
  return status;
}

absl::Status DeviceEngine::RunOnHost(const Operation& operation) const {
  HostDevice device;
  Tuning tuning = options_.tuning;
  tuning.max_batch_entries = std::numeric_limits<int32_t>::max();  // the most possible, for updates that cannot be cut
  tuning.max_tile_bytes = kMaxHostTileBytes;
  Session session(device, device.memory_bytes(), tuning, options_.cpu.num_threads);
  return RunOnce(session, operation, 0);
}

absl::Status DeviceEngine::RunOnce(Session& session, const Operation& operation, int shrink) const {
  RETURN_IF_ERROR(session.device().Enter());
  const absl::Cleanup leave = [&session] { session.device().Leave(); };
  try {
    absl::Status status = operation(session, shrink);
    if (!status.ok()) session.Settle();
    return status;
  } catch (...) {  // std::bad_alloc is for the caller to answer, but first all work under way must end
    session.Settle();
    throw;
  }
}

bool DeviceEngine::NotePinned(const void* array, size_t bytes) {
  if (bytes < options_.tuning.min_pinned_bytes || !Probe().ok()) return false;
  PinnedArrays& pinned = session_->pinned();
  if (device_->IsPinned(array, bytes)) return pinned.Add(array, {0, bytes});
  const absl::StatusOr<PinnedArrays::Range> range = PinPages(array, bytes);
  return range.ok() && pinned.Add(array, *range);
}

absl::StatusOr<PinnedArrays::Range> DeviceEngine::PinPages(const void* array, size_t bytes) {
  constexpr uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<uintptr_t>(array);
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t last = (begin + bytes) / kPage * kPage;
  if (first >= last) return absl::InvalidArgumentError("no whole page");
  const PinnedArrays::Range range = {first - begin, last - begin};
  const std::lock_guard<std::mutex> lock(mutex_);
  if (last - first > options_.tuning.max_pinned_bytes - std::min(options_.tuning.max_pinned_bytes, pinned_bytes_)) {
    return absl::ResourceExhaustedError("enough is pinned");
  }
  RETURN_IF_ERROR(device_->Pin(static_cast<const std::byte*>(array) + range.begin, last - first));
  pinned_bytes_ += last - first;
  pinned_by_us_[array] = range;
  return range;
}

void DeviceEngine::Forget(const void* array) {
  session_->pinned().Remove(array);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pinned_by_us_.find(array);
  if (found == pinned_by_us_.end()) return;
  device_->Unpin(static_cast<const std::byte*>(array) + found->second.begin);
  pinned_bytes_ -= found->second.end - found->second.begin;
  pinned_by_us_.erase(found);
}

void DeviceEngine::Distrust(const absl::Status& fault) {
  if (SetFault(fault)) TellFallback(fault);
}

bool DeviceEngine::SetFault(const absl::Status& fault) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (fault.ok() || !fault_.ok()) return false;
  fault_ = fault;
  return true;
}

void DeviceEngine::TellFallback(const absl::Status& reason) const {
  if (options_.on_fallback) options_.on_fallback(reason);
}

}  // namespace sparseagg::cuda
