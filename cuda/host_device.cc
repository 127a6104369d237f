#include "cuda/host_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr uint8_t kRubbish = 0xcb;

size_t RoundUp(size_t bytes) { return SaturatingAdd(bytes, kAlignment - 1) / kAlignment * kAlignment; }

template <typename Key>
void StableSort(const SortCall& call, int output, const std::function<void(void*, size_t)>& spoil) {
  struct Entry {
    Key key;
    uint32_t position;
  };
  const auto* keys = static_cast<const Key*>(call.d_keys[0]);
  std::vector<Entry> entries(call.count);
  for (uint32_t i = 0; i < call.count; ++i) entries[i] = {keys[i], call.d_positions[0][i]};
  // Ignores the bits from end_bit on, as a radix sort does.
  const Key mask = call.end_bit >= static_cast<int>(8 * sizeof(Key)) ? static_cast<Key>(~Key{0})
                                                                     : static_cast<Key>((Key{1} << call.end_bit) - 1);
  std::stable_sort(entries.begin(), entries.end(),
                   [mask](const Entry& a, const Entry& b) { return (a.key & mask) < (b.key & mask); });
  spoil(call.d_keys[1 - output], call.count * sizeof(Key));
  spoil(call.d_positions[1 - output], call.count * sizeof(uint32_t));
  spoil(call.d_scratch, call.scratch_bytes);
  for (uint32_t i = 0; i < call.count; ++i) {
    static_cast<Key*>(call.d_keys[output])[i] = entries[i].key;
    call.d_positions[output][i] = entries[i].position;
  }
}

template <typename Fold>
void RunFold(const FoldValues& args, HostExecutor& executor) {
  executor.RunElements(FoldShortSegments<Fold>{args});
  executor.RunBlocks(LongBody<Fold>{{args}});
}

template <typename Fold>
void RunFold(const FoldTiles& args, HostExecutor& executor) {
  executor.RunBlocks(TileBody<Fold>{args});
}

// Runs FoldValues or FoldTiles with the fold of its kind.
template <typename Args>
void RunFoldOf(const Args& args, HostExecutor& executor) {
  switch (args.kind) {
    case FoldKind::kSumFloat:
      return RunFold<SumFloat>(args, executor);
    case FoldKind::kSumFixed:
      return RunFold<SumFixed>(args, executor);
    case FoldKind::kSumInteger:
      return RunFold<SumInteger>(args, executor);
    case FoldKind::kSumModular:
      return RunFold<SumModular>(args, executor);
    case FoldKind::kMinFloat:
      return RunFold<MinFloat>(args, executor);
    case FoldKind::kMaxFloat:
      return RunFold<MaxFloat>(args, executor);
    case FoldKind::kMinInteger:
      return RunFold<MinInteger>(args, executor);
    case FoldKind::kMaxInteger:
      return RunFold<MaxInteger>(args, executor);
  }
}

void Run(const FoldValues& args, HostExecutor& executor) { RunFoldOf(args, executor); }
void Run(const FoldTiles& args, HostExecutor& executor) { RunFoldOf(args, executor); }

void Run(const Contributors& args, HostExecutor& executor) {
  executor.RunElements(CountShortSegments{args});
  executor.RunBlocks(CountLongSegments{args});
}

template <typename Kernel>
void Run(const Kernel& kernel, HostExecutor& executor) {
  executor.RunElements(kernel);
}

}  // namespace

HostDevice::HostDevice(const HostDeviceOptions& options)
    : options_(options), executor_(options.torture_seed), random_(options.torture_seed) {}

HostDevice::~HostDevice() {
  for (const Lane lane : {Lane::kCopy, Lane::kCompute}) RunUntil({lane, QueueOf(lane).num_asked});
  for (const auto& [memory, bytes] : sizes_) std::free(memory);
}

absl::Status HostDevice::Ask(Lane lane, std::function<void()> work) {
  Queue& queue = QueueOf(lane);
  queue.pending.push_back(std::move(work));
  ++queue.num_asked;
  if (!tortures()) {
    RunUntil({lane, queue.num_asked});
  } else if (random_() % 4 == 0) {
    const Lane some = random_() % 2 == 0 ? Lane::kCopy : Lane::kCompute;
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
  void* memory = size > options_.memory_bytes - std::min(used_bytes_, options_.memory_bytes)
                     ? nullptr
                     : std::aligned_alloc(kAlignment, size);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("the host device has no ", bytes, " bytes"));
  }
  Spoil(memory, size);
  try {
    sizes_[memory] = size;
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
  used_bytes_ -= bytes;
  // Without torture no work is pending, and a destructor must not allocate memory for a queued free.
  if (!tortures()) return std::free(d_memory);
  Ask(lane, [this, d_memory, bytes] {
    Spoil(d_memory, bytes);
    std::free(d_memory);
  }).IgnoreError();
}

absl::StatusOr<void*> HostDevice::AllocatePinned(size_t bytes) {
  void* memory = std::aligned_alloc(kAlignment, RoundUp(bytes));
  if (memory == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes to stage copies in"));
  return memory;
}

void HostDevice::FreePinned(void* memory) {
  for (const Lane lane : {Lane::kCopy, Lane::kCompute}) RunUntil({lane, QueueOf(lane).num_asked});
  std::free(memory);
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

absl::StatusOr<size_t> HostDevice::SortScratchBytes(const SortCall& call) { return size_t{call.count} / 8 + 1; }

absl::StatusOr<int> HostDevice::Sort(const SortCall& call) {
  const int output = tortures() ? static_cast<int>(random_() % 2) : 1;
  RETURN_IF_ERROR(Ask(Lane::kCompute, [this, call, output] {
    const auto spoil = [this](void* memory, size_t bytes) { Spoil(memory, bytes); };
    call.key_bytes == 4 ? StableSort<uint32_t>(call, output, spoil) : StableSort<uint64_t>(call, output, spoil);
  }));
  return output;
}

absl::StatusOr<size_t> HostDevice::SelectScratchBytes(const SelectCall& call) { return size_t{call.count} / 8 + 1; }

absl::Status HostDevice::Select(const SelectCall& call) {
  return Ask(Lane::kCompute, [this, call] {
    Spoil(call.d_scratch, call.scratch_bytes);
    uint32_t selected = 0;
    for (uint32_t i = 0; i < call.count; ++i) {
      if (call.d_flags[i] != 0) call.d_indices[selected++] = i;
    }
    *call.d_num_selected = selected;
  });
}

absl::Status HostDevice::Launch(const KernelCall& call) {
  return Ask(Lane::kCompute,
             [this, call] { std::visit([this](const auto& kernel) { Run(kernel, executor_); }, call); });
}

}  // namespace sparseagg::cuda
