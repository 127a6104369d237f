// Calls of unary, resumable uploads.
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/base/to_status.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/chunk_message.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/rpc/call_errors.h"
#include "service/rpc/call_log.h"
#include "service/rpc/grpc_service.h"
#include "service/rpc/reading_reactor.h"
#include "service/rpc/serialize.h"

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

// A PutChunk call: reads its one message and gives it to the round, on the worker pool (grpc_methods.cc says why).
class PutReactor final : public ReadingReactor<PutReactor, grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  PutReactor(AggregationService* service, CallContext* context, grpc::ByteBuffer* response)
      : ReadingReactor(service, context), response_(response) {}

  void OnReadDone(bool ok) override {
    if (!EndRead()) return;
    context().pool.Post([self = self_, ok] {
      const absl::Status status = ok ? ToStatus([&] { return self->TakeChunk(); }) : self->NoMessage();
      // The call lasts until the client has read the response, and must not keep the memory until then.
      self->received_.Clear();
      self->reservation_.Release();
      self->Complete(status);
      self->EndStep();
    });
  }

  void FinishWith(const absl::Status& status) { Finish(ToGrpc(status)); }

 private:
  absl::Status NoMessage() const {
    return context_.IsCancelled() ? absl::CancelledError("the call was cancelled")
                                  : absl::InvalidArgumentError("the call has no message");
  }

  absl::Status TakeChunk() {
    const Clock& clock = context().clock;
    const absl::Duration begin = clock.Monotonic();
    const uint64_t size = received_.Length();
    ChunkMessage message;
    absl::Status parsed = message.Parse(received_);
    if (parsed.ok() && context().store != nullptr) parsed = message.KeepMessage(received_);
    received_.Clear();
    RETURN_IF_ERROR(parsed);
    const absl::Duration parsing = clock.Monotonic() - begin;
    const v1::UpdateChunk& head = message.head();
    LogCall(LogLevel::kDebug, context_, "PutChunk", head.round(), head.client_id());
    v1::UploadStatus answer;
    answer.set_client_id(head.client_id());
    RETURN_IF_ERROR(context_.ResolveClientOf(&answer));
    const std::string& client_id = answer.client_id();
    RETURN_IF_ERROR(CheckIds(client_id, head));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, service_.FindRound(context_, head.round()));
    absl::StatusOr<Chunk> chunk = message.Decode();
    const absl::Status fits = service_.CheckMessageSize(size);
    if (!fits.ok()) chunk = fits;
    if (!chunk.ok()) {
      round->RefuseNamed(client_id, head.submission_id(), head.upload_tag(), chunk.status());
      return chunk.status();
    }
    round->RecordMessage(size, read_time_, begin - received_at_, parsing);
    ASSIGN_OR_RETURN(const UploadProgress progress,
                     round->PutChunk(client_id, head.submission_id(), *chunk, head.upload_tag()));
    if (progress.committed) RETURN_IF_ERROR(round->AwaitDurable());
    EncodeStatus(head, progress, &answer);
    return Serialize(answer, response_);
  }

  grpc::ByteBuffer* const response_;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::PutChunk(Context* context, grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response), PutReactor::Wait::kBounded);
}

AggregationService::Unary* AggregationService::CommitSubmission(Context* context, const grpc::ByteBuffer* message,
                                                                grpc::ByteBuffer* response) {
  Unary* const reactor = context->DefaultReactor();
  const auto commit = [this, reactor, context, message, response]() -> absl::Status {
    v1::CommitSubmissionRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    LogCall(LogLevel::kDebug, *context, "CommitSubmission", request.round(), request.client_id());
    RETURN_IF_ERROR(context->ResolveClientOf(&request));
    RETURN_IF_ERROR(CheckIds(request.client_id(), request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(*context, request.round()));
    const auto encode = [name = request.round(), response](const absl::StatusOr<Receipt>& receipt) -> absl::Status {
      RETURN_IF_ERROR(receipt.status());
      v1::Submission submission;
      EncodeSubmission(name, *receipt, &submission);
      return Serialize(submission, response);
    };
    round->CommitNamed(request.client_id(), request.submission_id(), request.upload_tag(),
                       [reactor, encode, round](const absl::StatusOr<Receipt>& receipt) {
                         const absl::Status encoded = ToStatus([&] { return encode(receipt); });
                         if (!encoded.ok()) return reactor->Finish(ToGrpc(encoded));
                         round->WhenDurable([reactor](const absl::Status& durable) {
                           FailPoint("before_commit_answer");
                           reactor->Finish(ToGrpc(durable));
                         });
                       });
    return absl::OkStatus();
  };
  server_.pool.Post([reactor, commit] {
    const absl::Status status = ToStatus(commit);
    if (!status.ok()) reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

AggregationService::Unary* AggregationService::GetUploadStatus(Context* context, const grpc::ByteBuffer* message,
                                                               grpc::ByteBuffer* response) {
  return OnPool(context, [this, context, message, response]() -> absl::Status {
    v1::GetUploadStatusRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    RETURN_IF_ERROR(context->ResolveClientOf(&request));
    RETURN_IF_ERROR(CheckIds(request.client_id(), request));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, FindRound(*context, request.round()));
    ASSIGN_OR_RETURN(const UploadProgress progress,
                     round->GetProgress(request.client_id(), request.submission_id(), request.upload_tag()));
    if (progress.committed) RETURN_IF_ERROR(round->AwaitDurable());
    v1::UploadStatus answer;
    EncodeStatus(request, progress, &answer);
    answer.set_client_id(request.client_id());
    return Serialize(answer, response);
  });
}

}  // namespace sparseagg::service
