#include "service/rpc/answer_reactor.h"

#include <memory>
#include <utility>

#include "service/admission/memory_shares.h"
#include "service/base/to_status.h"
#include "service/rpc/call_errors.h"

namespace sparseagg::service {

void AnswerReactor::OnCancel() {
  is_cancelled_ = true;
  if (server_.in_flight.CancelWait(ticket_)) Finish(grpc::Status::CANCELLED);
}

void AnswerReactor::ReserveAndAnswer(uint64_t bytes, Wait wait, std::function<absl::Status()> answer) {
  if (IsSmall(bytes)) return Answer(answer);
  const std::shared_ptr<AnswerReactor> self = self_;  // the call may end before Acquire returns
  auto granted = [self, answer = std::move(answer)](InFlightReservation reservation) {
    if (!reservation) return self->Finish(NoInFlightMemory(self->server_, self->context_));
    self->response_reservation_ = std::move(reservation);
    self->Answer(answer);
  };
  ticket_ = server_.in_flight.Acquire(
      PageInFlightBytes(bytes), std::move(granted), [canceller = canceller_] { canceller->Cancel(); }, wait);
  // OnCancel may have run before ticket_ was set.
  if (is_cancelled_ && server_.in_flight.CancelWait(ticket_)) Finish(grpc::Status::CANCELLED);
}

void AnswerReactor::Answer(const std::function<absl::Status()>& answer) {
  Finish(is_cancelled_ ? grpc::Status::CANCELLED : ToGrpc(ToStatus([&] { return answer(); })));
}

}  // namespace sparseagg::service
