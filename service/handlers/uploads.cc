// Methods of unary, resumable uploads.

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/base/fail_point.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/codec/sliced_message.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/caller.h"

namespace sparseagg::service {
namespace {

constexpr size_t kMaxTagBytes = 64;

// Checks the ids that an UpdateChunk, a CommitSubmissionRequest and a GetUploadStatusRequest have.
template <typename Request>
absl::Status CheckIds(const std::string& client_id, const Request& request) {
  RETURN_IF_ERROR(CheckId(client_id, "client_id"));
  RETURN_IF_ERROR(CheckId(request.submission_id(), "submission_id"));
  if (request.upload_tag().size() <= kMaxTagBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("upload_tag has ", request.upload_tag().size(), " bytes; up to ", kMaxTagBytes, " are allowed"));
}

template <typename Request>
void EncodeStatus(const Request& request, const UploadProgress& progress, v1::UploadStatus* response) {
  EncodeProgress(request.round(), progress, response);
  response->set_submission_id(request.submission_id());
}

}  // namespace

absl::Status AggregationMethods::PutChunk(LargeCall& chunk) const {
  const Clock& clock = context_.clock;
  const absl::Duration begin = clock.Monotonic();
  const uint64_t size = chunk.message.size();
  ChunkMessage message;
  const absl::Status parsed = message.Parse(chunk.message);
  if (context_.store != nullptr) message.KeepMessage(chunk.message);
  chunk.message.Clear();
  RETURN_IF_ERROR(parsed);
  const absl::Duration parsing = clock.Monotonic() - begin;
  const v1::UpdateChunk& head = message.head();
  LogCall(LogLevel::kDebug, chunk.caller, "PutChunk", head.round(), head.client_id());
  v1::UploadStatus answer;
  answer.set_client_id(head.client_id());
  RETURN_IF_ERROR(chunk.caller.ResolveClientOf(&answer));
  const std::string& client_id = answer.client_id();
  RETURN_IF_ERROR(CheckIds(client_id, head));
  ASSIGN_OR_RETURN(const std::shared_ptr<Intake> intake, FindIntakeOf(client_id, chunk.caller, head.round()));
  absl::StatusOr<Chunk> decoded = message.Decode();
  const absl::Status fits = CheckMessageSize(size);
  if (!fits.ok()) decoded = fits;
  if (!decoded.ok()) {
    intake->RefuseNamed(client_id, head.submission_id(), head.upload_tag(), decoded.status());
    return decoded.status();
  }
  intake->meter().RecordMessage(size, chunk.read_time, begin - chunk.received_at, parsing);
  ASSIGN_OR_RETURN(const UploadProgress progress,
                   intake->PutChunk(client_id, head.submission_id(), *decoded, head.upload_tag()));
  if (progress.committed) RETURN_IF_ERROR(intake->journal().AwaitDurable());
  EncodeStatus(head, progress, &answer);
  return Serialize(answer, chunk.response);
}

void AggregationMethods::CommitSubmission(const Call& call) {
  const auto commit = [this, call]() -> absl::Status {
    v1::CommitSubmissionRequest request;
    RETURN_IF_ERROR(ParseNames(call->request(), &request));
    LogCall(LogLevel::kDebug, call->caller(), "CommitSubmission", request.round(), request.client_id());
    RETURN_IF_ERROR(call->caller().ResolveClientOf(&request));
    RETURN_IF_ERROR(CheckIds(request.client_id(), request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Intake> intake,
                     FindIntakeOf(request.client_id(), call->caller(), request.round()));
    const auto encode = [name = request.round(), call](const absl::StatusOr<Receipt>& receipt) -> absl::Status {
      RETURN_IF_ERROR(receipt.status());
      v1::CommitSubmissionResponse submission;
      EncodeCommit(name, *receipt, &submission);
      return Serialize(submission, call->response());
    };
    intake->CommitNamed(request.client_id(), request.submission_id(), request.upload_tag(),
                        [call, encode, intake](const absl::StatusOr<Receipt>& receipt) {
                          const absl::Status encoded = ToStatus([&] { return encode(receipt); });
                          if (!encoded.ok()) return call->Finish(encoded);
                          intake->journal().WhenDurable([call](const absl::Status& durable) {
                            FailPoint("before_commit_answer");
                            call->Finish(durable);
                          });
                        });
    return absl::OkStatus();
  };
  context_.pool.Post([call, commit] {
    const absl::Status status = ToStatus(commit);
    if (!status.ok()) call->Finish(status);
  });
}

void AggregationMethods::GetUploadStatus(const Call& call) {
  OnPool(call, [this](UnaryCall& self) -> absl::Status {
    v1::GetUploadStatusRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    RETURN_IF_ERROR(self.caller().ResolveClientOf(&request));
    RETURN_IF_ERROR(CheckIds(request.client_id(), request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Intake> intake,
                     FindIntakeOf(request.client_id(), self.caller(), request.round()));
    ASSIGN_OR_RETURN(const UploadProgress progress,
                     intake->GetProgress(request.client_id(), request.submission_id(), request.upload_tag()));
    if (progress.committed) RETURN_IF_ERROR(intake->journal().AwaitDurable());
    v1::UploadStatus answer;
    EncodeStatus(request, progress, &answer);
    answer.set_client_id(request.client_id());
    return Serialize(answer, self.response());
  });
}

}  // namespace sparseagg::service
