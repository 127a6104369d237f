// The long poll WaitRound.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/base/to_status.h"
#include "service/base/retry_later.h"
#include "service/codec/duration_codec.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/call_log.h"

namespace sparseagg::service {

// No thread waits meanwhile. The permit counts the call among those that wait.
void AggregationMethods::WaitRound(const Call& call) {
  std::shared_ptr<Round> round;
  absl::Duration timeout = server_.limits.max_wait;
  const absl::Status asked = ToStatus([&]() -> absl::Status {
    v1::WaitRoundRequest request;
    RETURN_IF_ERROR(ParseNames(call->request(), &request));
    LogCall(LogLevel::kDebug, call->caller(), "WaitRound", request.name());
    ASSIGN_OR_RETURN(round, FindRound(call->caller(), request.name()));
    if (!request.has_timeout()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const absl::Duration wanted, DecodeDuration(request.timeout(), "timeout"));
    timeout = std::min(timeout, wanted);
    return absl::OkStatus();
  });
  if (!asked.ok()) return call->Finish(asked);
  const std::shared_ptr<const void> permit = server_.waits.TryAcquire(call->caller().PeerName());
  if (permit == nullptr) {
    return call->Finish(RetryLater(absl::StrCat(server_.waits.DescribeFull(),
                                                " already wait for rounds, the most that the server's memory limit of ",
                                                server_.limits.memory_limit_bytes, " bytes allows")));
  }
  const auto answer = [this, &self = *call, round, permit]() -> absl::Status {
    // A client that gets an unfinished round waits again at once, and the transport would cancel that call as it shuts
    // down.
    if (registry_.draining() && !HasEnded(round->state())) {
      return absl::UnavailableError("the server is shutting down");
    }
    return Respond(*round, self);
  };
  const Round::WaitId wait = round->Wait(timeout, [this, call, round, answer] {
    server_.pool.Post(
        [call, round, answer] { call->ReserveAndAnswer(MostBytesOf(*round), UnaryCall::Wait::kUnbounded, answer); });
  });
  call->StopWith([round, wait] { return round->StopWaiting(wait); });
  // A drain releases the calls that wait, but this call may have begun to wait just after that.
  if (registry_.draining()) round->ReleaseWaiters();
}

}  // namespace sparseagg::service
