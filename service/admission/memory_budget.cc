#include "service/admission/memory_budget.h"

#include <cstdint>
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
  return true;
}

absl::Status Reservation::Grow(uint64_t bytes, absl::string_view purpose) {
  return Grow(bytes, purpose,
              keeps_submissions_ ? "FIXED_POINT numerics merge on arrival and keep only distinct keys" : "");
}

absl::Status Reservation::Grow(uint64_t bytes, absl::string_view purpose, absl::string_view advice) {
  if (!budget_->TryReserve(bytes)) {
    const std::string wanted = bytes == UINT64_MAX ? "2^64 or" : absl::StrCat(bytes);  // a sum that saturated
    return absl::ResourceExhaustedError(absl::StrCat(
        purpose, " needs ", wanted, " more bytes, but rounds already use ", budget_->reserved(), " of their ",
        budget_->limit(), " bytes (the server's memory limit is ", budget_->process_limit(), " bytes); ", advice,
        advice.empty() ? "" : ", or ", "start the server with a larger --memory-limit"));
  }
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
