#include "service/api/aggregation_methods.h"

#include "host/base/status_macros.h"
#include "service/codec/round_codec.h"
#include "service/codec/serialize.h"

namespace sparseagg::service {

std::vector<MethodEntry> AggregationMethods::Entries() {
  const auto entry = [this](Method method, void (AggregationMethods::*handler)(const Call&)) {
    return MethodEntry{method, [this, handler](const Call& call) { (this->*handler)(call); }};
  };
  return {
      entry(Method::kGetServerInfo, &AggregationMethods::GetServerInfo),
      entry(Method::kCreateRound, &AggregationMethods::CreateRound),
      entry(Method::kGetRound, &AggregationMethods::GetRound),
      entry(Method::kListRounds, &AggregationMethods::ListRounds),
      entry(Method::kWaitRound, &AggregationMethods::WaitRound),
      entry(Method::kCloseRound, &AggregationMethods::CloseRound),
      entry(Method::kCancelRound, &AggregationMethods::CancelRound),
      entry(Method::kDeleteRound, &AggregationMethods::DeleteRound),
      entry(Method::kCommitSubmission, &AggregationMethods::CommitSubmission),
      entry(Method::kGetUploadStatus, &AggregationMethods::GetUploadStatus),
      entry(Method::kListSubmissions, &AggregationMethods::ListSubmissions),
      entry(Method::kWithdrawSubmission, &AggregationMethods::WithdrawSubmission),
      entry(Method::kGetResult, &AggregationMethods::GetResult),
  };
}

absl::StatusOr<std::shared_ptr<Round>> AggregationMethods::FindRound(const Caller& caller,
                                                                     absl::string_view name) const {
  ASSIGN_OR_RETURN(const std::string id, ParseRoundName(name));
  return registry_.Find(caller.identity().tenant, id);
}

void AggregationMethods::Encode(const Round& round, v1::Round* wire) const {
  EncodeRound(round.config(), round.Snapshot(), server_.engine.name(), wire);
}

absl::Status AggregationMethods::Respond(const Round& round, UnaryCall& call) const {
  v1::Round wire;
  Encode(round, &wire);
  return Serialize(wire, call.response());
}

}  // namespace sparseagg::service
