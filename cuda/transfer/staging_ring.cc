#include "cuda/transfer/staging_ring.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "host/base/status_macros.h"

namespace sparseagg::cuda {
namespace {

constexpr size_t kWordBytes = sizeof(uint32_t);
// Size up to which a staged piece goes with those that the kernel distributes: a copy of its own would take longer.
constexpr size_t kMaxEdgeBytes = size_t{64} << 10;

bool IsOfWords(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kWordBytes == 0; }

}  // namespace

void StagingRing::Reset() {
  pieces_.clear();
  chunks_.clear();
  edges_.clear();
  edge_bytes_ = 0;
  filled_ = 0;
  buffers_.Reset();
}

absl::Status StagingRing::CopyIn(void* d_allocation, size_t first, const HostPart& part) {
  if (part.bytes == 0) return absl::OkStatus();
  auto* const d_to = static_cast<std::byte*>(d_allocation) + first;
  if (const std::byte* d_copy = resident_.Find(part.array, part.first + part.bytes); d_copy != nullptr) {
    return CopyResident(d_to, d_copy + part.first, part.bytes);
  }
  const auto* from = static_cast<const std::byte*>(part.array) + part.first;
  const PinnedArrays::Range pinned = pinned_.Find(part.array);
  const size_t begin = std::clamp(pinned.begin, part.first, part.first + part.bytes) - part.first;
  const size_t end = std::clamp(pinned.end, part.first, part.first + part.bytes) - part.first;
  // The kernel copies words.
  if (begin >= end || !IsOfWords(from) || !IsOfWords(d_to) || part.bytes % kWordBytes != 0) {
    staged_bytes_ += part.bytes;
    return Fill(d_allocation, first, from, part.bytes);
  }
  for (const auto& [at, bytes] : {std::pair(size_t{0}, begin), std::pair(end, part.bytes - end)}) {
    if (bytes == 0) continue;
    staged_bytes_ += bytes;
    edge_bytes_ += bytes;
    edges_.push_back({d_to + at, from + at, bytes});
  }
  direct_bytes_ += end - begin;
  return CopyDirectly(d_to + begin, from + begin, end - begin);
}

absl::Status StagingRing::CopyDirectly(void* d_to, const std::byte* from, size_t bytes) {
  if (bytes >= tuning_.min_copy_bytes) return device_.CopyIn(d_to, from, bytes, Lane::kCopy);
  AddChunks(d_to, from, bytes);
  return absl::OkStatus();
}

absl::Status StagingRing::CopyResident(void* d_to, const std::byte* d_from, size_t bytes) {
  const bool is_of_words = IsOfWords(d_from) && IsOfWords(d_to) && bytes % kWordBytes == 0;
  if (bytes >= tuning_.min_copy_bytes || !is_of_words) return device_.CopyWithin(d_to, d_from, bytes, Lane::kCopy);
  AddChunks(d_to, d_from, bytes);
  return absl::OkStatus();
}

absl::Status StagingRing::Stage(void* d_allocation, size_t first, const void* from, size_t bytes) {
  auto* const d_to = static_cast<std::byte*>(d_allocation) + first;
  if (chunks_.empty() || bytes > kMaxEdgeBytes || !IsOfWords(d_to) || bytes % kWordBytes != 0) {
    return Fill(d_allocation, first, from, bytes);
  }
  edge_bytes_ += bytes;
  edges_.push_back({d_to, static_cast<const std::byte*>(from), bytes});
  return absl::OkStatus();
}

absl::Status StagingRing::Fill(void* d_allocation, size_t first, const void* from, size_t bytes) {
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

void StagingRing::AddChunks(void* d_to, const void* from, size_t bytes) {
  const auto* next = static_cast<const uint32_t*>(from);
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
  if (chunks_.empty() && edges_.empty()) return absl::OkStatus();
  // The edges, at most two chunks for each, and the chunks.
  const size_t first_chunk = (edge_bytes_ + sizeof(FetchChunk) - 1) / sizeof(FetchChunk);
  size_t num_chunks = chunks_.size();
  for (const CopyPiece& edge : edges_) num_chunks += edge.bytes / (kFetchWords * kWordBytes) + 2;
  ASSIGN_OR_RETURN(const DeviceBuffer d_list,
                   memory_.Allocate((first_chunk + num_chunks) * sizeof(FetchChunk), Lane::kCopy));
  size_t next = 0;
  for (const CopyPiece& edge : edges_) {
    RETURN_IF_ERROR(Fill(d_list.get(), next, edge.from, edge.bytes));
    AddChunks(edge.to, d_list.as<std::byte>() + next, edge.bytes);
    next += edge.bytes;
  }
  static constexpr std::byte kPadding[sizeof(FetchChunk)] = {};
  const size_t chunks_begin = first_chunk * sizeof(FetchChunk);
  RETURN_IF_ERROR(Fill(d_list.get(), next, kPadding, chunks_begin - next));
  RETURN_IF_ERROR(Fill(d_list.get(), chunks_begin, chunks_.data(), chunks_.size() * sizeof(FetchChunk)));
  RETURN_IF_ERROR(FlushBuffer());
  RETURN_IF_ERROR(device_.LaunchOn(Fetch{d_list.as<FetchChunk>() + first_chunk, static_cast<uint32_t>(chunks_.size())},
                                   Lane::kCopy));
  chunks_.clear();
  edges_.clear();
  edge_bytes_ = 0;
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
