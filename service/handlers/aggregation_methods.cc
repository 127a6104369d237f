#include "service/handlers/aggregation_methods.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/rounds/round_config.h"

namespace sparseagg::service {
namespace {

// Returns: what of a private round does not depend on the submissions of others.
RoundSnapshot WithoutCounts(RoundSnapshot snapshot, const Identity& caller) {
  snapshot.num_submissions = 0;
  snapshot.num_tuples = 0;
  snapshot.num_bytes = 0;
  snapshot.num_refused = 0;
  snapshot.num_uploads = 0;
  if (caller.role != Role::kClient) snapshot.recent_refusals.clear();  // a client sees its own
  return snapshot;
}

}  // namespace

std::vector<MethodEntry> AggregationMethods::Entries() {
  const auto entry = [this](Method method, void (AggregationMethods::*handler)(const Call&)) {
    return MethodEntry{method, [this, handler](const Call& call) { (this->*handler)(call); }};
  };
  return {
      entry(Method::kGetServerInfo, &AggregationMethods::GetServerInfo),
      entry(Method::kCreateBackup, &AggregationMethods::CreateBackup),
      entry(Method::kCreateRound, &AggregationMethods::CreateRound),
      entry(Method::kGetRound, &AggregationMethods::GetRound),
      entry(Method::kListRounds, &AggregationMethods::ListRounds),
      entry(Method::kWaitRound, &AggregationMethods::WaitRound),
      entry(Method::kSealRound, &AggregationMethods::SealRound),
      entry(Method::kCloseRound, &AggregationMethods::CloseRound),
      entry(Method::kCancelRound, &AggregationMethods::CancelRound),
      entry(Method::kDeleteRound, &AggregationMethods::DeleteRound),
      entry(Method::kCommitSubmission, &AggregationMethods::CommitSubmission),
      entry(Method::kGetUploadStatus, &AggregationMethods::GetUploadStatus),
      entry(Method::kListSubmissions, &AggregationMethods::ListSubmissions),
      entry(Method::kInspectRound, &AggregationMethods::InspectRound),
      entry(Method::kWithdrawSubmission, &AggregationMethods::WithdrawSubmission),
      entry(Method::kGetResult, &AggregationMethods::GetResult),
      entry(Method::kGetResultRange, &AggregationMethods::GetResultRange),
      entry(Method::kGetCertificate, &AggregationMethods::GetCertificate),
      entry(Method::kGetReceipt, &AggregationMethods::GetReceipt),
      entry(Method::kExportRound, &AggregationMethods::ExportRound),
      entry(Method::kCreateStream, &AggregationMethods::CreateStream),
      entry(Method::kGetStream, &AggregationMethods::GetStream),
      entry(Method::kListStreams, &AggregationMethods::ListStreams),
      entry(Method::kCutStream, &AggregationMethods::CutStream),
      entry(Method::kDeleteStream, &AggregationMethods::DeleteStream),
      entry(Method::kWatchVersions, &AggregationMethods::WatchVersions),
  };
}

absl::StatusOr<std::shared_ptr<Round>> AggregationMethods::FindRound(const Caller& caller,
                                                                     absl::string_view name) const {
  ASSIGN_OR_RETURN(const std::string id, ParseRoundName(name));
  return registry_.Find(caller.identity().tenant, id);
}

absl::Status AggregationMethods::CheckNotOfStream(const Round& round, absl::string_view verb) {
  if (round.config().stream == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("a version of the stream '", round.config().stream->id, "' cannot be ", verb));
}

absl::StatusOr<std::shared_ptr<Round>> AggregationMethods::FindRoundOf(absl::string_view client_id,
                                                                       const Caller& caller,
                                                                       absl::string_view name) const {
  ASSIGN_OR_RETURN(std::shared_ptr<Round> round, FindRound(caller, name));
  RETURN_IF_ERROR(round->config().homes.CheckHome(client_id));
  return round;
}

absl::StatusOr<std::shared_ptr<Intake>> AggregationMethods::FindIntakeOf(absl::string_view client_id,
                                                                         const Caller& caller,
                                                                         absl::string_view name) const {
  ASSIGN_OR_RETURN(std::shared_ptr<Intake> intake, streams_.FindIntake(caller.identity().tenant, name));
  RETURN_IF_ERROR(intake->config().homes.CheckHome(client_id));
  return intake;
}

bool AggregationMethods::HidesCounts(const Round& round, const Identity& caller) {
  return round.config().HasPrivacy() && (caller.role == Role::kClient || caller.role == Role::kObserver);
}

void AggregationMethods::Encode(const Round& round, const Identity& caller, v1::Round* wire) const {
  RoundSnapshot snapshot = round.Snapshot();
  // A client learns nothing of other clients.
  if (caller.role == Role::kClient) {
    const auto is_other = [&](const Refusal& refusal) { return refusal.client_id != caller.name; };
    auto& refusals = snapshot.recent_refusals;
    refusals.erase(std::remove_if(refusals.begin(), refusals.end(), is_other), refusals.end());
  }
  if (HidesCounts(round, caller)) snapshot = WithoutCounts(std::move(snapshot), caller);
  EncodeRound(round.config(), snapshot, context_.engine.name(), wire);
  if (HidesCounts(round, caller)) {
    wire->clear_timeline();
    wire->clear_clip();
    wire->clear_release_id();
    for (v1::TensorSummary& summary : *wire->mutable_results()) summary.clear_plan();
  }
}

uint64_t AggregationMethods::MostBytesOf(const Round& round) {
  return MostRoundBytes(round.config(), round.intake().num_recent_refusals());
}

absl::Status AggregationMethods::Respond(const Round& round, UnaryCall& call) const {
  v1::Round wire;
  Encode(round, call.caller().identity(), &wire);
  return Serialize(wire, call.response());
}

}  // namespace sparseagg::service
