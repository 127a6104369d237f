// AggregationService: the server and its rounds.
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/status_macros.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/round_codec.h"
#include "service/codec/spec_codec.h"
#include "service/contain.h"
#include "service/grpc_service.h"
#include "service/grpc_util.h"
#include "service/memory_shares.h"
#include "service/version.h"

namespace sparseagg::service {
namespace {

constexpr int kDefaultListSize = 100;
constexpr int kMaxListSize = 1000;
constexpr uint64_t kDefaultPageBytes = uint64_t{1} << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<Round>> AggregationService::FindRound(absl::string_view name) const {
  ASSIGN_OR_RETURN(const std::string id, ParseRoundName(name));
  return registry_.Find(id);
}

absl::Status AggregationService::CheckMessageSize(uint64_t bytes) const {
  const uint64_t limit = machine_.limits.max_message_bytes;
  if (limit == 0 || bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a message of ", bytes,
                                                   " bytes is beyond the server's max_message_bytes ", limit,
                                                   "; send more and smaller chunks"));
}

absl::Status AggregationService::CheckSpecSize(uint64_t bytes) const {
  const uint64_t limit = MostSpecBytes(machine_.limits);
  if (limit == 0 || bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a spec of ", bytes, " bytes is beyond the ", limit,
                                                   " bytes that max_tensors ", machine_.limits.max_tensors,
                                                   " tensors may take"));
}

uint64_t AggregationService::PageBytes(uint64_t asked) const {
  const uint64_t limit = machine_.limits.max_page_bytes;
  const uint64_t bytes = asked == 0 ? kDefaultPageBytes : asked;
  return limit == 0 ? bytes : std::min(bytes, limit);
}

void AggregationService::Encode(const Round& round, v1::Round* wire) const {
  EncodeRound(round.config(), round.Snapshot(), machine_.engine.name(), wire);
}

AggregationService::Unary* AggregationService::OnPool(Context* context, std::function<absl::Status()> work) {
  Unary* reactor = context->DefaultReactor();
  machine_.pool.Post([reactor, work = std::move(work)] { reactor->Finish(ToGrpc(Contain(work))); });
  return reactor;
}

AggregationService::Unary* AggregationService::AtOnce(Context* context, const absl::Status& status) {
  Unary* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

AggregationService::Unary* AggregationService::GetServerInfo(Context* context, const v1::GetServerInfoRequest*,
                                                             v1::ServerInfo* info) {
  info->set_version(kVersion);
  info->add_api_versions("sparseagg.v1");
  info->set_engine(std::string(machine_.engine.name()));
  info->set_engine_description(machine_.engine.description());
  EncodeLimits(machine_.limits, info->mutable_limits());
  EncodeKnownEncodings(info);
  return AtOnce(context, absl::OkStatus());
}

AggregationService::Unary* AggregationService::CreateRound(Context* context, const grpc::ByteBuffer* message,
                                                           grpc::ByteBuffer* response) {
  return OnPool(context, [this, context, message, response]() -> absl::Status {
    RETURN_IF_ERROR(CheckMessageSize(message->Length()));
    RETURN_IF_ERROR(CheckSpecSize(message->Length()));
    grpc::ByteBuffer bytes = *message;
    v1::CreateRoundRequest request;
    if (!grpc::SerializationTraits<v1::CreateRoundRequest>::Deserialize(&bytes, &request).ok()) {
      return absl::InvalidArgumentError("a message that is no CreateRoundRequest");
    }
    LogCall(LogLevel::kInfo, *context, "CreateRound", request.round_id());
    if (!request.round_id().empty()) RETURN_IF_ERROR(CheckRoundId(request.round_id()));
    ASSIGN_OR_RETURN(RoundConfig config, DecodeRoundSpec(request.spec(), machine_.limits));
    config.id = request.round_id();
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, registry_.Create(std::move(config)));
    v1::Round answer;
    Encode(*round, &answer);
    return Serialize(answer, response);
  });
}

AggregationService::Unary* AggregationService::GetRound(Context* context, const v1::GetRoundRequest* request,
                                                        v1::Round* response) {
  const auto round = FindRound(request->name());
  if (round.ok()) Encode(**round, response);
  return AtOnce(context, round.status());
}

AggregationService::Unary* AggregationService::ListRounds(Context* context, const v1::ListRoundsRequest* request,
                                                          v1::ListRoundsResponse* response) {
  return OnPool(context, [this, request, response]() -> absl::Status {
    if (request->page_size() < 0) {
      return absl::InvalidArgumentError(absl::StrCat("page_size ", request->page_size(), " is negative"));
    }
    const int size = request->page_size() == 0 ? kDefaultListSize : std::min(request->page_size(), kMaxListSize);
    ASSIGN_OR_RETURN(const Registry::Page page, registry_.List(size, request->page_token()));
    response->set_next_page_token(page.next_page_token);
    uint64_t bytes = 0;
    for (const Registry::Entry& entry : page.entries) {
      Encode(*entry.round, response->add_rounds());
      bytes += response->rounds(response->rounds_size() - 1).ByteSizeLong();
      if (bytes > PageBytes(0) && response->rounds_size() > 1) {  // specs can be long
        response->mutable_rounds()->RemoveLast();
        response->set_next_page_token(entry.token);
        break;
      }
    }
    return absl::OkStatus();
  });
}

AggregationService::Unary* AggregationService::CloseRound(Context* context, const v1::CloseRoundRequest* request,
                                                          v1::Round* response) {
  LogCall(LogLevel::kInfo, *context, "CloseRound", request->name());
  const auto round = FindRound(request->name());
  if (!round.ok()) return AtOnce(context, round.status());
  (*round)->Close();
  Encode(**round, response);
  return AtOnce(context, absl::OkStatus());
}

AggregationService::Unary* AggregationService::CancelRound(Context* context, const v1::CancelRoundRequest* request,
                                                           v1::Round* response) {
  LogCall(LogLevel::kInfo, *context, "CancelRound", request->name());
  const auto round = FindRound(request->name());
  if (!round.ok()) return AtOnce(context, round.status());
  const absl::Status status =
      (*round)->Cancel(request->reason().empty() ? "no reason given" : absl::string_view(request->reason()));
  if (status.ok()) Encode(**round, response);
  return AtOnce(context, status);
}

AggregationService::Unary* AggregationService::DeleteRound(Context* context, const v1::DeleteRoundRequest* request,
                                                           google::protobuf::Empty*) {
  LogCall(LogLevel::kInfo, *context, "DeleteRound", request->name());
  const auto id = ParseRoundName(request->name());
  return AtOnce(context, id.ok() ? registry_.Delete(*id) : id.status());
}

}  // namespace sparseagg::service
