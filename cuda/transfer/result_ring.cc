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
  slots_.Reset();
  small_.Reset();
}

absl::Status ResultRing::Send(void* to, const void* d_from, size_t bytes) {
  const auto* d_next = static_cast<const std::byte*>(d_from);
  auto* next = static_cast<std::byte*>(to);
  while (bytes > 0) {
    if (sent_.size() + copying_.size() == slots_.num_slots()) {
      if (copying_.empty()) RETURN_IF_ERROR(ReceiveOne());
      copying_.pop_front();
    }
    ASSIGN_OR_RETURN(PinnedSlots::Slot* const slot, slots_.Next());
    const size_t piece = std::min(bytes, slots_.slot_bytes());
    RETURN_IF_ERROR(device_.CopyOut(slot->memory, d_next, piece, Lane::kResult));
    RETURN_IF_ERROR(slots_.Depart(*slot, Lane::kResult));
    sent_.push_back({slot, next, piece});
    ++num_sent_;
    d_next += piece;
    next += piece;
    bytes -= piece;
  }
  return absl::OkStatus();
}

absl::Status ResultRing::ReceiveOne() {
  const Sent sent = sent_.front();
  RETURN_IF_ERROR(slots_.Await(*sent.slot));
  copying_.push_back(threads_.StartCopy({sent.to, sent.slot->memory, sent.bytes}, part_bytes_));
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
  ASSIGN_OR_RETURN(PinnedSlots::Slot* const slot, small_.Next());
  if (bytes % sizeof(uint32_t) == 0) {
    RETURN_IF_ERROR(
        device_.Launch(CopyWords{static_cast<const uint32_t*>(d_from), reinterpret_cast<uint32_t*>(slot->memory),
                                 static_cast<uint32_t>(bytes / sizeof(uint32_t))}));
  } else {
    RETURN_IF_ERROR(device_.CopyOut(slot->memory, d_from, bytes, Lane::kCompute));
  }
  RETURN_IF_ERROR(small_.Depart(*slot, Lane::kCompute));
  RETURN_IF_ERROR(small_.Await(*slot));
  std::memcpy(to, slot->memory, bytes);
  return absl::OkStatus();
}

}  // namespace sparseagg::cuda
