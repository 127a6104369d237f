// AggregationService: unary, resumable uploads.
#include "host/status_macros.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/round_codec.h"
#include "service/grpc_service.h"
#include "service/grpc_util.h"

namespace sparseagg::service {
namespace {

// Request: UpdateChunk, CommitSubmissionRequest or GetUploadStatusRequest.
template <typename Request>
absl::Status CheckIds(const Request& request) {
  RETURN_IF_ERROR(CheckId(request.client_id(), "client_id"));
  return CheckId(request.submission_id(), "submission_id");
}

template <typename Request>
void EncodeStatus(const Request& request, const UploadProgress& progress, v1::UploadStatus* response) {
  EncodeProgress(request.round(), progress, response);
  response->set_client_id(request.client_id());
  response->set_submission_id(request.submission_id());
}

}  // namespace

AggregationService::Unary* AggregationService::PutChunk(Context* context, const v1::UpdateChunk* request,
                                                        v1::UploadStatus* response) {
  LogCall(LogLevel::kDebug, *context, "PutChunk", request->round(), request->client_id());
  const absl::Duration came = machine_.clock.Monotonic();
  return OnPool(context, [this, request, response, came]() -> absl::Status {
    RETURN_IF_ERROR(CheckIds(*request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(request->round()));
    absl::StatusOr<Chunk> chunk = DecodeChunk(*request);
    const absl::Status size = CheckMessageSize(*request);
    if (!size.ok()) chunk = size;
    if (!chunk.ok()) {
      round->RefuseNamed(request->client_id(), request->submission_id(), chunk.status());
      return chunk.status();
    }
    round->NoteMessage(request->ByteSizeLong(), absl::ZeroDuration(), machine_.clock.Monotonic() - came,
                       absl::ZeroDuration());
    ASSIGN_OR_RETURN(const UploadProgress progress,
                     round->PutChunk(request->client_id(), request->submission_id(), *chunk));
    EncodeStatus(*request, progress, response);
    return absl::OkStatus();
  });
}

AggregationService::Unary* AggregationService::CommitSubmission(Context* context,
                                                                const v1::CommitSubmissionRequest* request,
                                                                v1::Submission* response) {
  LogCall(LogLevel::kDebug, *context, "CommitSubmission", request->round(), request->client_id());
  return OnPool(context, [this, request, response]() -> absl::Status {
    RETURN_IF_ERROR(CheckIds(*request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(request->round()));
    ASSIGN_OR_RETURN(const Receipt receipt, round->CommitNamed(request->client_id(), request->submission_id()));
    EncodeSubmission(request->round(), receipt, response);
    return absl::OkStatus();
  });
}

AggregationService::Unary* AggregationService::GetUploadStatus(Context* context,
                                                               const v1::GetUploadStatusRequest* request,
                                                               v1::UploadStatus* response) {
  return OnPool(context, [this, request, response]() -> absl::Status {
    RETURN_IF_ERROR(CheckIds(*request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(request->round()));
    ASSIGN_OR_RETURN(const UploadProgress progress, round->GetProgress(request->client_id(), request->submission_id()));
    EncodeStatus(*request, progress, response);
    return absl::OkStatus();
  });
}

}  // namespace sparseagg::service
