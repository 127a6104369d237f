// Calls about results, and about the ranges of a cluster's result.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/codec/page_format.h"
#include "service/codec/parse.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/caller.h"
#include "service/handlers/page_stream.h"
#include "service/rounds/result_pages.h"

namespace sparseagg::service {

void AggregationMethods::GetResult(const Call& call) {
  if (!call->ReserveForCall(kStreamBytes)) return;
  context_.pool.Post([this, call] {
    auto pages = ToStatus([&]() -> absl::StatusOr<PageStream> {
      v1::GetResultRequest request;
      RETURN_IF_ERROR(ParseNames(call->request(), &request));
      LogCall(LogLevel::kDebug, call->caller(), "GetResult", request.round());
      ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(call->caller(), request.round()));
      ASSIGN_OR_RETURN(const size_t tensor, round->config().ChooseTensor(request.tensor()));
      ASSIGN_OR_RETURN(const PageFormat format, DecodePageFormat(request.format()));
      ASSIGN_OR_RETURN(Results results, round->GetResults());
      return PageStream::Create(round, std::move(results), {tensor}, {request.range().begin(), request.range().end()},
                                PageBytes(request.max_page_bytes()), format, request.page_token());
    });
    if (!pages.ok()) return call->Finish(pages.status());
    const auto stream = std::make_shared<PageStream>(*std::move(pages));  // only the first page is asked for
    call->ReserveAndAnswer(stream->NextBytes(), UnaryCall::Wait::kBounded, [&self = *call, stream]() -> absl::Status {
      v1::ResultPage page;
      stream->Next(&page);
      return Serialize(page, self.response());
    });
  });
}

namespace {

constexpr size_t kMaxRangeNameBytes = 128;

absl::Status CheckRangeName(absl::string_view name, absl::string_view field) {
  if (name.size() <= kMaxRangeNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", name.size(), " bytes; up to ", kMaxRangeNameBytes, " are allowed"));
}

}  // namespace

absl::Status AggregationMethods::PutResultRange(LargeCall& call) const {
  RETURN_IF_ERROR(CheckMessageSize(call.message.size()));
  v1::PutResultRangeRequest put;
  const absl::Status parsed = Parse(call.message, &put);
  call.message.Clear();
  RETURN_IF_ERROR(parsed);
  RETURN_IF_ERROR(CheckRangeName(put.only(), "only"));
  RETURN_IF_ERROR(CheckRangeName(put.plan(), "plan"));
  ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(call.caller, put.round()));
  RangeRecord range{put.only(), put.plan(), put.page().slice().tensor()};
  std::string page;
  if (!range.tensor.empty()) {
    RETURN_IF_ERROR(round->config().ChooseTensor(range.tensor).status());
    RETURN_IF_ERROR(CheckRange({put.range().begin(), put.range().end()}));
    range.begin = put.range().begin();
    range.end = put.range().end();
  }
  // An empty list has no page: the coordinator has kept the result.
  if (!range.tensor.empty() || !put.page().ranges().empty()) page = put.page().SerializeAsString();
  put.clear_page();
  const absl::Time created =
      absl::FromUnixSeconds(put.create_time().seconds()) + absl::Nanoseconds(put.create_time().nanos());
  // The list ends the round.
  const LogLevel level = range.tensor.empty() ? LogLevel::kInfo : LogLevel::kDebug;
  RETURN_IF_ERROR(round->PutRange(created, std::move(range), std::move(page)));
  RETURN_IF_ERROR(round->journal().AwaitDurable());
  LogCall(level, call.caller, "PutResultRange", put.round());
  return Serialize(google::protobuf::Empty(), call.response);
}

void AggregationMethods::GetResultRange(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::GetResultRangeRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    LogCall(LogLevel::kDebug, self.caller(), "GetResultRange", request.round());
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(self.caller(), request.round()));
    ASSIGN_OR_RETURN(const auto page, round->ranges().Find(request.tensor(), request.begin()));
    return PlannedAnswer{page->size(), [&self, page]() -> absl::Status {
                           *self.response() = *page;
                           return absl::OkStatus();
                         }};
  });
}

}  // namespace sparseagg::service
