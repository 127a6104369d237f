#include "service/rpc/call_end.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "service/base/log.h"

namespace sparseagg::service {

bool FinishGate::Begin(int steps) {
  std::lock_guard lock(mu_);
  if (outcome_.has_value()) return false;
  steps_ += steps;
  return true;
}

std::optional<absl::Status> FinishGate::End() {
  std::lock_guard lock(mu_);
  if (--steps_ > 0 || finished_ || !outcome_.has_value()) return std::nullopt;
  finished_ = true;
  return outcome_;
}

bool FinishGate::Conclude(const absl::Status& status) {
  std::lock_guard lock(mu_);
  if (concluded_ || finished_) return false;
  concluded_ = true;
  outcome_ = status;
  finished_ = steps_ <= 1;
  return finished_;
}

bool FinishGate::Interrupt(const absl::Status& status) {
  std::lock_guard lock(mu_);
  if (concluded_ || finished_) return false;
  outcome_ = status;
  finished_ = steps_ == 0;
  return finished_;
}

void Canceller::Reclaim() {
  std::lock_guard lock(mu_);
  if (context_ == nullptr) return;
  context_->TryCancel();
  EndStuckConnectionLocked();
}

void Canceller::EndStuckConnection() {
  std::lock_guard lock(mu_);
  if (context_ != nullptr) EndStuckConnectionLocked();
}

void Canceller::EndStuckConnectionLocked() {
  const int ended = server_.connections.EndStuck(peer_);
  if (ended == 0) return;
  server_.metrics.CountEndedConnections(ended);
  Log(LogLevel::kWarning, "connection_ended",
      {{"peer", peer_}, {"reason", "it takes next to nothing, and others wait"}});
}

void Canceller::Done() {
  std::lock_guard lock(mu_);
  context_ = nullptr;
}

absl::Duration IdleTimer::Stop() {
  server_.timer.Cancel(timer_);
  return server_.clock.Monotonic() - begun_;
}

void IdleTimer::Start(std::function<void(absl::Status)> on_idle) {
  const absl::Duration timeout = server_.limits.upload_timeout;
  begun_ = server_.clock.Monotonic();
  timer_ = server_.timer.Schedule(begun_ + timeout, [on_idle = std::move(on_idle), timeout] {
    on_idle(absl::DeadlineExceededError(
        absl::StrCat("nothing came for upload_timeout ", absl::FormatDuration(timeout), "; the stream was given up")));
  });
}

}  // namespace sparseagg::service
