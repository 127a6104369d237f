// The call PutChunk.
#include <utility>

#include "service/base/to_status.h"
#include "service/grpc/call_errors.h"
#include "service/grpc/grpc_service.h"
#include "service/grpc/reading_reactor.h"

namespace sparseagg::service {
namespace {

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

  void FinishWith(const absl::Status& status) { Finish(ToGrpc(status, context_)); }

 private:
  absl::Status NoMessage() const {
    return context_.IsCancelled() ? absl::CancelledError("the call was cancelled")
                                  : absl::InvalidArgumentError("the call has no message");
  }

  absl::Status TakeChunk() {
    AggregationMethods::ReceivedChunk chunk{{}, read_time_, received_at_};
    chunk.message.Swap(&received_);
    return service_.methods().PutChunk(context_, std::move(chunk), response_);
  }

  grpc::ByteBuffer* const response_;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::PutChunk(Context* context, grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response), PutReactor::Wait::kBounded);
}

}  // namespace sparseagg::service
