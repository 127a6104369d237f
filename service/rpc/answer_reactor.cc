#include "service/rpc/answer_reactor.h"

#include <memory>
#include <utility>

#include "service/admission/memory_shares.h"
#include "service/base/to_status.h"
#include "service/rpc/grpc_util.h"

namespace sparseagg::service {

void AnswerReactor::OnCancel() {
  is_cancelled_ = true;
  if (server_.in_flight.CancelWait(place_)) Finish(grpc::Status::CANCELLED);
}

void AnswerReactor::AnswerWithin(uint64_t bytes, Wait wait, std::function<absl::Status()> answer) {
  if (IsSmall(bytes)) return Answer(answer);
  const std::shared_ptr<AnswerReactor> self = self_;  // the call may end here
  // The answer is made as soon as there is credit for it: the client's time runs from then on.
  auto granted = [self, answer = std::move(answer)](InFlightReservation credit) {
    if (!credit) return self->Finish(NoInFlightMemory(self->server_, self->context_));
    self->reservation_ = std::move(credit);
    self->Answer(answer);
  };
  place_ = server_.in_flight.Acquire(
      PageInFlightBytes(bytes), std::move(granted), [canceller = canceller_] { canceller->Reclaim(); }, wait);
  // OnCancel may have come before there was a place to leave.
  if (is_cancelled_ && server_.in_flight.CancelWait(place_)) Finish(grpc::Status::CANCELLED);
}

// Nobody would know of what is done, nor of a round that is made, for a client that has given up.
void AnswerReactor::Answer(const std::function<absl::Status()>& answer) {
  Finish(is_cancelled_ ? grpc::Status::CANCELLED : ToGrpc(ToStatus([&] { return answer(); })));
}

}  // namespace sparseagg::service
