// Calls about the server and its rounds.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/admission/activity.h"
#include "service/admission/process_memory.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/codec/spec_codec.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/caller.h"
#include "service/handlers/unary_call.h"
#include "service/rounds/round_config.h"
#include "service/version.h"

namespace sparseagg::service {
namespace {

// Additions to the first release of the API, by their names in the proto. A server without them answers UNIMPLEMENTED
// to an unknown call, and refuses an unknown field or, in some requests, ignores it (FindUnknownFields).
constexpr absl::string_view kFeatures[] = {"ListSubmissions",
                                           "WithdrawSubmission",
                                           "CloseRoundRequest.only_client_ids",
                                           "AggregationSpec.on_empty",
                                           "OP_MEDIAN",
                                           "AggregationSpec.result_top_k",
                                           "AggregationSpec.return_moments",
                                           "TensorSpec.shape",
                                           "Tasks",
                                           "SubmitBatch",
                                           "RoundSpec.clip",
                                           "AggregationSpec.mean_divisor",
                                           "SealRound",
                                           "InspectRound",
                                           "CloseRoundRequest.client_weights",
                                           "RoundSpec.privacy",
                                           "RoundSpec.certificate",
                                           "ExportSubmissions",
                                           "RoundSpec.cluster",
                                           "Streams",
                                           "ExportPartial",
                                           "PutResultRange",
                                           "CreateBackup",
                                           "Models"};

// The longest reason of a cancelled round, which the round keeps.
absl::StatusOr<RoundConfig> DecodeCreate(const absl::Cord& message, const Limits& limits) {
  v1::CreateRoundRequest request;
  RETURN_IF_ERROR(ParseSpec(message, limits, &request));
  if (!request.round_id().empty()) RETURN_IF_ERROR(CheckName(request.round_id(), "round_id"));
  ASSIGN_OR_RETURN(RoundConfig config, DecodeRoundSpec(request.spec(), limits));
  config.id = request.round_id();
  return config;
}

// A result of one server would lack the submissions of the others.
absl::Status CheckNotOfCluster(const Round& round) {
  if (round.config().homes.servers.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a round of a cluster is merged over all of its servers: its coordinator seals and finishes it");
}

// Returns: false if the message is a CloseRoundRequest without clients, which is short work.
bool MayListClients(const absl::Cord& message) {
  if (message.size() > kMaxNamesBytes) return true;
  v1::CloseRoundRequest request;
  return ToStatus([&] { return Parse(message, &request); }).ok() &&
         (!request.only_client_ids().empty() || !request.client_weights().empty());
}

void EncodeActivity(const Identity& caller, ApiContext& context, v1::ServerActivity* wire) {
  const Activity& activity = context.tenants.Of(caller.tenant).activity;
  EncodeTime(context.start_time, wire->mutable_start_time());
  wire->set_num_rounds(activity.rounds);
  wire->set_num_ended_rounds(activity.ended_rounds);
  wire->set_num_submissions(activity.submissions);
  wire->set_num_refused(activity.refused);
  wire->set_received_bytes(activity.received_bytes);
  EncodeDuration(History::kInterval, wire->mutable_history_interval());
  const auto encode = [](const History& history, google::protobuf::RepeatedField<uint64_t>* values) {
    for (const uint64_t value : history.Values()) values->Add(value);
  };
  encode(activity.submissions_history, wire->mutable_num_submissions_history());
  encode(activity.received_bytes_history, wire->mutable_received_bytes_history());
  if (caller.role != Role::kAdmin) return;
  wire->set_resident_bytes(ResidentBytes());
  encode(context.resident_bytes, wire->mutable_resident_bytes_history());
}

}  // namespace

void AggregationMethods::GetServerInfo(const Call& call) {
  AtOnce(*call, [this](UnaryCall& self) -> absl::Status {
    v1::GetServerInfoRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    v1::ServerInfo info;
    info.set_version(kVersion);
    info.set_instance(context_.instance);
    info.add_api_versions("sparseagg.v1");
    info.set_engine(std::string(context_.engine.name()));
    info.set_engine_description(context_.engine.description());
    EncodeLimits(context_.limits, info.mutable_limits());
    EncodeKnownEncodings(&info);
    for (const absl::string_view feature : kFeatures) info.add_features(std::string(feature));
    for (std::string& warning : context_.warnings.List()) info.add_warnings(std::move(warning));
    if (request.with_activity() && self.caller().identity().role != Role::kClient) {
      EncodeActivity(self.caller().identity(), context_, info.mutable_activity());
    }
    return Serialize(info, self.response());
  });
}

void AggregationMethods::CreateBackup(const Call& call) {
  AnswerOn(context_.backups, call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::CreateBackupRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    RETURN_IF_ERROR(CheckName(request.name(), "name"));
    if (context_.backup_dir.empty()) return absl::FailedPreconditionError("the server has no --backup-dir for backups");
    return PlannedAnswer{
        0, [this, &self, name = request.name()]() -> absl::Status {
          LogCall(LogLevel::kInfo, self.caller(), "CreateBackup", name);
          v1::Backup answer;
          answer.set_name(name);
          ASSIGN_OR_RETURN(const uint64_t num_bytes,
                           context_.store->Backup(context_.backup_dir, name, [&self] { return self.is_cancelled(); }));
          answer.set_num_bytes(num_bytes);
          Log(LogLevel::kInfo, "backup_done", {{"name", name}, {"bytes", num_bytes}});
          return Serialize(answer, self.response());
        }};
  });
}

void AggregationMethods::CreateRound(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    RETURN_IF_ERROR(CheckMessageSize(self.request().size()));
    ASSIGN_OR_RETURN(const RoundConfig checked, DecodeCreate(self.request(), context_.limits));
    // While the call waits it keeps only the message, whose memory is counted. The decoded config can take thirty times
    // as much, so that it is decoded again when memory is reserved.
    return PlannedAnswer{MostRoundBytes(checked, 0), [this, &self]() -> absl::Status {
                           ASSIGN_OR_RETURN(RoundConfig config, DecodeCreate(self.request(), context_.limits));
                           config.tenant = self.caller().identity().tenant;
                           const std::string id = config.id;
                           ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, registry_.Create(std::move(config)));
                           RETURN_IF_ERROR(round->journal().AwaitDurable());
                           LogCall(LogLevel::kInfo, self.caller(), "CreateRound", id);
                           return Respond(*round, self);
                         }};
  });
}

template <typename Request>
void AggregationMethods::AnswerWithRound(const Call& call, bool changes,
                                         std::function<absl::Status(const Caller&, const Request&, Round&)> act) {
  const auto plan = [this, act = std::move(act)](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    Request request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    request.DiscardUnknownFields();  // they take more memory than the message, and the call may wait
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(self.caller(), request.round()));
    return PlannedAnswer{MostBytesOf(*round), [this, &self, request, round, act]() -> absl::Status {
                           RETURN_IF_ERROR(act(self.caller(), request, *round));
                           return Respond(*round, self);
                         }};
  };
  if (changes && context_.store != nullptr) {
    AnswerOnPool(call, plan);
  } else {
    AnswerAtOnce(*call, plan);
  }
}

void AggregationMethods::GetRound(const Call& call) {
  AnswerWithRound<v1::GetRoundRequest>(
      call, /*changes=*/false, [](const Caller&, const v1::GetRoundRequest&, Round&) { return absl::OkStatus(); });
}

void AggregationMethods::SealRound(const Call& call) {
  // On the pool: the call may wait for commits.
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::SealRoundRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(self.caller(), request.round()));
    return PlannedAnswer{MostBytesOf(*round), [this, &self, round, name = request.round()]() -> absl::Status {
                           RETURN_IF_ERROR(CheckNotOfStream(*round, "sealed"));
                           RETURN_IF_ERROR(round->Seal());
                           RETURN_IF_ERROR(round->journal().AwaitDurable());
                           LogCall(LogLevel::kInfo, self.caller(), "SealRound", name);
                           return Respond(*round, self);
                         }};
  });
}

void AggregationMethods::CloseRound(const Call& call) {
  if (MayListClients(call->request())) return CloseWithList(call);
  AnswerWithRound<v1::CloseRoundRequest>(
      call, /*changes=*/true,
      [](const Caller& caller, const v1::CloseRoundRequest& request, Round& round) -> absl::Status {
        RETURN_IF_ERROR(CheckNotOfStream(round, "closed; CutStream cuts it"));
        RETURN_IF_ERROR(CheckNotOfCluster(round));
        RETURN_IF_ERROR(round.Close());
        RETURN_IF_ERROR(round.journal().AwaitDurable());
        LogCall(LogLevel::kInfo, caller, "CloseRound", request.round());
        return absl::OkStatus();
      });
}

void AggregationMethods::CloseWithList(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    // Parsed again for the answer: while the call waits for a reservation, it keeps only the message.
    v1::CloseRoundRequest checked;
    RETURN_IF_ERROR(ParseIdList(self.request(), context_.limits, &checked));
    for (const std::string& client : checked.only_client_ids()) RETURN_IF_ERROR(CheckId(client, "only_client_ids"));
    for (const v1::ClientWeight& weight : checked.client_weights()) {
      RETURN_IF_ERROR(CheckId(weight.client_id(), "client_weights"));
    }
    if (!checked.only_client_ids().empty() && !checked.client_weights().empty()) {
      return absl::InvalidArgumentError(
          "only_client_ids and client_weights exclude each other: a weight of 0 leaves a client out");
    }
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(self.caller(), checked.round()));
    RETURN_IF_ERROR(CheckNotOfStream(*round, "closed; CutStream cuts it"));
    RETURN_IF_ERROR(CheckNotOfCluster(*round));
    return PlannedAnswer{MostBytesOf(*round), [this, &self, round]() -> absl::Status {
                           v1::CloseRoundRequest request;
                           RETURN_IF_ERROR(Parse(self.request(), &request));
                           const std::vector<std::string> clients(request.only_client_ids().begin(),
                                                                  request.only_client_ids().end());
                           std::vector<Round::ClientWeight> weights;
                           for (const v1::ClientWeight& weight : request.client_weights()) {
                             weights.emplace_back(weight.client_id(), weight.weight());
                           }
                           if (!weights.empty()) {
                             RETURN_IF_ERROR(round->CloseWithWeights(weights));
                           } else if (clients.empty()) {
                             RETURN_IF_ERROR(round->Close());  // the message is large for another reason
                           } else {
                             RETURN_IF_ERROR(round->CloseWithOnly(clients));
                           }
                           RETURN_IF_ERROR(round->journal().AwaitDurable());
                           LogCall(LogLevel::kInfo, self.caller(), "CloseRound", request.round());
                           return Respond(*round, self);
                         }};
  });
}

void AggregationMethods::CancelRound(const Call& call) {
  const auto cancel = [](const Caller& caller, const v1::CancelRoundRequest& request, Round& round) -> absl::Status {
    RETURN_IF_ERROR(CheckNotOfStream(round, "cancelled"));
    RETURN_IF_ERROR(CheckReason(request.reason()));
    RETURN_IF_ERROR(round.Cancel(request.reason().empty() ? "no reason given" : request.reason()));
    RETURN_IF_ERROR(round.journal().AwaitDurable());
    LogCall(LogLevel::kInfo, caller, "CancelRound", request.round());
    return absl::OkStatus();
  };
  AnswerWithRound<v1::CancelRoundRequest>(call, /*changes=*/true, cancel);
}

void AggregationMethods::ListRounds(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::ListRoundsRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const int size, ListSize(request.page_size()));
    ASSIGN_OR_RETURN(const Registry::Page page,
                     registry_.List(self.caller().identity().tenant, size, request.page_token()));
    uint64_t max_bytes = 0;
    for (const Registry::Entry& entry : page.entries) {
      max_bytes += MostBytesOf(*entry.round);
      if (max_bytes > PageBytes(0)) break;  // at least one round, and then no more than a result page
    }
    return PlannedAnswer{max_bytes, [this, &self, size, token = request.page_token(), max_bytes] {
                           return RespondWithList(self, size, token, max_bytes);
                         }};
  });
}

absl::Status AggregationMethods::RespondWithList(UnaryCall& call, int size, const std::string& token,
                                                 uint64_t max_bytes) const {
  ASSIGN_OR_RETURN(const Registry::Page page, registry_.List(call.caller().identity().tenant, size, token));
  v1::ListRoundsResponse list;
  list.set_next_page_token(page.next_page_token);
  uint64_t bytes = 0;
  for (const Registry::Entry& entry : page.entries) {
    Encode(*entry.round, call.caller().identity(), list.add_rounds());
    bytes += list.rounds(list.rounds_size() - 1).ByteSizeLong();
    if (bytes > std::min(max_bytes, PageBytes(0)) && list.rounds_size() > 1) {
      list.mutable_rounds()->RemoveLast();
      list.set_next_page_token(entry.token);
      break;
    }
  }
  return Serialize(list, call.response());
}

void AggregationMethods::DeleteRound(const Call& call) {
  const auto remove = [this](UnaryCall& self) -> absl::Status {
    v1::DeleteRoundRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(self.caller(), request.round()));
    if (!HasEnded(round->state())) RETURN_IF_ERROR(CheckNotOfStream(*round, "deleted before it has ended"));
    RETURN_IF_ERROR(registry_.Delete(self.caller().identity().tenant, round->config().id).status());
    RETURN_IF_ERROR(round->journal().AwaitDurable());
    LogCall(LogLevel::kInfo, self.caller(), "DeleteRound", request.round());
    return Serialize(google::protobuf::Empty(), self.response());
  };
  if (context_.store != nullptr) {
    OnPool(call, remove);  // waits for the disk
  } else {
    AtOnce(*call, remove);
  }
}

}  // namespace sparseagg::service
