// AggregationService: one submission in one stream.
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/status_macros.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/round_codec.h"
#include "service/contain.h"
#include "service/grpc_service.h"
#include "service/grpc_util.h"

namespace sparseagg::service {
namespace {

// Each step handles one message on the pool and reads the next one only then: a client that sends faster than the
// server decodes is held back by flow control, and at most one message of a stream is in memory.
class SubmitReactor final : public grpc::ServerReadReactor<v1::UpdateChunk> {
 public:
  SubmitReactor(AggregationService* service, grpc::CallbackServerContext* context, v1::Submission* response)
      : service_(*service), context_(*context), response_(response), idle_(&service->machine()) {}

  // Until OnDone the reactor keeps itself, and so do the tasks that use it.
  static SubmitReactor* Start(std::shared_ptr<SubmitReactor> self) {
    SubmitReactor* reactor = self.get();
    reactor->self_ = std::move(self);
    reactor->gate_.Begin();
    reactor->ReadNext();
    reactor->EndStep();
    return reactor;
  }

  void OnReadDone(bool ok) override {
    idle_.Stop();
    if (!gate_.Begin()) return;
    service_.machine().pool.Post([self = self_, ok] {
      const absl::Status status = Contain([&] { return ok ? self->TakeChunk() : self->TakeEnd(); });
      if (!status.ok() || !ok) {
        self->Conclude(status);
      } else {
        self->ReadNext();
      }
      self->EndStep();
    });
  }

  void OnDone() override {
    if (upload_ != nullptr) round_->Discard(*upload_, absl::OkStatus());
    self_.reset();
  }

 private:
  void ReadNext() {
    idle_.Start(Interrupter());
    StartRead(&chunk_);
  }

  void EndStep() {
    if (const auto interruption = gate_.End()) Finish(ToGrpc(*interruption));
  }

  std::function<void(absl::Status)> Interrupter() {
    return [weak = std::weak_ptr<SubmitReactor>(self_)](const absl::Status& status) {
      const auto self = weak.lock();
      if (self != nullptr && self->gate_.Interrupt(status)) self->Finish(ToGrpc(status));
    };
  }

  absl::Status TakeChunk() {
    v1::UpdateChunk chunk;  // freed on return, when its tuples have been copied
    chunk.Swap(&chunk_);
    if (upload_ == nullptr) {
      RETURN_IF_ERROR(Open(chunk));
    } else if ((!chunk.round().empty() && chunk.round() != round_name_) ||
               (!chunk.client_id().empty() && chunk.client_id() != upload_->client_id) ||
               (!chunk.submission_id().empty() && chunk.submission_id() != upload_->submission_id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", chunk.sequence(), " is of another submission than the stream's first chunk"));
    }
    RETURN_IF_ERROR(service_.CheckMessageSize(chunk));
    ASSIGN_OR_RETURN(const Chunk decoded, DecodeChunk(chunk));
    return round_->Append(*upload_, decoded, Repeats::kRefuse);
  }

  absl::Status Open(const v1::UpdateChunk& chunk) {
    RETURN_IF_ERROR(CheckId(chunk.client_id(), "client_id"));
    RETURN_IF_ERROR(CheckId(chunk.submission_id(), "submission_id"));
    ASSIGN_OR_RETURN(round_, service_.FindRound(chunk.round()));
    round_name_ = chunk.round();
    LogCall(LogLevel::kDebug, context_, "SubmitUpdate", round_name_, chunk.client_id());
    ASSIGN_OR_RETURN(upload_, round_->OpenUpload(chunk.client_id(), chunk.submission_id(), Interrupter()));
    return absl::OkStatus();
  }

  // The client has closed its side, or the stream is broken.
  absl::Status TakeEnd() {
    if (context_.IsCancelled()) return absl::CancelledError("the stream was cancelled");
    if (upload_ == nullptr) return absl::InvalidArgumentError("the stream has no chunk");
    ASSIGN_OR_RETURN(const Receipt receipt, round_->Commit(*upload_));
    EncodeSubmission(round_name_, receipt, response_);
    return absl::OkStatus();
  }

  void Conclude(const absl::Status& status) {
    const bool broken = absl::IsCancelled(status) && context_.IsCancelled();
    if (upload_ != nullptr) round_->Discard(*upload_, broken ? absl::OkStatus() : status);
    if (gate_.Claim()) Finish(ToGrpc(status));
  }

  AggregationService& service_;
  grpc::CallbackServerContext& context_;
  v1::Submission* const response_;
  v1::UpdateChunk chunk_;  // where gRPC reads to
  FinishGate gate_;
  IdleTimer idle_;
  std::string round_name_;
  std::shared_ptr<Round> round_;
  std::shared_ptr<UploadHandle> upload_;
  std::shared_ptr<SubmitReactor> self_;
};

}  // namespace

grpc::ServerReadReactor<v1::UpdateChunk>* AggregationService::SubmitUpdate(Context* context, v1::Submission* response) {
  return SubmitReactor::Start(std::make_shared<SubmitReactor>(this, context, response));
}

}  // namespace sparseagg::service
