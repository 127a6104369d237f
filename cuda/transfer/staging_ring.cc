#include "cuda/transfer/staging_ring.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "host/base/status_macros.h"

namespace sparseagg::cuda {
namespace {

constexpr size_t kWordBytes = sizeof(uint32_t);

bool IsOfWords(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kWordBytes == 0; }

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
  const bool is_of_words = IsOfWords(d_from) && IsOfWords(d_to) && bytes % kWordBytes == 0;
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

}  // namespace sparseagg::cuda
