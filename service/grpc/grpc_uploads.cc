// The calls PutChunk, SubmitBatch and PutResultRange.
#include <utility>

#include "service/grpc/call_context.h"
#include "service/grpc/grpc_service.h"
#include "service/grpc/reactors.h"

namespace sparseagg::service {
namespace {

// A call with one large message: reads it and gives it to the method, on the worker pool (grpc_methods.cc says why).
class PutReactor final : public ReadingReactor<PutReactor, grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  PutReactor(AggregationService* service, CallContext* context, grpc::ByteBuffer* response, Method method)
      : ReadingReactor(service, context), response_(response), method_(method) {}

  void OnReadDone(bool ok) override {
    if (!EndRead()) return;
    context().pool.Post([self = self_, ok] { ok ? self->CallMethod() : self->End(self->NoMessage()); });
  }

  void FinishWith(const absl::Status& status) { Finish(ToGrpc(status, context_)); }

 private:
  absl::Status NoMessage() const {
    return context_.IsCancelled() ? absl::CancelledError("the call was cancelled")
                                  : absl::InvalidArgumentError("the call has no message");
  }

  void CallMethod() {
    AggregationMethods::LargeCall call{context_,
                                       {},
                                       read_time_,
                                       received_at_,
                                       response_,
                                       [this] { return context_.IsCancelled(); },
                                       [self = self_](const absl::Status& status) { self->End(status); }};
    call.message.Swap(&received_);
    service_.methods().RunLarge(method_, std::move(call));
  }

  void End(const absl::Status& status) {
    // The call lasts until the client has read the response, and must not keep the memory until then.
    received_.Clear();
    reservation_.Release();
    Complete(status);
    EndStep();
  }

  grpc::ByteBuffer* const response_;
  const Method method_;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::PutChunk(Context* context, grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response, Method::kPutChunk),
                           PutReactor::Wait::kBounded);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::SubmitBatch(Context* context,
                                                                           grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response, Method::kSubmitBatch),
                           PutReactor::Wait::kBounded);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::PutResultRange(Context* context,
                                                                              grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response, Method::kPutResultRange),
                           PutReactor::Wait::kBounded);
}

}  // namespace sparseagg::service
