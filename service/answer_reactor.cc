#include "service/answer_reactor.h"

#include <memory>
#include <utility>

#include "service/contain.h"
#include "service/grpc_util.h"
#include "service/memory_shares.h"

namespace sparseagg::service {

void AnswerReactor::OnCancel() {
  is_cancelled_ = true;
  if (machine_.transit.Leave(place_)) Finish(grpc::Status::CANCELLED);
}

void AnswerReactor::AnswerWithin(uint64_t bytes, Wait wait, std::function<absl::Status()> answer) {
  if (IsSmall(bytes)) return Answer(answer);
  const std::shared_ptr<AnswerReactor> self = self_;  // the call may end here
  // The answer is made as soon as there is credit for it: the client's time runs from then on.
  auto granted = [self, answer = std::move(answer)](Credit credit) {
    if (!credit) return self->Finish(NoRoomInTransit(self->machine_, self->context_));
    self->credit_ = std::move(credit);
    self->Answer(answer);
  };
  place_ = machine_.transit.Acquire(
      PageTransitBytes(bytes), std::move(granted), [canceller = canceller_] { canceller->CallIn(); }, wait);
  // OnCancel may have come before there was a place to leave.
  if (is_cancelled_ && machine_.transit.Leave(place_)) Finish(grpc::Status::CANCELLED);
}

// Nobody would know of what is done, nor of a round that is made, for a client that has given up.
void AnswerReactor::Answer(const std::function<absl::Status()>& answer) {
  Finish(is_cancelled_ ? grpc::Status::CANCELLED : ToGrpc(Contain([&] { return answer(); })));
}

}  // namespace sparseagg::service
