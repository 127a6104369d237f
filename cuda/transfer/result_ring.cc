#include "cuda/transfer/result_ring.h"

#include <algorithm>
#include <cstring>

#include "host/base/status_macros.h"

namespace sparseagg::cuda {

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
  if (bytes % sizeof(uint32_t) == 0) {
    RETURN_IF_ERROR(
        device_.Launch(CopyWords{static_cast<const uint32_t*>(d_from), reinterpret_cast<uint32_t*>(buffer->memory),
                                 static_cast<uint32_t>(bytes / sizeof(uint32_t))}));
  } else {
    RETURN_IF_ERROR(device_.CopyOut(buffer->memory, d_from, bytes, Lane::kCompute));
  }
  RETURN_IF_ERROR(small_.Depart(*buffer, Lane::kCompute));
  RETURN_IF_ERROR(small_.Await(*buffer));
  std::memcpy(to, buffer->memory, bytes);
  return absl::OkStatus();
}

}  // namespace sparseagg::cuda
