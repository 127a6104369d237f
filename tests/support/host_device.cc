#include "tests/support/host_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "tests/support/host_executor.h"
#include "tests/support/run_kernel.h"

namespace sparseagg::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr uint8_t kRubbish = 0xcb;

size_t RoundUp(size_t bytes) { return SaturatingAdd(bytes, kAlignment - 1) / kAlignment * kAlignment; }

template <typename Key>
void StableSort(const SortCall& call, int output, const std::function<void(void*, size_t)>& spoil) {
  struct Entry {
    Key key;
    uint32_t payload;
  };
  const auto* keys = static_cast<const Key*>(call.d_keys[0]);
  std::vector<Entry> entries(call.count);
  for (uint32_t i = 0; i < call.count; ++i) entries[i] = {keys[i], call.d_payloads[0][i]};
  // Ignores the bits from end_bit on, as a radix sort does.
  const Key mask = call.end_bit >= static_cast<int>(8 * sizeof(Key)) ? static_cast<Key>(~Key{0})
                                                                     : static_cast<Key>((Key{1} << call.end_bit) - 1);
  std::stable_sort(entries.begin(), entries.end(),
                   [mask](const Entry& a, const Entry& b) { return (a.key & mask) < (b.key & mask); });
  spoil(call.d_keys[1 - output], call.count * sizeof(Key));
  spoil(call.d_payloads[1 - output], call.count * sizeof(uint32_t));
  spoil(call.d_scratch, call.scratch_bytes);
  for (uint32_t i = 0; i < call.count; ++i) {
    static_cast<Key*>(call.d_keys[output])[i] = entries[i].key;
    call.d_payloads[output][i] = entries[i].payload;
  }
}

}  // namespace

HostDevice::HostDevice(const HostDeviceOptions& options)
    : options_(options), random_(options.torture_seed), pinned_(std::make_shared<Pinned>()) {
  if (options_.run_kernel != nullptr) return;
  options_.run_kernel = [executor = HostExecutor(options.torture_seed)](const KernelCall& call) mutable {
    RunKernel(call, executor);
  };
}

HostDevice::~HostDevice() {
  for (const Lane lane : kLanes) RunUntil({lane, QueueOf(lane).num_asked});
  for (const auto& [memory, bytes] : sizes_) std::free(memory);
}

absl::Status HostDevice::Ask(Lane lane, std::function<void()> work) {
  Queue& queue = QueueOf(lane);
  queue.pending.push_back(std::move(work));
  ++queue.num_asked;
  if (!tortures()) {
    RunUntil({lane, queue.num_asked});
  } else if (random_() % 4 == 0) {
    const Lane some = kLanes[random_() % kLanes.size()];
    const uint64_t waiting = QueueOf(some).num_asked - QueueOf(some).num_done;
    RunUntil({some, QueueOf(some).num_done + random_() % (waiting + 1)});
  }
  return absl::OkStatus();
}

void HostDevice::RunUntil(Moment moment) {
  Queue& queue = QueueOf(moment.lane);
  while (queue.num_done < moment.ticket) {
    const std::function<void()> work = std::move(queue.pending.front());
    queue.pending.pop_front();
    ++queue.num_done;
    work();
  }
}

void HostDevice::Spoil(void* memory, size_t bytes) {
  if (tortures() && bytes > 0) std::memset(memory, kRubbish, bytes);
}

absl::StatusOr<void*> HostDevice::Allocate(size_t bytes, Lane) {
  const size_t size = RoundUp(bytes);
  void* memory = nullptr;
  // Of the exact size, so that a sanitizer finds accesses beyond the end.
  if (size > options_.memory_bytes - std::min(used_bytes_, options_.memory_bytes) ||
      posix_memalign(&memory, kAlignment, bytes) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("the host device has no ", bytes, " bytes"));
  }
  Spoil(memory, bytes);
  try {
    sizes_[memory] = bytes;
  } catch (const std::bad_alloc&) {
    std::free(memory);
    throw;
  }
  used_bytes_ += size;
  return memory;
}

void HostDevice::Free(void* d_memory, Lane lane) {
  const auto found = sizes_.find(d_memory);
  const size_t bytes = found->second;
  sizes_.erase(found);
  used_bytes_ -= RoundUp(bytes);
  // Without torture no work is pending, and a destructor must not allocate memory for a queued free.
  if (!tortures()) return std::free(d_memory);
  Ask(lane, [this, d_memory, bytes] {
    Spoil(d_memory, bytes);
    std::free(d_memory);
  }).IgnoreError();
}

absl::StatusOr<std::shared_ptr<std::byte>> HostDevice::AllocatePinned(size_t bytes) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, RoundUp(bytes)));
  if (memory == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes to stage copies in"));
  Spoil(memory, bytes);
  const std::shared_ptr<std::byte> pinned(memory, [all = pinned_](std::byte* freed) {
    const std::lock_guard<std::mutex> lock(all->mutex);
    all->sizes.erase(freed);
    std::free(freed);
  });
  const std::lock_guard<std::mutex> lock(pinned_->mutex);
  pinned_->sizes[memory] = bytes;
  return pinned;
}

bool HostDevice::IsPinned(const void* memory, size_t bytes) const {
  if (options_.all_pinned) return true;
  const auto* begin = static_cast<const std::byte*>(memory);
  const std::lock_guard<std::mutex> lock(pinned_->mutex);
  auto after = pinned_->sizes.upper_bound(begin);
  if (after == pinned_->sizes.begin()) return false;
  const auto& [start, size] = *--after;
  return begin + bytes <= start + size;
}

absl::Status HostDevice::CopyIn(void* d_to, const void* from_pinned, size_t bytes, Lane lane) {
  return Ask(lane, [=] { std::memcpy(d_to, from_pinned, bytes); });
}
absl::Status HostDevice::CopyOut(void* to_pinned, const void* d_from, size_t bytes, Lane lane) {
  return Ask(lane, [=] { std::memcpy(to_pinned, d_from, bytes); });
}
absl::Status HostDevice::CopyWithin(void* d_to, const void* d_from, size_t bytes, Lane lane) {
  return Ask(lane, [=] { std::memcpy(d_to, d_from, bytes); });
}
absl::Status HostDevice::Fill(void* d_memory, uint8_t byte, size_t bytes, Lane lane) {
  return Ask(lane, [=] { std::memset(d_memory, byte, bytes); });
}

absl::StatusOr<EventId> HostDevice::CreateEvent() {
  events_.emplace_back();
  return static_cast<EventId>(events_.size() - 1);
}
absl::Status HostDevice::Record(EventId event, Lane lane) {
  events_[event] = {lane, QueueOf(lane).num_asked};
  return absl::OkStatus();
}
absl::Status HostDevice::Wait(Lane lane, EventId event) {
  return Ask(lane, [this, moment = events_[event]] { RunUntil(moment); });
}
absl::Status HostDevice::Await(EventId event) {
  RunUntil(events_[event]);
  return absl::OkStatus();
}
absl::Status HostDevice::AwaitLane(Lane lane) {
  RunUntil({lane, QueueOf(lane).num_asked});
  return absl::OkStatus();
}

absl::Status HostDevice::AwaitAll() {
  for (const Lane lane : kLanes) RETURN_IF_ERROR(AwaitLane(lane));
  return absl::OkStatus();
}

absl::StatusOr<int> HostDevice::Sort(SortCall& call) {
  if (call.d_scratch == nullptr) {
    call.scratch_bytes = size_t{call.count} / 8 + 1;
    return 0;
  }
  const int output = tortures() ? static_cast<int>(random_() % 2) : 1;
  RETURN_IF_ERROR(Ask(Lane::kCompute, [this, call, output] {
    const auto spoil = [this](void* memory, size_t bytes) { Spoil(memory, bytes); };
    call.key_bytes == 4 ? StableSort<uint32_t>(call, output, spoil) : StableSort<uint64_t>(call, output, spoil);
  }));
  return output;
}

absl::Status HostDevice::Select(SelectCall& call) {
  if (call.d_scratch == nullptr) {
    call.scratch_bytes = size_t{call.count} / 8 + 1;
    return absl::OkStatus();
  }
  return Ask(Lane::kCompute, [this, call] {
    Spoil(call.d_scratch, call.scratch_bytes);
    uint32_t selected = 0;
    const auto is_head = [&call](uint32_t i) {
      return i == 0 ||
             LoadKey(call.d_sorted_keys, call.key_bytes, i) != LoadKey(call.d_sorted_keys, call.key_bytes, i - 1);
    };
    for (uint32_t i = 0; i < call.count; ++i) {
      if (call.d_flags == nullptr ? is_head(i) : call.d_flags[i] != 0) call.d_indices[selected++] = i;
    }
    *call.d_num_selected = selected;
  });
}

absl::Status HostDevice::LaunchOn(const KernelCall& call, Lane lane) {
  return Ask(lane, [this, call] { options_.run_kernel(call); });
}

}  // namespace sparseagg::cuda
