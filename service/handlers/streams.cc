// Calls about streams.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/caller.h"
#include "service/handlers/unary_call.h"
#include "service/rounds/round_config.h"

namespace sparseagg::service {
namespace {

constexpr size_t kMaxWatched = 100;  // versions of one answer

absl::StatusOr<StreamConfig> DecodeCreateStream(const absl::Cord& message, const Limits& limits) {
  v1::CreateStreamRequest request;
  RETURN_IF_ERROR(ParseSpec(message, limits, &request));
  if (!request.stream_id().empty()) RETURN_IF_ERROR(CheckName(request.stream_id(), "stream_id"));
  ASSIGN_OR_RETURN(StreamConfig config, DecodeStreamSpec(request.spec(), limits));
  config.round.id = request.stream_id();
  return config;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Stream>> AggregationMethods::FindStream(const Caller& caller,
                                                                       absl::string_view name) const {
  ASSIGN_OR_RETURN(const std::string id, ParseStreamName(name));
  return streams_.Find(caller.identity().tenant, id);
}

void AggregationMethods::Encode(const Stream& stream, const Identity& caller, v1::Stream* wire) {
  EncodeStream(stream, wire);
  if (caller.role != Role::kClient) return;
  // A client learns nothing of other clients.
  auto& refusals = *wire->mutable_recent_refusals();
  refusals.erase(std::remove_if(refusals.begin(), refusals.end(),
                                [&](const v1::Refusal& refusal) { return refusal.client_id() != caller.name; }),
                 refusals.end());
}

void AggregationMethods::CreateStream(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    RETURN_IF_ERROR(CheckMessageSize(self.request().size()));
    ASSIGN_OR_RETURN(const StreamConfig checked, DecodeCreateStream(self.request(), context_.limits));
    // As CreateRound: while the call waits it keeps only the message.
    return PlannedAnswer{MostRoundBytes(checked.round, 0) + self.request().size(), [this, &self]() -> absl::Status {
                           ASSIGN_OR_RETURN(StreamConfig config, DecodeCreateStream(self.request(), context_.limits));
                           config.round.tenant = self.caller().identity().tenant;
                           ASSIGN_OR_RETURN(const std::shared_ptr<Stream> stream, streams_.Create(std::move(config)));
                           RETURN_IF_ERROR(stream->journal().AwaitDurable());
                           LogCall(LogLevel::kInfo, self.caller(), "CreateStream", stream->config().round.id);
                           v1::Stream answer;
                           Encode(*stream, self.caller().identity(), &answer);
                           return Serialize(answer, self.response());
                         }};
  });
}

void AggregationMethods::GetStream(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::GetStreamRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Stream> stream, FindStream(self.caller(), request.stream()));
    return PlannedAnswer{MostStreamBytes(*stream), [&self, stream]() -> absl::Status {
                           v1::Stream answer;
                           Encode(*stream, self.caller().identity(), &answer);
                           return Serialize(answer, self.response());
                         }};
  });
}

void AggregationMethods::ListStreams(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::ListStreamsRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const int size, ListSize(request.page_size()));
    const auto page =
        std::make_shared<StreamRegistry::Page>(streams_.List(self.caller().identity().tenant, request.page_token(),
                                                             static_cast<size_t>(size), PageBytes(0), MostStreamBytes));
    return PlannedAnswer{page->bytes, [&self, page]() -> absl::Status {
                           v1::ListStreamsResponse answer;
                           for (const auto& stream : page->entries) {
                             Encode(*stream, self.caller().identity(), answer.add_streams());
                           }
                           answer.set_next_page_token(page->next_token);
                           return Serialize(answer, self.response());
                         }};
  });
}

void AggregationMethods::CutStream(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::CutStreamRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Stream> stream, FindStream(self.caller(), request.stream()));
    return PlannedAnswer{MostStreamBytes(*stream), [&self, stream, version = request.version()]() -> absl::Status {
                           RETURN_IF_ERROR(stream->Cut(version, CutCause::kCall));
                           RETURN_IF_ERROR(stream->journal().AwaitDurable());
                           LogCall(LogLevel::kInfo, self.caller(), "CutStream", stream->config().round.id);
                           v1::Stream answer;
                           Encode(*stream, self.caller().identity(), &answer);
                           return Serialize(answer, self.response());
                         }};
  });
}

void AggregationMethods::DeleteStream(const Call& call) {
  OnPool(call, [this](UnaryCall& self) -> absl::Status {
    v1::DeleteStreamRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const std::string id, ParseStreamName(request.stream()));
    ASSIGN_OR_RETURN(const std::shared_ptr<Stream> stream, streams_.Delete(self.caller().identity().tenant, id));
    RETURN_IF_ERROR(stream->journal().AwaitDurable());
    LogCall(LogLevel::kInfo, self.caller(), "DeleteStream", request.stream());
    return Serialize(google::protobuf::Empty(), self.response());
  });
}

void AggregationMethods::WatchVersions(const Call& call) {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Round> next;
  uint64_t after = 0;
  absl::Duration timeout;
  const absl::Status asked = ToStatus([&]() -> absl::Status {
    v1::WatchVersionsRequest request;
    RETURN_IF_ERROR(ParseNames(call->request(), &request));
    LogCall(LogLevel::kDebug, call->caller(), "WatchVersions", request.stream());
    ASSIGN_OR_RETURN(stream, FindStream(call->caller(), request.stream()));
    after = request.after_version();
    ASSIGN_OR_RETURN(next, stream->FirstAfter(after));
    ASSIGN_OR_RETURN(timeout, WaitTimeout(request.has_timeout(), request.timeout()));
    return absl::OkStatus();
  });
  if (!asked.ok()) return call->Finish(asked);
  const auto answer = [&self = *call, stream, next, after]() -> absl::Status {
    if (next->state() == RoundState::kCancelled) RETURN_IF_ERROR(stream->FirstAfter(after).status());  // it is deleted
    v1::WatchVersionsResponse versions;
    for (const StreamVersion& version : stream->EndedAfter(after, kMaxWatched)) {
      EncodeVersion(version, versions.add_versions());
    }
    return Serialize(versions, self.response());
  };
  AnswerAfter(
      call, registry_, AwaitedEnd(next), timeout, [] { return kMaxWatched * kMaxVersionBytes; }, answer);
}

}  // namespace sparseagg::service
