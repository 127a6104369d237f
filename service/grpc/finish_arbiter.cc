#include "service/grpc/finish_arbiter.h"

namespace sparseagg::service {

bool FinishArbiter::BeginSteps(int steps) {
  MutexLock lock(&mu_);
  if (outcome_.has_value()) return false;
  running_steps_ += steps;
  return true;
}

std::optional<absl::Status> FinishArbiter::EndStep() {
  MutexLock lock(&mu_);
  if (--running_steps_ > 0 || finished_ || !outcome_.has_value()) return std::nullopt;
  finished_ = true;
  return outcome_;
}

bool FinishArbiter::Complete(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (completed_ || finished_) return false;
  completed_ = true;
  outcome_ = status;
  finished_ = running_steps_ <= 1;
  return finished_;
}

bool FinishArbiter::Abort(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (completed_ || finished_) return false;
  outcome_ = status;
  finished_ = running_steps_ == 0;
  return finished_;
}

}  // namespace sparseagg::service
