#include "service/admission/memory_budget.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sparseagg::service {

bool MemoryBudget::TryReserve(uint64_t bytes) {
  if (bytes == 0) return true;  // even if Reserve has exceeded the limit
  uint64_t reserved = reserved_.load(std::memory_order_relaxed);
  do {
    if (limit_ != 0 && (reserved > limit_ || bytes > limit_ - reserved)) return false;
  } while (!reserved_.compare_exchange_weak(reserved, reserved + bytes, std::memory_order_relaxed));
  if (whole_ == nullptr || whole_->TryReserve(bytes)) return true;
  reserved_.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

void MemoryBudget::Reserve(uint64_t bytes) {
  reserved_.fetch_add(bytes, std::memory_order_relaxed);
  if (whole_ != nullptr) whole_->Reserve(bytes);
}

void MemoryBudget::Release(uint64_t bytes) {
  reserved_.fetch_sub(bytes, std::memory_order_relaxed);
  if (whole_ != nullptr) whole_->Release(bytes);
}

absl::Status MemoryBudget::NoRoomError(uint64_t bytes, absl::string_view purpose, absl::string_view advice) const {
  const uint64_t held = reserved();
  const bool is_own = limit_ != 0 && (held > limit_ || bytes > limit_ - held);
  if (whole_ != nullptr && !is_own) return whole_->NoRoomError(bytes, purpose, advice);
  const std::string wanted = bytes == UINT64_MAX ? "2^64 or" : absl::StrCat(bytes);  // a sum that saturated
  const std::string needs = absl::StrCat(purpose, " needs ", wanted, " more bytes, but ");
  const absl::string_view otherwise = advice.empty() ? "" : ", or ";
  if (whole_ != nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(needs, "the tenant's rounds already use ", held,
                                                     " of the server's max_memory_per_tenant ", limit_, " bytes; ",
                                                     advice, otherwise, "delete rounds that have ended"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(needs, "rounds already use ", held, " of their ", limit_,
                                                   " bytes (the server's memory limit is ", process_limit_, " bytes); ",
                                                   advice, otherwise, "start the server with a larger --memory-limit"));
}

bool MemoryBudget::IsShort() const {
  return (limit_ != 0 && reserved() > limit_ / 2) || (whole_ != nullptr && whole_->IsShort());
}

uint64_t MemoryBudget::limit() const {
  const uint64_t whole = whole_ == nullptr ? 0 : whole_->limit();
  if (limit_ == 0 || whole == 0) return std::max(limit_, whole);
  return std::min(limit_, whole);
}

absl::Status Reservation::Grow(uint64_t bytes, absl::string_view purpose) {
  return Grow(bytes, purpose, keeps_submissions_ ? "BINNED numerics merge on arrival and keep only sums" : "");
}

absl::Status Reservation::Grow(uint64_t bytes, absl::string_view purpose, absl::string_view advice) {
  if (!budget_->TryReserve(bytes)) return budget_->NoRoomError(bytes, purpose, advice);
  bytes_ += bytes;
  return absl::OkStatus();
}

void Reservation::SetTo(uint64_t bytes) {
  if (bytes > bytes_) {
    budget_->Reserve(bytes - bytes_);
  } else {
    budget_->Release(bytes_ - bytes);
  }
  bytes_ = bytes;
}

void Reservation::Absorb(Reservation& other) { bytes_ += std::exchange(other.bytes_, 0); }

}  // namespace sparseagg::service
