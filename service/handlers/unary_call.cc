#include "service/handlers/unary_call.h"

#include <utility>

#include "host/base/status_macros.h"
#include "service/handlers/call_errors.h"

namespace sparseagg::service {

bool UnaryCall::ReserveForCall(uint64_t bytes) {
  absl::StatusOr<Transfer> transfer = BeginTransfer(server_, caller(), bytes);
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
    if (!reservation) return self->Finish(NoInFlightMemory(self->server_));
    self->response_reservation_ = std::move(reservation);
    self->Answer(answer);
  };
  ticket_ = server_.in_flight.Acquire(ResponseMemory(bytes), std::move(granted), ReclaimFunction(), wait,
                                      caller().PeerName());
  // Cancel may have run before ticket_ was set.
  if (is_cancelled_ && server_.in_flight.CancelWait(ticket_)) Finish(absl::CancelledError());
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
  const bool is_stopped = (stop_ && stop_()) || server_.in_flight.CancelWait(ticket_);
  if (is_stopped) Finish(absl::CancelledError());
}

}  // namespace sparseagg::service
