// AggregationService: unary, resumable uploads.
#include <utility>

#include "host/status_macros.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/chunk_message.h"
#include "service/codec/round_codec.h"
#include "service/contain.h"
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

// Reads the one message of a call, for which there must be credit at once.
class PutReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  PutReactor(AggregationService* service, grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : service_(*service), context_(*context), response_(response), idle_(&service->machine()) {}

  // Until OnDone the reactor keeps itself, and so do the tasks that use it.
  static PutReactor* Start(const std::shared_ptr<PutReactor>& self) {
    PutReactor* reactor = self.get();
    reactor->self_ = self;
    Machine& machine = self->service_.machine();
    const auto interrupt = [weak = std::weak_ptr<PutReactor>(self)](const absl::Status& status) {
      const auto interrupted = weak.lock();
      if (interrupted != nullptr && interrupted->gate_.Interrupt(status)) interrupted->Finish(ToGrpc(status));
    };
    auto credit = machine.transit.TryAcquire(MostMessageBytes(machine.limits) + kStreamBytes,
                                             [interrupt, &machine] { interrupt(CalledIn(machine)); });
    if (!credit.has_value()) {
      reactor->gate_.Claim();
      reactor->Finish(NoRoomInTransit(machine, self->context_));
      return reactor;
    }
    reactor->credit_ = *std::move(credit);
    reactor->idle_.Start(interrupt);
    reactor->StartRead(&reactor->received_);
    return reactor;
  }

  void OnReadDone(bool ok) override {
    (void)idle_.Stop();
    if (!gate_.Begin()) return;
    credit_.Settle(received_.Length() + kStreamBytes);
    const absl::Duration came = service_.machine().clock.Monotonic();
    service_.machine().pool.Post([self = self_, ok, came] {
      const absl::Status status =
          ok ? Contain([&] { return self->Take(came); }) : absl::CancelledError("the call was cancelled");
      if (self->gate_.Claim()) self->Finish(ToGrpc(status));
      (void)self->gate_.End();
    });
  }

  void OnDone() override { self_.reset(); }

 private:
  // On the pool.
  absl::Status Take(absl::Duration came) {
    const uint64_t size = received_.Length();
    ChunkMessage message;
    RETURN_IF_ERROR(message.Parse(received_));
    const v1::UpdateChunk& head = message.head();
    LogCall(LogLevel::kDebug, context_, "PutChunk", head.round(), head.client_id());
    RETURN_IF_ERROR(CheckIds(head));
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, service_.FindRound(head.round()));
    absl::StatusOr<Chunk> chunk = message.Decode();
    const absl::Status fits = service_.CheckMessageSize(size);
    if (!fits.ok()) chunk = fits;
    if (!chunk.ok()) {
      round->RefuseNamed(head.client_id(), head.submission_id(), chunk.status());
      return chunk.status();
    }
    round->NoteMessage(size, absl::ZeroDuration(), service_.machine().clock.Monotonic() - came, absl::ZeroDuration());
    ASSIGN_OR_RETURN(const UploadProgress progress, round->PutChunk(head.client_id(), head.submission_id(), *chunk));
    v1::UploadStatus answer;
    EncodeStatus(head, progress, &answer);
    return Serialize(answer, response_);
  }

  AggregationService& service_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer* const response_;
  grpc::ByteBuffer received_;  // where gRPC reads to
  Credit credit_;              // for that
  FinishGate gate_;
  IdleTimer idle_;
  std::shared_ptr<PutReactor> self_;
};

}  // namespace

template <typename Base>
PutChunkReadByUs<Base>::PutChunkReadByUs() {
  const int index =
      v1::UpdateChunk::descriptor()->file()->FindServiceByName("Aggregation")->FindMethodByName("PutChunk")->index();
  // Says that the payload is not to be read ahead.
  this->MarkMethodStreamed(index, nullptr);
  this->MarkMethodRawCallback(index,
                              new grpc::internal::CallbackClientStreamingHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
                                  [this](grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
                                    return ReceiveChunk(context, response);
                                  }));
}

AggregationService::AggregationService(Machine* machine, Registry* registry)
    : machine_(*machine), registry_(*registry) {}

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::ReceiveChunk(Context* context,
                                                                            grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response));
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
