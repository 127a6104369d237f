#include "cuda/transfer/rings.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "host/base/status_macros.h"

namespace sparseagg::cuda {

PinnedBuffers::~PinnedBuffers() {
  for (Buffer& buffer : buffers_) {
    Await(buffer).IgnoreError();
    device_.FreePinned(buffer.memory);
  }
}

absl::Status PinnedBuffers::EnsureAllocated() {
  buffers_.reserve(num_buffers_);  // so that buffers keep their place
  while (buffers_.size() < num_buffers_) {
    Buffer buffer;
    // Memory first, because it is more likely to fail and can be freed; an event stays with the device.
    ASSIGN_OR_RETURN(void* memory, device_.AllocatePinned(buffer_bytes_));
    buffer.memory = static_cast<std::byte*>(memory);
    absl::StatusOr<EventId> event = device_.CreateEvent();
    if (!event.ok()) {
      device_.FreePinned(memory);
      return event.status();
    }
    buffer.event = *event;
    buffers_.push_back(buffer);
  }
  return absl::OkStatus();
}

absl::StatusOr<PinnedBuffers::Buffer*> PinnedBuffers::Next() {
  RETURN_IF_ERROR(EnsureAllocated());
  current_ = (current_ + 1) % buffers_.size();
  return &buffers_[current_];
}

absl::Status PinnedBuffers::Depart(Buffer& buffer, Lane lane) {
  buffer.in_flight = true;  // the host must not use the buffer, even if recording fails
  return device_.Record(buffer.event, lane);
}

absl::Status PinnedBuffers::Await(Buffer& buffer) {
  if (buffer.in_flight) RETURN_IF_ERROR(device_.Await(buffer.event));
  buffer.in_flight = false;
  return absl::OkStatus();
}

void PinnedBuffers::Reset() {
  for (Buffer& buffer : buffers_) buffer.in_flight = false;
}

namespace {

constexpr size_t kWordBytes = sizeof(uint32_t);

bool IsWordAligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kWordBytes == 0; }

}  // namespace

void StagingRing::Reset() {
  pieces_.clear();
  chunks_.clear();
  filled_ = 0;
  buffers_.Reset();
}

absl::Status StagingRing::CopyIn(void* d_allocation, size_t first, const HostPart& part) {
  if (part.bytes == 0) return absl::OkStatus();
  auto* const d_to = static_cast<std::byte*>(d_allocation) + first;
  if (part.on_device) return CopyResident(d_to, static_cast<const std::byte*>(part.array) + part.first, part.bytes);
  if (const std::byte* d_copy = resident_.Find(part.array, part.first + part.bytes); d_copy != nullptr) {
    return CopyResident(d_to, d_copy + part.first, part.bytes);
  }
  const auto* from = static_cast<const std::byte*>(part.array) + part.first;
  if (part.bytes >= tuning_.min_copy_bytes && device_.IsPinned(from, part.bytes)) {
    direct_bytes_ += part.bytes;
    return device_.CopyIn(d_to, from, part.bytes, Lane::kCopy);
  }
  staged_bytes_ += part.bytes;
  return Stage(d_allocation, first, from, part.bytes);
}

absl::Status StagingRing::CopyResident(void* d_to, const std::byte* d_from, size_t bytes) {
  const bool is_of_words = IsWordAligned(d_from) && IsWordAligned(d_to) && bytes % kWordBytes == 0;
  if (bytes >= tuning_.min_copy_bytes || !is_of_words) return device_.CopyWithin(d_to, d_from, bytes, Lane::kCopy);
  AddChunks(d_to, d_from, bytes);
  return absl::OkStatus();
}

absl::Status StagingRing::Stage(void* d_allocation, size_t first, const void* from, size_t bytes) {
  auto* d_next = static_cast<std::byte*>(d_allocation) + first;
  const auto* next = static_cast<const std::byte*>(from);
  const bool adjoins = d_allocation == d_allocation_ && d_next == d_destination_ + filled_;
  if (filled_ > 0 && !adjoins) RETURN_IF_ERROR(FlushBuffer());
  d_allocation_ = d_allocation;
  while (bytes > 0) {
    if (filled_ == buffers_.buffer_bytes()) RETURN_IF_ERROR(FlushBuffer());
    if (filled_ == 0) d_destination_ = d_next;
    const size_t piece = std::min(bytes, buffers_.buffer_bytes() - filled_);
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
  RETURN_IF_ERROR(
      device_.LaunchOn(Fetch{d_chunks.as<FetchChunk>(), static_cast<uint32_t>(chunks_.size())}, Lane::kCopy));
  chunks_.clear();
  return absl::OkStatus();
}

absl::Status StagingRing::FlushBuffer() {
  if (filled_ == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(PinnedBuffers::Buffer* const buffer, buffers_.Next());
  RETURN_IF_ERROR(buffers_.Await(*buffer));
  std::byte* to = buffer->memory;
  for (CopyPiece& piece : pieces_) {
    piece.to = to;
    to += piece.bytes;
  }
  threads_.Copy(pieces_, tuning_.copy_part_bytes);
  pieces_.clear();
  const size_t bytes = std::exchange(filled_, 0);
  RETURN_IF_ERROR(device_.CopyIn(d_destination_, buffer->memory, bytes, Lane::kCopy));
  return buffers_.Depart(*buffer, Lane::kCopy);
}

void ResultRing::Forget() {
  sent_.clear();
  copying_.clear();
}

void ResultRing::Reset() {
  Forget();
  buffers_.Reset();
  small_.Reset();
}

absl::Status ResultRing::Send(void* to, const void* d_from, size_t bytes) {
  const auto* d_next = static_cast<const std::byte*>(d_from);
  auto* next = static_cast<std::byte*>(to);
  while (bytes > 0) {
    if (sent_.size() + copying_.size() == buffers_.num_buffers()) {
      if (copying_.empty()) RETURN_IF_ERROR(ReceiveOne());
      copying_.pop_front();
    }
    ASSIGN_OR_RETURN(PinnedBuffers::Buffer* const buffer, buffers_.Next());
    const size_t piece = std::min(bytes, buffers_.buffer_bytes());
    RETURN_IF_ERROR(device_.CopyOut(buffer->memory, d_next, piece, Lane::kResult));
    RETURN_IF_ERROR(buffers_.Depart(*buffer, Lane::kResult));
    sent_.push_back({buffer, next, piece});
    ++num_sent_;
    d_next += piece;
    next += piece;
    bytes -= piece;
  }
  return absl::OkStatus();
}

absl::Status ResultRing::ReceiveOne() {
  const Sent sent = sent_.front();
  RETURN_IF_ERROR(buffers_.Await(*sent.buffer));
  copying_.push_back(threads_.StartCopy({sent.to, sent.buffer->memory, sent.bytes}, part_bytes_));
  sent_.pop_front();
  return absl::OkStatus();
}

absl::Status ResultRing::Receive(uint64_t num_sent) {
  while (!sent_.empty() && num_sent_ - sent_.size() < num_sent) RETURN_IF_ERROR(ReceiveOne());
  return absl::OkStatus();
}

absl::Status ResultRing::Drain() {
  RETURN_IF_ERROR(Receive(num_sent_));
  copying_.clear();
  return absl::OkStatus();
}

absl::Status ResultRing::CopyOutSmall(void* to, const void* d_from, size_t bytes) {
  ASSIGN_OR_RETURN(PinnedBuffers::Buffer* const buffer, small_.Next());
  if (IsWordAligned(d_from) && bytes % kWordBytes == 0) {  // a caller's own array may begin anywhere
    RETURN_IF_ERROR(
        device_.Launch(CopyWords{static_cast<const uint32_t*>(d_from), reinterpret_cast<uint32_t*>(buffer->memory),
                                 static_cast<uint32_t>(bytes / kWordBytes)}));
  } else {
    RETURN_IF_ERROR(device_.CopyOut(buffer->memory, d_from, bytes, Lane::kCompute));
  }
  RETURN_IF_ERROR(small_.Depart(*buffer, Lane::kCompute));
  RETURN_IF_ERROR(small_.Await(*buffer));
  std::memcpy(to, buffer->memory, bytes);
  return absl::OkStatus();
}

}  // namespace sparseagg::cuda
