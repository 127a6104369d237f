#include "service/grpc/reactors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/admission/memory_shares.h"
#include "service/base/refusals.h"
#include "service/codec/parse.h"
#include "sparseagg/v1/aggregation.pb.h"

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

void ReadTimeout::Start(std::function<void(absl::Status)> on_timeout) {
  const absl::Duration timeout = server_.limits.upload_timeout;
  started_at_ = server_.clock.Monotonic();
  timer_ = server_.timer.Schedule(started_at_ + timeout, [on_timeout = std::move(on_timeout), timeout] {
    const absl::Status status = absl::DeadlineExceededError(absl::StrCat(
        "no message arrived within upload_timeout ", absl::FormatDuration(timeout), "; the server aborted the stream"));
    on_timeout(WithReason(status, "UPLOAD_TIMED_OUT"));
  });
}

absl::Duration ReadTimeout::Stop() {
  server_.timer.Cancel(timer_);
  return server_.clock.Monotonic() - started_at_;
}

void PageWriter::Open(PageStream pages, std::function<void(v1::ResultPage*)> complete_first) {
  pages_.emplace(std::move(pages));
  complete_first_ = std::move(complete_first);
}

void PageWriter::Prepare(OnPrepared on_prepared) {
  if (!pages_->HasNext()) return on_prepared(nullptr);
  server_.in_flight.Acquire(
      PageInFlightBytes(pages_->NextBytes()),
      [this, on_prepared = std::move(on_prepared)](InFlightReservation reservation) {
        reservation_ = std::move(reservation);
        const absl::Status made = ToStatus([this] { return MakePage(); });
        if (!made.ok()) return on_prepared(made);
        write_began_ = server_.clock.Monotonic();
        on_prepared(&page_);
      },
      [canceller = canceller_] { canceller->Cancel(); }, InFlightMemory::Wait::kUnbounded, canceller_->peer());
}

void PageWriter::OnWritten() {
  pages_->round().meter().RecordPageTaken(server_.clock.Monotonic() - write_began_);
  reservation_.Release();
}

absl::Status PageWriter::MakePage() {
  v1::ResultPage page;
  pages_->Next(&page);
  if (complete_first_) std::exchange(complete_first_, nullptr)(&page);
  page_.Clear();
  return SerializeTo(page, &page_);
}

}  // namespace sparseagg::service
