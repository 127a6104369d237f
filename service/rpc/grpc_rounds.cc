// AggregationService: the server and its rounds.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/to_status.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/round_codec.h"
#include "service/codec/spec_codec.h"
#include "service/rpc/answer_reactor.h"
#include "service/rpc/grpc_service.h"
#include "service/rpc/grpc_util.h"
#include "service/version.h"

namespace sparseagg::service {
namespace {

constexpr int kDefaultListSize = 100;
constexpr int kMaxListSize = 1000;
// Of the reason for which a round is cancelled, which is kept as long as the round.
constexpr size_t kMaxReasonBytes = 1024;
constexpr uint64_t kDefaultPageBytes = uint64_t{1} << 20;

// gRPC's and ours of a call that waits until there is room for its answer.
constexpr uint64_t kCallBytes = uint64_t{16} << 10;

std::shared_ptr<AnswerReactor> MakeReactor(ServerContext* server, grpc::CallbackServerContext* context) {
  auto reactor = std::make_shared<AnswerReactor>(server, context);
  reactor->Keep(reactor);
  return reactor;
}

absl::StatusOr<RoundConfig> DecodeCreate(const grpc::ByteBuffer& message, const Limits& limits) {
  v1::CreateRoundRequest request;
  RETURN_IF_ERROR(ParseSpec(message, limits, &request));
  if (!request.round_id().empty()) RETURN_IF_ERROR(CheckRoundId(request.round_id()));
  ASSIGN_OR_RETURN(RoundConfig config, DecodeRoundSpec(request.spec(), limits));
  config.id = request.round_id();
  return config;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Round>> AggregationService::FindRound(absl::string_view name) const {
  ASSIGN_OR_RETURN(const std::string id, ParseRoundName(name));
  return registry_.Find(id);
}

absl::Status AggregationService::CheckMessageSize(uint64_t bytes) const {
  const uint64_t limit = server_.limits.max_message_bytes;
  if (limit == 0 || bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a message of ", bytes,
                                                   " bytes is beyond the server's max_message_bytes ", limit,
                                                   "; send more and smaller chunks"));
}

uint64_t AggregationService::PageBytes(uint64_t asked) const {
  const uint64_t limit = server_.limits.max_page_bytes;
  const uint64_t bytes = asked == 0 ? kDefaultPageBytes : asked;
  return limit == 0 ? bytes : std::min(bytes, limit);
}

void AggregationService::Encode(const Round& round, v1::Round* wire) const {
  EncodeRound(round.config(), round.Snapshot(), server_.engine.name(), wire);
}

absl::Status AggregationService::Answer(const Round& round, grpc::ByteBuffer* response) const {
  v1::Round answer;
  Encode(round, &answer);
  return Serialize(answer, response);
}

AggregationService::Unary* AggregationService::OnPool(Context* context, std::function<absl::Status()> work) {
  Unary* reactor = context->DefaultReactor();
  server_.pool.Post([reactor, work = std::move(work)] { reactor->Finish(ToGrpc(ToStatus(work))); });
  return reactor;
}

AggregationService::Unary* AggregationService::AtOnce(Context* context, const std::function<absl::Status()>& work) {
  Unary* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(ToStatus(work)));
  return reactor;
}

AggregationService::Unary* AggregationService::AnswerOnPool(Context* context, const grpc::ByteBuffer* message,
                                                            std::function<absl::StatusOr<Answerable>()> work) {
  auto reactor = MakeReactor(&server_, context);
  Unary* const started = reactor.get();
  server_.pool.Post([reactor = std::move(reactor), message, work = std::move(work)] {
    AnswerWith(*reactor, message->Length(), ToStatus(work));
  });
  return started;
}

AggregationService::Unary* AggregationService::AnswerAtOnce(Context* context,
                                                            const std::function<absl::StatusOr<Answerable>()>& work) {
  const auto reactor = MakeReactor(&server_, context);
  AnswerWith(*reactor, 0, ToStatus(work));
  return reactor.get();
}

void AggregationService::AnswerWith(AnswerReactor& reactor, uint64_t waiting_bytes,
                                    absl::StatusOr<Answerable> answerable) {
  if (!answerable.ok()) return reactor.Finish(ToGrpc(answerable.status()));
  if (!AnswerReactor::IsSmall(answerable->most_bytes) && !reactor.Hold(kCallBytes + waiting_bytes)) return;
  reactor.AnswerWithin(answerable->most_bytes, AnswerReactor::Wait::kBounded, std::move(answerable->make));
}

AggregationService::Unary* AggregationService::GetServerInfo(Context* context, const grpc::ByteBuffer* message,
                                                             grpc::ByteBuffer* response) {
  return AtOnce(context, [&]() -> absl::Status {
    v1::GetServerInfoRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    v1::ServerInfo info;
    info.set_version(kVersion);
    info.add_api_versions("sparseagg.v1");
    info.set_engine(std::string(server_.engine.name()));
    info.set_engine_description(server_.engine.description());
    EncodeLimits(server_.limits, info.mutable_limits());
    EncodeKnownEncodings(&info);
    return Serialize(info, response);
  });
}

AggregationService::Unary* AggregationService::CreateRound(Context* context, const grpc::ByteBuffer* message,
                                                           grpc::ByteBuffer* response) {
  return AnswerOnPool(context, message, [this, context, message, response]() -> absl::StatusOr<Answerable> {
    RETURN_IF_ERROR(CheckMessageSize(message->Length()));
    ASSIGN_OR_RETURN(const RoundConfig checked, DecodeCreate(*message, server_.limits));
    // Decoded again when there is room: the message is what is counted of a call that waits, and what is made of it
    // may be thirty times as much.
    return Answerable{MostRoundBytes(checked), [this, context, message, response]() -> absl::Status {
                        ASSIGN_OR_RETURN(RoundConfig config, DecodeCreate(*message, server_.limits));
                        const std::string id = config.id;
                        ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, registry_.Create(std::move(config)));
                        LogCall(LogLevel::kInfo, *context, "CreateRound", id);
                        return Answer(*round, response);
                      }};
  });
}

AggregationService::Unary* AggregationService::GetRound(Context* context, const grpc::ByteBuffer* message,
                                                        grpc::ByteBuffer* response) {
  return AnswerAtOnce(context, [&]() -> absl::StatusOr<Answerable> {
    v1::GetRoundRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(request.name()));
    return Answerable{MostRoundBytes(round->config()), [this, round, response] { return Answer(*round, response); }};
  });
}

AggregationService::Unary* AggregationService::ListRounds(Context* context, const grpc::ByteBuffer* message,
                                                          grpc::ByteBuffer* response) {
  return AnswerOnPool(context, message, [this, message, response]() -> absl::StatusOr<Answerable> {
    v1::ListRoundsRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    if (request.page_size() < 0) {
      return absl::InvalidArgumentError(absl::StrCat("page_size ", request.page_size(), " is negative"));
    }
    const int size = request.page_size() == 0 ? kDefaultListSize : std::min(request.page_size(), kMaxListSize);
    ASSIGN_OR_RETURN(const Registry::Page page, registry_.List(size, request.page_token()));
    uint64_t most_bytes = 0;
    for (const Registry::Entry& entry : page.entries) {
      most_bytes += MostRoundBytes(entry.round->config());
      if (most_bytes > PageBytes(0)) break;  // one at least, and then no more than a page
    }
    return Answerable{most_bytes, [this, size, token = request.page_token(), most_bytes, response] {
                        return List(size, token, most_bytes, response);
                      }};
  });
}

absl::Status AggregationService::List(int size, const std::string& token, uint64_t most_bytes,
                                      grpc::ByteBuffer* response) const {
  ASSIGN_OR_RETURN(const Registry::Page page, registry_.List(size, token));
  v1::ListRoundsResponse list;
  list.set_next_page_token(page.next_page_token);
  uint64_t bytes = 0;
  for (const Registry::Entry& entry : page.entries) {
    Encode(*entry.round, list.add_rounds());
    bytes += list.rounds(list.rounds_size() - 1).ByteSizeLong();
    if (bytes > std::min(most_bytes, PageBytes(0)) && list.rounds_size() > 1) {  // specs can be long
      list.mutable_rounds()->RemoveLast();
      list.set_next_page_token(entry.token);
      break;
    }
  }
  return Serialize(list, response);
}

AggregationService::Unary* AggregationService::CloseRound(Context* context, const grpc::ByteBuffer* message,
                                                          grpc::ByteBuffer* response) {
  return AnswerAtOnce(context, [&]() -> absl::StatusOr<Answerable> {
    v1::CloseRoundRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(request.name()));
    return Answerable{MostRoundBytes(round->config()), [this, context, round, name = request.name(), response] {
                        round->Close();
                        LogCall(LogLevel::kInfo, *context, "CloseRound", name);
                        return Answer(*round, response);
                      }};
  });
}

AggregationService::Unary* AggregationService::CancelRound(Context* context, const grpc::ByteBuffer* message,
                                                           grpc::ByteBuffer* response) {
  return AnswerAtOnce(context, [&]() -> absl::StatusOr<Answerable> {
    v1::CancelRoundRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(request.name()));
    if (request.reason().size() > kMaxReasonBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("reason has ", request.reason().size(), " bytes; up to ", kMaxReasonBytes, " are allowed"));
    }
    const std::string reason = request.reason().empty() ? "no reason given" : request.reason();
    const auto cancel = [this, context, round, name = request.name(), reason, response]() -> absl::Status {
      RETURN_IF_ERROR(round->Cancel(reason));
      LogCall(LogLevel::kInfo, *context, "CancelRound", name);
      return Answer(*round, response);
    };
    return Answerable{MostRoundBytes(round->config()), cancel};
  });
}

AggregationService::Unary* AggregationService::DeleteRound(Context* context, const grpc::ByteBuffer* message,
                                                           grpc::ByteBuffer* response) {
  return AtOnce(context, [&]() -> absl::Status {
    v1::DeleteRoundRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(request.name()));
    RETURN_IF_ERROR(registry_.Delete(round->config().id));
    LogCall(LogLevel::kInfo, *context, "DeleteRound", request.name());
    return Serialize(google::protobuf::Empty(), response);
  });
}

}  // namespace sparseagg::service
