#include "service/grpc/read_timeout.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sparseagg::service {

void ReadTimeout::Start(std::function<void(absl::Status)> on_timeout) {
  const absl::Duration timeout = server_.limits.upload_timeout;
  started_at_ = server_.clock.Monotonic();
  timer_ = server_.timer.Schedule(started_at_ + timeout, [on_timeout = std::move(on_timeout), timeout] {
    on_timeout(
        absl::DeadlineExceededError(absl::StrCat("no message arrived within upload_timeout ",
                                                 absl::FormatDuration(timeout), "; the server aborted the stream")));
  });
}

absl::Duration ReadTimeout::Stop() {
  server_.timer.Cancel(timer_);
  return server_.clock.Monotonic() - started_at_;
}

}  // namespace sparseagg::service
