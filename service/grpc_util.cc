#include "service/grpc_util.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace sparseagg::service {
namespace {

// gRPC sends messages percent-encoded in a header, of which clients accept 8 KiB together.
constexpr size_t kMaxMessageBytes = 2000;

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message());
  if (message.size() > kMaxMessageBytes) {
    size_t end = kMaxMessageBytes;
    while (end > 0 && (message[end] & 0xc0) == 0x80) --end;  // not within a UTF-8 character
    message.resize(end);
    message += " …";
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), message);
}

void LogCall(LogLevel level, const grpc::CallbackServerContext& context, absl::string_view method,
             absl::string_view round, absl::string_view client) {
  const auto& metadata = context.client_metadata();
  const auto trace = metadata.find("traceparent");
  const absl::string_view traceparent =
      trace == metadata.end() ? "" : absl::string_view(trace->second.data(), trace->second.size());
  Log(level, "call",
      {{"method", method},
       {"round", round},
       {"client", client},
       {"peer", context.peer()},
       {"traceparent", traceparent}});
}

bool FinishGate::Begin() {
  std::lock_guard lock(mu_);
  if (finished_) return false;
  ++steps_;
  return true;
}

std::optional<absl::Status> FinishGate::End() {
  std::lock_guard lock(mu_);
  if (--steps_ > 0 || finished_ || !interruption_.has_value()) return std::nullopt;
  finished_ = true;
  return interruption_;
}

bool FinishGate::Claim() {
  std::lock_guard lock(mu_);
  return !std::exchange(finished_, true);
}

bool FinishGate::Interrupt(const absl::Status& status) {
  std::lock_guard lock(mu_);
  if (finished_) return false;
  if (steps_ > 0) {
    interruption_ = status;
    return false;
  }
  finished_ = true;
  return true;
}

absl::Duration IdleTimer::Stop() {
  machine_.timer.Cancel(timer_);
  return machine_.clock.Monotonic() - begun_;
}

void IdleTimer::Start(std::function<void(absl::Status)> on_idle) {
  const absl::Duration timeout = machine_.limits.upload_timeout;
  begun_ = machine_.clock.Monotonic();
  timer_ = machine_.timer.Schedule(begun_ + timeout, [on_idle = std::move(on_idle), timeout] {
    on_idle(absl::DeadlineExceededError(
        absl::StrCat("nothing came for upload_timeout ", absl::FormatDuration(timeout), "; the stream was given up")));
  });
}

}  // namespace sparseagg::service
