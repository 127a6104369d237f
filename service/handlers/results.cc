// The method GetResult.
#include <utility>

#include "host/base/status_macros.h"
#include "service/codec/page_format.h"
#include "service/codec/parse.h"
#include "service/codec/serialize.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/call_log.h"
#include "service/handlers/page_stream.h"

namespace sparseagg::service {

void AggregationMethods::GetResult(const Call& call) {
  if (!call->ReserveForCall(kStreamBytes)) return;
  server_.pool.Post([this, call] {
    auto pages = ToStatus([&]() -> absl::StatusOr<PageStream> {
      v1::GetResultRequest request;
      RETURN_IF_ERROR(ParseNames(call->request(), &request));
      LogCall(LogLevel::kDebug, call->caller(), "GetResult", request.name());
      ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(call->caller(), request.name()));
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

}  // namespace sparseagg::service
