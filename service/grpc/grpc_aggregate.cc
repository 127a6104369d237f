// The one-shot call Aggregate.
#include <map>
#include <numeric>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "host/base/mutex.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/base/refusals.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/round_codec.h"
#include "service/codec/sliced_message.h"
#include "service/codec/spec_codec.h"
#include "service/grpc/call_context.h"
#include "service/grpc/grpc_service.h"
#include "service/grpc/reactors.h"
#include "service/handlers/caller.h"
#include "service/handlers/page_stream.h"

namespace sparseagg::service {
namespace {

// An Aggregate call: a private round that only this call knows.
//
// First the reactor reads the spec and the chunks; each message is a step on the worker pool. When the client has
// closed its side, the reactor closes the round, and when the round has ended, it writes the pages of the result. The
// merge and all pages belong to one last step, so that a late Abort from the reading cannot finish the call during a
// write.
class AggregateReactor final
    : public CallReactor<AggregateReactor, grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 public:
  AggregateReactor(AggregationService* service, CallContext* context)
      : CallReactor(service, context), writer_(&service->context(), canceller_) {}

  void OnReadDone(bool ok) override {
    if (!EndRead()) return;
    context().pool.Post([self = self_, ok] {
      const absl::Status status = ToStatus([&] { return ok ? self->TakeRequest() : self->TakeEnd(); });
      if (!ok && status.ok()) return;  // the step goes on until EndAnswer
      self->reservation_.Release();
      if (!status.ok()) {
        self->Complete(status);
      } else if (ok) {
        self->ReadNext();
      }
      self->EndStep();
    });
  }

  void OnWriteDone(bool ok) override {
    writer_.OnWritten();
    if (!ok) return EndAnswer(absl::CancelledError("the stream was cancelled"));
    context().pool.Post([self = self_] { self->WriteNext(); });
  }

  // Stops a merge for which the client no longer waits. A pending read would not notice the cancellation.
  void OnCancel() override { CancelRound(); }

  void FinishWith(const absl::Status& status) {
    CancelRound();
    Finish(ToGrpc(status, context_));
  }

 private:
  absl::Status TakeRequest() {
    const Clock& clock = context().clock;
    const absl::Duration begin = clock.Monotonic();
    const uint64_t size = received_.Length();
    v1::AggregateRequest request;
    ChunkMessage message;  // freed on return; the round has copied its tuples by then
    RETURN_IF_ERROR(message.ParseFrom(TakeMessage(), context().limits, &request));
    const absl::Duration parsing = clock.Monotonic() - begin;
    RETURN_IF_ERROR(service_.methods().CheckMessageSize(size));
    if (request.has_spec() == (round_ != nullptr)) {
      return absl::InvalidArgumentError("the first message, and only the first, must have the spec");
    }
    if (request.has_spec()) return Open(request);
    if (!request.has_chunk()) return absl::InvalidArgumentError("the message has no chunk");
    RETURN_IF_ERROR(CheckId(message.head().client_id(), "client_id"));
    round_->meter().RecordMessage(size, read_time_, begin - received_at_, parsing);
    return InClient(message.head().client_id(), TakeChunk(message));
  }

  absl::Status Open(const v1::AggregateRequest& request) {
    ASSIGN_OR_RETURN(format_, DecodePageFormat(request.format()));
    ASSIGN_OR_RETURN(RoundConfig config, DecodeRoundSpec(request.spec(), context().limits));
    config.tenant = context_.identity().tenant;
    ASSIGN_OR_RETURN(std::shared_ptr<Round> round, service_.registry().CreatePrivate(std::move(config)));
    LogCall(LogLevel::kInfo, context_, "Aggregate", "");
    round_ = round;
    MutexLock lock(&mu_);
    round_to_cancel_ = std::move(round);
    return absl::OkStatus();
  }

  absl::Status TakeChunk(ChunkMessage& message) {
    const v1::UpdateChunk& wire = message.head();
    std::shared_ptr<UploadHandle>& upload = uploads_[wire.client_id()];
    if (upload == nullptr) {
      // A submission id tells retries apart. One stream has no retries, so that the id may be left out.
      const std::string& submission_id = wire.submission_id().empty() ? wire.client_id() : wire.submission_id();
      RETURN_IF_ERROR(CheckId(submission_id, "submission_id"));
      ASSIGN_OR_RETURN(upload, round_->intake().OpenStreamUpload(wire.client_id(), submission_id, AbortCallback()));
    }
    ASSIGN_OR_RETURN(const Chunk chunk, message.Decode());
    RETURN_IF_ERROR(round_->intake().Append(*upload, chunk));
    if (!chunk.last) return absl::OkStatus();
    RETURN_IF_ERROR(round_->intake().Commit(*upload).status());
    uploads_.erase(wire.client_id());
    return absl::OkStatus();
  }

  // Names the client in an error: the stream carries the updates of many.
  static absl::Status InClient(absl::string_view client_id, const absl::Status& status) {
    if (status.ok()) return status;
    return WithPrefix(absl::StrCat("client '", client_id, "': "), status);
  }

  // The client has closed its side, or the stream is broken. OK: the answer has begun, and EndAnswer will end it.
  absl::Status TakeEnd() {
    if (context_.IsCancelled()) return absl::CancelledError("the stream was cancelled");
    if (round_ == nullptr) return absl::InvalidArgumentError("the stream has no spec");
    if (!uploads_.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the stream ended before the last chunk of client '", uploads_.begin()->first, "'"));
    }
    reservation_.Release();
    RETURN_IF_ERROR(round_->Close());
    round_->Wait(absl::InfiniteDuration(), [self = self_] {
      self->context().pool.Post([self] {
        const absl::Status status = ToStatus([&] { return self->OpenPages(); });
        status.ok() ? self->WriteNext() : self->EndAnswer(status);
      });
    });
    return absl::OkStatus();
  }

  // Ends the last step, and the call.
  void EndAnswer(const absl::Status& status) {
    const std::shared_ptr<AggregateReactor> self = self_;  // the call may end in Complete
    Complete(status);
    EndStep();
  }

  absl::Status OpenPages() {
    const RoundSnapshot snapshot = round_->Snapshot();
    if (snapshot.results == nullptr) return snapshot.failure;
    std::vector<size_t> tensors(round_->config().tensors.size());
    std::iota(tensors.begin(), tensors.end(), size_t{0});
    ASSIGN_OR_RETURN(PageStream pages, PageStream::Create(round_, snapshot.results, std::move(tensors), KeyInterval{},
                                                          service_.methods().PageBytes(0), format_));
    writer_.Open(std::move(pages), [this](v1::ResultPage* page) {
      service_.methods().Encode(*round_, Identity{}, page->mutable_round());  // the caller's own round: all of it
    });
    return absl::OkStatus();
  }

  void WriteNext() {
    writer_.Prepare([self = self_](const absl::StatusOr<const grpc::ByteBuffer*>& page) {
      page.ok() && *page != nullptr ? self->StartWrite(*page) : self->EndAnswer(page.status());
    });
  }

  // From any thread. No effect on a round that has ended.
  void CancelRound() {
    std::shared_ptr<Round> round;
    {
      MutexLock lock(&mu_);
      round = round_to_cancel_;
    }
    if (round != nullptr) (void)round->Cancel("the Aggregate call ended");
  }

  // Used by one step at a time.
  std::shared_ptr<Round> round_;                                  // null: the spec has not come
  std::map<std::string, std::shared_ptr<UploadHandle>> uploads_;  // not committed, by client id
  PageFormat format_;
  PageWriter writer_;
  Mutex mu_;
  std::shared_ptr<Round> round_to_cancel_ ABSL_GUARDED_BY(mu_);  // round_, for other threads
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AggregationService::Aggregate(Context* context) {
  return AggregateReactor::Start(std::make_shared<AggregateReactor>(this, context), AggregateReactor::Wait::kUnbounded);
}

}  // namespace sparseagg::service
