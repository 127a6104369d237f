// Calls about certificates, receipts and exports.
#include <memory>
#include <utility>

#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/caller.h"
#include "service/rounds/round_certificate.h"

namespace sparseagg::service {
void AggregationMethods::GetCertificate(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::GetCertificateRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(self.caller(), request.round()));
    ASSIGN_OR_RETURN(std::string found, round->GetCertificate());
    const auto envelope = std::make_shared<const std::string>(std::move(found));
    return PlannedAnswer{2 * envelope->size(), [&self, envelope]() -> absl::Status {
                           v1::Certificate answer;
                           answer.set_envelope(*envelope);
                           return Serialize(answer, self.response());
                         }};
  });
}

void AggregationMethods::GetReceipt(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::GetReceiptRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    RETURN_IF_ERROR(self.caller().ResolveClientOf(&request));
    RETURN_IF_ERROR(CheckId(request.client_id(), "client_id"));
    if (!request.submission_id().empty()) RETURN_IF_ERROR(CheckId(request.submission_id(), "submission_id"));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round,
                     FindRoundOf(request.client_id(), self.caller(), request.round()));
    return PlannedAnswer{MostReceiptBytes(round->config()), [&self, round, request]() -> absl::Status {
                           ASSIGN_OR_RETURN(SubmissionReceipt receipt,
                                            round->GetReceipt(request.client_id(), request.submission_id()));
                           // A promise is worth something only if a restart keeps the submission.
                           RETURN_IF_ERROR(round->journal().AwaitDurable());
                           v1::SubmissionReceipt answer;
                           EncodeReceipt(RoundName(round->config()), request.client_id(), std::move(receipt), &answer);
                           return Serialize(answer, self.response());
                         }};
  });
}

void AggregationMethods::ExportRound(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::ExportRoundRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(self.caller(), request.round()));
    LogCall(LogLevel::kInfo, self.caller(), "ExportRound", request.round());
    const uint64_t page_bytes = PageBytes(request.max_page_bytes());
    // Twice: the page, and its message.
    const uint64_t most = 2 * (page_bytes + context_.limits.max_message_bytes);
    return PlannedAnswer{most, [&self, round, page_bytes, token = request.page_token()]() -> absl::Status {
                           ASSIGN_OR_RETURN(BundlePage page, ReadBundle(*round, page_bytes, token));
                           v1::ExportRoundResponse answer;
                           EncodeBundle(std::move(page), &answer);
                           return Serialize(answer, self.response());
                         }};
  });
}

}  // namespace sparseagg::service
