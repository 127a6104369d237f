// Calls about the committed submissions of a round.
#include <algorithm>
#include <utility>

#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/caller.h"
#include "service/handlers/unary_call.h"
#include "service/rounds/sealed_reader.h"

namespace sparseagg::service {
void AggregationMethods::ListSubmissions(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::ListSubmissionsRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    LogCall(LogLevel::kDebug, self.caller(), "ListSubmissions", request.round());
    ASSIGN_OR_RETURN(const int asked, ListSize(request.page_size(), kMaxListSize));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(self.caller(), request.round()));
    if (HidesCounts(*round, self.caller().identity())) {
      return absl::PermissionDeniedError("privacy: the submissions of this round are shown to coordinators alone");
    }
    const bool with_leaves = request.with_leaves();
    if (with_leaves) {
      if (self.caller().identity().role == Role::kObserver) {
        return absl::PermissionDeniedError("with_leaves: leaves have secret salts, which observers may not read");
      }
      if (!round->config().has_certificate) {
        return absl::FailedPreconditionError("with_leaves: the round has no leaves: its spec asks for no certificate");
      }
    }
    const uint64_t bytes_each = with_leaves ? MostLeafBytes(round->config()) : kMaxSubmissionBytes;
    const uint64_t size = std::min<uint64_t>(asked, std::max<uint64_t>(PageBytes(0) / bytes_each, 1));
    const RoundSnapshot snapshot = round->Snapshot();
    const uint64_t most = std::min(size, snapshot.num_submissions + 1);  // one may come before the answer
    const uint64_t withdrawn = with_leaves ? snapshot.num_withdrawn : 0;
    return PlannedAnswer{(most + withdrawn) * bytes_each,
                         [&self, round, most, with_leaves, token = request.page_token()]() -> absl::Status {
                           ASSIGN_OR_RETURN(SubmissionPage page, round->ListSubmissions(most, token, with_leaves));
                           v1::ListSubmissionsResponse list;
                           for (const ListedSubmission& submission : page.submissions) {
                             EncodeSubmission(submission, with_leaves, list.add_submissions());
                           }
                           for (std::string& leaf : page.withdrawn_leaves) {
                             list.add_withdrawn_leaves(std::move(leaf));
                           }
                           list.set_next_page_token(std::move(page.next_page_token));
                           return Serialize(list, self.response());
                         }};
  });
}

void AggregationMethods::InspectRound(const Call& call) {
  // On a thread of its own, because a page may take a second.
  const auto plan = [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::InspectRoundRequest request;
    RETURN_IF_ERROR(ParseSpec(self.request(), context_.limits, &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(self.caller(), request.round()));
    std::vector<size_t> tensors;
    for (const std::string& name : request.tensors()) {
      ASSIGN_OR_RETURN(const size_t tensor, round->config().FindTensor(name));
      tensors.push_back(tensor);
    }
    std::sort(tensors.begin(), tensors.end());
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
    // Before the reservation of the response, which may be granted on another thread. The page has one of its own.
    LogCall(LogLevel::kInfo, self.caller(), "InspectRound", request.round());
    ASSIGN_OR_RETURN(InspectionPage computed,
                     SealedReader(*round).Inspect(std::move(tensors), PageBytes(request.max_page_bytes()),
                                                  request.page_token(), [&self] { return self.is_cancelled(); }));
    const auto page = std::make_shared<InspectionPage>(std::move(computed));
    return PlannedAnswer{2 * page->MemoryBytes(), [&self, page]() -> absl::Status {
                           v1::InspectRoundResponse response;
                           EncodeInspection(*page, &response);
                           return Serialize(response, self.response());
                         }};
  };
  AnswerOn(context_.inspections, call, plan);
}

void AggregationMethods::WithdrawSubmission(const Call& call) {
  OnPool(call, [this](UnaryCall& self) -> absl::Status {
    v1::WithdrawSubmissionRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    RETURN_IF_ERROR(self.caller().ResolveClientOf(&request));
    RETURN_IF_ERROR(CheckId(request.client_id(), "client_id"));
    ASSIGN_OR_RETURN(const std::shared_ptr<Intake> intake,
                     FindIntakeOf(request.client_id(), self.caller(), request.round()));
    const bool is_coordinator = Authorize(self.caller().identity(), Method::kSealRound).ok();
    v1::WithdrawSubmissionResponse answer;
    ASSIGN_OR_RETURN(const bool withdrawn,
                     intake->target().Withdraw(request.client_id(), request.submission_id(), is_coordinator));
    RETURN_IF_ERROR(intake->journal().AwaitDurable());
    answer.set_withdrawn(withdrawn);
    LogCall(LogLevel::kInfo, self.caller(), "WithdrawSubmission", request.round(), request.client_id());
    return Serialize(answer, self.response());
  });
}

}  // namespace sparseagg::service
