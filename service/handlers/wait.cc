// Long polls.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/refusals.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/codec/spec_codec.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/caller.h"

namespace sparseagg::service {

void AggregationMethods::WaitRound(const Call& call) {
  std::shared_ptr<Round> round;
  absl::Duration timeout;
  const absl::Status asked = ToStatus([&]() -> absl::Status {
    v1::WaitRoundRequest request;
    RETURN_IF_ERROR(ParseNames(call->request(), &request));
    LogCall(LogLevel::kDebug, call->caller(), "WaitRound", request.round());
    ASSIGN_OR_RETURN(round, FindRound(call->caller(), request.round()));
    ASSIGN_OR_RETURN(timeout, WaitTimeout(request.has_timeout(), request.timeout()));
    return absl::OkStatus();
  });
  if (!asked.ok()) return call->Finish(asked);
  AnswerAfter(
      call, registry_, AwaitedEnd(round), timeout, [round] { return MostBytesOf(*round); },
      [this, &self = *call, round] { return Respond(*round, self); });
}

Methods::Awaited AggregationMethods::AwaitedEnd(const std::shared_ptr<Round>& round) {
  return {[round](absl::Duration timeout, std::function<void()> done) { return round->Wait(timeout, std::move(done)); },
          [round](uint64_t wait) { return round->StopWaiting(wait); }, [round] { round->ReleaseWaiters(); },
          [round] { return HasEnded(round->state()); }};
}

absl::StatusOr<absl::Duration> Methods::WaitTimeout(bool is_set, const google::protobuf::Duration& wanted) const {
  const absl::Duration most = context_.limits.max_wait;
  if (!is_set) return most;
  ASSIGN_OR_RETURN(const absl::Duration decoded, DecodeDuration(wanted, "timeout"));
  return std::min(most, decoded);
}

void Methods::AnswerAfter(const Call& call, const Registry& rounds, Awaited awaited, absl::Duration timeout,
                          std::function<uint64_t()> most_bytes, std::function<absl::Status()> answer) {
  // Counts the call among those that wait.
  const std::shared_ptr<const void> permit = context_.waits.TryAcquire(call->caller().PeerName());
  if (permit == nullptr) {
    return call->Finish(RetryLater(absl::StrCat(context_.waits.DescribeFull(),
                                                " already wait for rounds, the most that the server's memory limit of ",
                                                context_.limits.memory_limit_bytes, " bytes allows")));
  }
  const auto unless_draining = [&rounds, has_come = std::move(awaited.has_come), permit,
                                answer = std::move(answer)]() -> absl::Status {
    // A client that gets an unfinished round waits again at once, and the transport would cancel that call as it shuts
    // down.
    if (rounds.draining() && !has_come()) return absl::UnavailableError("the server is shutting down");
    return answer();
  };
  const uint64_t wait = awaited.wait(timeout, [this, call, most_bytes = std::move(most_bytes), unless_draining] {
    context_.pool.Post([call, most_bytes, unless_draining] {
      call->ReserveAndAnswer(most_bytes(), UnaryCall::Wait::kUnbounded, unless_draining);
    });
  });
  call->StopWith([stop = std::move(awaited.stop), wait] { return stop(wait); });
  // A drain releases the calls that wait, but this call may have begun to wait just after that.
  if (rounds.draining()) awaited.release();
}

}  // namespace sparseagg::service
