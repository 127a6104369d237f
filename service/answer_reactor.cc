#include "service/answer_reactor.h"

#include <utility>

#include "service/contain.h"
#include "service/memory_shares.h"

namespace sparseagg::service {

void AnswerReactor::OnDone() {
  canceller_->Done();
  self_.reset();
}

bool AnswerReactor::Hold(uint64_t bytes) {
  auto held = machine_.transit.TryHold(bytes);
  if (!held.has_value()) {
    Finish(NoRoomInTransit(machine_, context_));
    return false;
  }
  held_ = *std::move(held);
  return true;
}

void AnswerReactor::AnswerWithin(uint64_t bytes, Wait wait, std::function<absl::Status()> answer) {
  if (IsSmall(bytes)) return Finish(ToGrpc(Contain([&] { return answer(); })));
  // The answer is made as soon as there is credit for it: the client's time runs from then on.
  auto granted = [self = self_, answer = std::move(answer)](Credit credit) {
    if (!credit) return self->Finish(NoRoomInTransit(self->machine_, self->context_));
    self->credit_ = std::move(credit);
    self->Finish(ToGrpc(Contain([&] { return answer(); })));
  };
  auto call_in = [canceller = canceller_] { canceller->CallIn(); };
  const uint64_t transit_bytes = PageTransitBytes(bytes);
  if (wait == Wait::kShortly) {
    machine_.transit.AcquireSoon(transit_bytes, std::move(granted), std::move(call_in));
  } else {
    machine_.transit.Acquire(transit_bytes, std::move(granted), std::move(call_in));
  }
}

}  // namespace sparseagg::service
