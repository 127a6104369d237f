#include "cuda/transfer/rings.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>

#include "host/base/status_macros.h"

namespace sparseagg::cuda {

absl::StatusOr<std::shared_ptr<std::byte>> PinnedArena::Take(uint64_t bytes) {
  if (bytes < unit_ || bytes > max_bytes_) return nullptr;
  // Few sizes, so that a block often fits a result of about the same size.
  const size_t step = std::max(unit_, std::bit_floor(bytes) / 8);
  const size_t size = std::min((bytes + step - 1) / step * step, max_bytes_);
  std::shared_ptr<Block> best;
  for (const std::shared_ptr<Block>& block : blocks_) {
    // One that is much larger is left to larger results.
    const bool fits = block->bytes >= bytes && block->bytes / 2 <= size;
    // What the last user has read and written comes before what the device writes.
    if (!fits || block->in_use.load(std::memory_order_acquire)) continue;
    if (best == nullptr || block->bytes < best->bytes) best = block;
  }
  if (best == nullptr) {
    if (bytes_ > max_bytes_ - size) {
      // Here, with a deadline: what frees pinned memory waits for the device.
      for (const Lane lane : kLanes) RETURN_IF_ERROR(device_.AwaitLane(lane));
      Trim(max_bytes_ - size);
      if (bytes_ > max_bytes_ - size) return nullptr;
    }
    best = std::make_shared<Block>();
    absl::StatusOr<std::shared_ptr<std::byte>> memory = device_.AllocatePinned(size);
    if (absl::IsResourceExhausted(memory.status())) return nullptr;
    ASSIGN_OR_RETURN(best->memory, std::move(memory));
    best->bytes = size;
    blocks_.push_back(best);
    bytes_ += size;
  }
  best->in_use = true;
  return std::shared_ptr<std::byte>(best->memory.get(),
                                    [best](std::byte*) { best->in_use.store(false, std::memory_order_release); });
}

void PinnedArena::Trim(size_t most_bytes) {
  std::erase_if(blocks_, [&](const std::shared_ptr<Block>& block) {
    if (bytes_ <= most_bytes || block->in_use.load(std::memory_order_acquire)) return false;
    bytes_ -= block->bytes;
    return true;
  });
}

namespace {

constexpr size_t kWordBytes = sizeof(uint32_t);

bool IsWordAligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kWordBytes == 0; }

}  // namespace

StagingRing::~StagingRing() {
  for (Buffer& buffer : buffers_) Await(buffer).IgnoreError();
}

absl::StatusOr<StagingRing::Buffer*> StagingRing::Next() {
  buffers_.reserve(tuning_.num_staging_buffers);  // so that buffers keep their place
  while (buffers_.size() < tuning_.num_staging_buffers) {
    Buffer buffer;
    // Memory first, because it is more likely to fail and can be freed; an event stays with the device.
    ASSIGN_OR_RETURN(buffer.memory, device_.AllocatePinned(tuning_.staging_buffer_bytes));
    ASSIGN_OR_RETURN(buffer.event, device_.CreateEvent());
    buffers_.push_back(std::move(buffer));
  }
  Buffer& next = buffers_[next_++ % buffers_.size()];
  RETURN_IF_ERROR(Await(next));
  return &next;
}

absl::Status StagingRing::Depart(Buffer& buffer, Lane lane) {
  buffer.in_flight = true;  // the host must not use the buffer, even if recording fails
  return device_.Record(buffer.event, lane);
}

absl::Status StagingRing::Await(Buffer& buffer) {
  if (buffer.in_flight) RETURN_IF_ERROR(device_.Await(buffer.event));
  buffer.in_flight = false;
  return absl::OkStatus();
}

void StagingRing::Reset() {
  pieces_.clear();
  chunks_.clear();
  fetches_from_host_ = false;
  filled_ = 0;
  for (Buffer& buffer : buffers_) buffer.in_flight = false;
}

absl::Status StagingRing::CopyIn(void* d_allocation, size_t first, const HostPart& part) {
  if (part.bytes == 0) return absl::OkStatus();
  auto* const d_to = static_cast<std::byte*>(d_allocation) + first;
  const auto* from = static_cast<const std::byte*>(part.array) + part.first;
  const std::byte* d_copy = part.on_device ? nullptr : resident_.Find(part.array, part.first + part.bytes);
  const bool is_here = part.on_device || d_copy != nullptr;
  if (d_copy != nullptr) from = d_copy + part.first;
  const bool is_large = part.bytes >= (is_here ? tuning_.min_copy_within_bytes : tuning_.min_copy_bytes);
  const bool is_of_words = IsWordAligned(from) && IsWordAligned(d_to) && part.bytes % kWordBytes == 0;
  if (is_here && (is_large || !is_of_words)) return device_.CopyWithin(d_to, from, part.bytes, Lane::kCopy);
  if (!is_here && !(part.pinned && (is_large || is_of_words))) {
    staged_bytes_ += part.bytes;
    return Stage(d_allocation, first, from, part.bytes);
  }
  if (!is_here) direct_bytes_ += part.bytes;
  if (is_large) return device_.CopyIn(d_to, from, part.bytes, Lane::kCopy);
  fetches_from_host_ |= !is_here;
  AddChunks(d_to, from, part.bytes);
  return absl::OkStatus();
}

absl::Status StagingRing::Stage(void* d_allocation, size_t first, const void* from, size_t bytes) {
  auto* d_next = static_cast<std::byte*>(d_allocation) + first;
  const auto* next = static_cast<const std::byte*>(from);
  const bool adjoins = d_allocation == d_allocation_ && d_next == d_destination_ + filled_;
  if (filled_ > 0 && !adjoins) RETURN_IF_ERROR(FlushBuffer());
  d_allocation_ = d_allocation;
  while (bytes > 0) {
    if (filled_ == tuning_.staging_buffer_bytes) RETURN_IF_ERROR(FlushBuffer());
    if (filled_ == 0) d_destination_ = d_next;
    const size_t piece = std::min(bytes, tuning_.staging_buffer_bytes - filled_);
    pieces_.push_back({nullptr, next, piece});
    filled_ += piece;
    d_next += piece;
    next += piece;
    bytes -= piece;
  }
  return absl::OkStatus();
}

void StagingRing::AddChunks(void* d_to, const void* d_from, size_t bytes) {
  const auto* next = static_cast<const uint32_t*>(d_from);
  auto* d_next = static_cast<uint32_t*>(d_to);
  size_t words = bytes / kWordBytes;
  while (words > 0) {
    const auto begin = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(next) / kWordBytes % kFetchWords);
    const auto count = static_cast<uint32_t>(std::min<size_t>(words, kFetchWords - begin));
    chunks_.push_back({next, d_next, static_cast<uint16_t>(begin), static_cast<uint16_t>(begin + count)});
    next += count;
    d_next += count;
    words -= count;
  }
}

absl::Status StagingRing::Flush() {
  RETURN_IF_ERROR(FlushFetch());
  return FlushBuffer();
}

absl::Status StagingRing::FlushFetch() {
  if (chunks_.empty()) return absl::OkStatus();
  const size_t bytes = chunks_.size() * sizeof(FetchChunk);
  ASSIGN_OR_RETURN(const DeviceBuffer d_chunks, memory_.Allocate(bytes, Lane::kCopy));
  RETURN_IF_ERROR(Stage(d_chunks.get(), 0, chunks_.data(), bytes));
  RETURN_IF_ERROR(FlushBuffer());
  RETURN_IF_ERROR(device_.LaunchOn(
      Fetch{d_chunks.as<FetchChunk>(), static_cast<uint32_t>(chunks_.size()), std::exchange(fetches_from_host_, false)},
      Lane::kCopy));
  chunks_.clear();
  return absl::OkStatus();
}

absl::Status StagingRing::FlushBuffer() {
  if (filled_ == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(Buffer* const buffer, Next());
  std::byte* to = buffer->memory.get();
  for (CopyPiece& piece : pieces_) {
    piece.to = to;
    to += piece.bytes;
  }
  threads_.Copy(pieces_, tuning_.copy_part_bytes);
  pieces_.clear();
  const size_t bytes = std::exchange(filled_, 0);
  RETURN_IF_ERROR(device_.CopyIn(d_destination_, buffer->memory.get(), bytes, Lane::kCopy));
  return Depart(*buffer, Lane::kCopy);
}

absl::Status StagingRing::CopyOut(absl::Span<const CopyPiece> pieces) {
  std::deque<std::pair<Buffer*, CopyPiece>> sent;  // to buffers, and from there to host memory
  const auto receive = [&]() -> absl::Status {
    const auto [buffer, piece] = sent.front();
    sent.pop_front();
    RETURN_IF_ERROR(Await(*buffer));
    threads_.Copy({&piece, 1}, tuning_.copy_part_bytes);
    return absl::OkStatus();
  };
  for (const CopyPiece& piece : pieces) {
    for (size_t done = 0; done < piece.bytes; done += sent.back().second.bytes) {
      if (sent.size() == tuning_.num_staging_buffers) RETURN_IF_ERROR(receive());
      ASSIGN_OR_RETURN(Buffer* const buffer, Next());
      const size_t bytes = std::min(piece.bytes - done, tuning_.staging_buffer_bytes);
      const auto* d_from = static_cast<const std::byte*>(piece.from) + done;
      RETURN_IF_ERROR(device_.CopyOut(buffer->memory.get(), d_from, bytes, Lane::kResult));
      RETURN_IF_ERROR(Depart(*buffer, Lane::kResult));
      sent.emplace_back(buffer, CopyPiece{static_cast<std::byte*>(piece.to) + done, buffer->memory.get(), bytes});
    }
  }
  while (!sent.empty()) RETURN_IF_ERROR(receive());
  return absl::OkStatus();
}

absl::Status StagingRing::CopyOutSmall(void* to, const void* d_from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (small_ == nullptr) {
    ASSIGN_OR_RETURN(small_, device_.AllocatePinned(kSmallBytes));
  }
  if (IsWordAligned(d_from) && bytes % kWordBytes == 0) {  // a caller's own array may begin anywhere
    RETURN_IF_ERROR(
        device_.Launch(CopyWords{static_cast<const uint32_t*>(d_from), reinterpret_cast<uint32_t*>(small_.get()),
                                 static_cast<uint32_t>(bytes / kWordBytes)}));
  } else {
    RETURN_IF_ERROR(device_.CopyOut(small_.get(), d_from, bytes, Lane::kCompute));
  }
  RETURN_IF_ERROR(device_.AwaitLane(Lane::kCompute));
  std::memcpy(to, small_.get(), bytes);
  return absl::OkStatus();
}

}  // namespace sparseagg::cuda
