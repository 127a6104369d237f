#include "service/api/aggregation_methods.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/to_status.h"
#include "service/codec/round_codec.h"
#include "service/codec/serialize.h"

namespace sparseagg::service {
namespace {

constexpr uint64_t kDefaultPageBytes = uint64_t{1} << 20;

// Memory of a call that waits for a reservation: the transport's call and ours.
constexpr uint64_t kCallBytes = uint64_t{16} << 10;

}  // namespace

absl::Span<const AggregationMethods::Entry> AggregationMethods::Entries() {
  using Methods = AggregationMethods;
  static constexpr Entry kEntries[] = {
      {Method::kGetServerInfo, &Methods::GetServerInfo},
      {Method::kCreateRound, &Methods::CreateRound},
      {Method::kGetRound, &Methods::GetRound},
      {Method::kListRounds, &Methods::ListRounds},
      {Method::kWaitRound, &Methods::WaitRound},
      {Method::kCloseRound, &Methods::CloseRound},
      {Method::kCancelRound, &Methods::CancelRound},
      {Method::kDeleteRound, &Methods::DeleteRound},
      {Method::kCommitSubmission, &Methods::CommitSubmission},
      {Method::kGetUploadStatus, &Methods::GetUploadStatus},
      {Method::kListSubmissions, &Methods::ListSubmissions},
      {Method::kWithdrawSubmission, &Methods::WithdrawSubmission},
      {Method::kGetResult, &Methods::GetResult},
  };
  return kEntries;
}

absl::StatusOr<std::shared_ptr<Round>> AggregationMethods::FindRound(const Caller& caller,
                                                                     absl::string_view name) const {
  ASSIGN_OR_RETURN(const std::string id, ParseRoundName(name));
  return registry_.Find(caller.identity().tenant, id);
}

absl::Status AggregationMethods::CheckMessageSize(uint64_t bytes) const {
  const uint64_t limit = server_.limits.max_message_bytes;
  if (limit == 0 || bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a message of ", bytes, " bytes exceeds the server's max_message_bytes ", limit, "; send smaller chunks"));
}

uint64_t AggregationMethods::PageBytes(uint64_t asked) const {
  const uint64_t limit = server_.limits.max_page_bytes;
  const uint64_t bytes = asked == 0 ? kDefaultPageBytes : asked;
  return limit == 0 ? bytes : std::min(bytes, limit);
}

void AggregationMethods::Encode(const Round& round, v1::Round* wire) const {
  EncodeRound(round.config(), round.Snapshot(), server_.engine.name(), wire);
}

absl::Status AggregationMethods::Respond(const Round& round, UnaryCall& call) const {
  v1::Round wire;
  Encode(round, &wire);
  return Serialize(wire, call.response());
}

void AggregationMethods::OnPool(const Call& call, std::function<absl::Status(UnaryCall&)> work) {
  server_.pool.Post([call, work = std::move(work)] { AtOnce(*call, work); });
}

void AggregationMethods::AtOnce(UnaryCall& call, const std::function<absl::Status(UnaryCall&)>& work) {
  call.Finish(ToStatus([&] { return work(call); }));
}

void AggregationMethods::AnswerOnPool(const Call& call, std::function<absl::StatusOr<PlannedAnswer>(UnaryCall&)> plan) {
  server_.pool.Post([call, plan = std::move(plan)] {
    RunPlanned(*call, call->request().Length(), ToStatus([&] { return plan(*call); }));
  });
}

void AggregationMethods::AnswerAtOnce(UnaryCall& call,
                                      const std::function<absl::StatusOr<PlannedAnswer>(UnaryCall&)>& plan) {
  RunPlanned(call, 0, ToStatus([&] { return plan(call); }));
}

void AggregationMethods::RunPlanned(UnaryCall& call, uint64_t held_bytes, absl::StatusOr<PlannedAnswer> planned) {
  if (!planned.ok()) return call.Finish(planned.status());
  if (!UnaryCall::IsSmall(planned->max_bytes) && !call.ReserveForCall(kCallBytes + held_bytes)) return;
  call.ReserveAndAnswer(planned->max_bytes, UnaryCall::Wait::kBounded, std::move(planned->answer));
}

}  // namespace sparseagg::service
