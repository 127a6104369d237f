#include "service/handlers/unary_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/handlers/caller.h"

namespace sparseagg::service {

bool UnaryCall::ReserveForCall(uint64_t bytes) {
  absl::StatusOr<Transfer> transfer = BeginTransfer(context_, caller(), bytes);
  if (!transfer.ok()) {
    Finish(transfer.status());
    return false;
  }
  transfer_ = *std::move(transfer);
  return true;
}

void UnaryCall::ReserveAndAnswer(uint64_t bytes, Wait wait, std::function<absl::Status()> answer) {
  if (IsSmall(bytes)) return Answer(answer);
  const std::shared_ptr<UnaryCall> self = shared_from_this();  // the call may end before Acquire returns
  auto granted = [self, answer = std::move(answer)](InFlightReservation reservation) {
    if (!reservation) return self->Finish(NoInFlightMemory(self->context_));
    self->response_reservation_ = std::move(reservation);
    self->Answer(answer);
  };
  ticket_ = context_.in_flight.Acquire(ResponseMemory(bytes), std::move(granted), ReclaimFunction(), wait,
                                       caller().PeerName());
  // Cancel may have run before ticket_ was set.
  if (is_cancelled_ && context_.in_flight.CancelWait(ticket_)) Finish(absl::CancelledError());
}

void UnaryCall::Answer(const std::function<absl::Status()>& answer) {
  Finish(is_cancelled_ ? absl::CancelledError() : ToStatus([&] { return answer(); }));
}

void UnaryCall::Finish(const absl::Status& status) {
  transfer_.reservation.StartDeadline(ReclaimFunction());
  Send(status);
}

void UnaryCall::Cancel() {
  is_cancelled_ = true;
  const bool is_stopped = (stop_ && stop_()) || context_.in_flight.CancelWait(ticket_);
  if (is_stopped) Finish(absl::CancelledError());
}

namespace {

constexpr uint64_t kDefaultPageBytes = uint64_t{1} << 20;

// Memory of a call that waits for a reservation: the transport's call and ours.
constexpr uint64_t kCallBytes = uint64_t{16} << 10;

}  // namespace

absl::Status Methods::CheckMessageSize(uint64_t bytes) const {
  const uint64_t limit = context_.limits.max_message_bytes;
  if (limit == 0 || bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a message of ", bytes, " bytes exceeds the server's max_message_bytes ", limit, "; send smaller chunks"));
}

uint64_t Methods::PageBytes(uint64_t asked) const {
  const uint64_t limit = context_.limits.max_page_bytes;
  const uint64_t bytes = asked == 0 ? kDefaultPageBytes : asked;
  return limit == 0 ? bytes : std::min(bytes, limit);
}

void Methods::OnPool(const Call& call, Work work) {
  if (call->MayBlock()) return AtOnce(*call, work);
  context_.pool.Post([call, work = std::move(work)] {
    if (call->is_cancelled()) return call->Finish(absl::CancelledError());
    AtOnce(*call, work);
  });
}

void Methods::AtOnce(UnaryCall& call, const Work& work) {
  call.Finish(ToStatus([&] { return work(call); }));
}

void Methods::AnswerOnPool(const Call& call, Plan plan) { AnswerOn(context_.pool, call, std::move(plan)); }

void Methods::AnswerOn(WorkerPool& pool, const Call& call, Plan plan) {
  if (call->MayBlock()) return AnswerAtOnce(*call, plan);
  pool.Post([call, plan = std::move(plan)] {
    if (call->is_cancelled()) return call->Finish(absl::CancelledError());
    RunPlanned(*call, call->request().size(), ToStatus([&] { return plan(*call); }));
  });
}

void Methods::AnswerAtOnce(UnaryCall& call, const Plan& plan) {
  RunPlanned(call, 0, ToStatus([&] { return plan(call); }));
}

void Methods::RunPlanned(UnaryCall& call, uint64_t held_bytes, absl::StatusOr<PlannedAnswer> planned) {
  if (!planned.ok()) return call.Finish(planned.status());
  if (!UnaryCall::IsSmall(planned->max_bytes) && !call.ReserveForCall(kCallBytes + held_bytes)) return;
  call.ReserveAndAnswer(planned->max_bytes, UnaryCall::Wait::kBounded, std::move(planned->answer));
}

}  // namespace sparseagg::service
