// The calls PutChunk, SubmitBatch and PutResultRange.
#include <utility>

#include "host/base/to_status.h"
#include "service/grpc/call_errors.h"
#include "service/grpc/grpc_service.h"
#include "service/grpc/reading_reactor.h"

namespace sparseagg::service {
namespace {

// A call with one large message: reads it and gives it to the method, on the worker pool (grpc_methods.cc says why).
class PutReactor final : public ReadingReactor<PutReactor, grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  PutReactor(AggregationService* service, CallContext* context, grpc::ByteBuffer* response,
             AggregationMethods::LargeMethod method)
      : ReadingReactor(service, context), response_(response), method_(method) {}

  void OnReadDone(bool ok) override {
    if (!EndRead()) return;
    context().pool.Post([self = self_, ok] {
      const absl::Status status = ok ? ToStatus([&] { return self->CallMethod(); }) : self->NoMessage();
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

  absl::Status CallMethod() {
    AggregationMethods::LargeRequest request{{}, read_time_, received_at_};
    request.message.Swap(&received_);
    return (service_.methods().*method_)(context_, std::move(request), response_);
  }

  grpc::ByteBuffer* const response_;
  const AggregationMethods::LargeMethod method_;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::PutChunk(Context* context, grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response, &AggregationMethods::PutChunk),
                           PutReactor::Wait::kBounded);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::SubmitBatch(Context* context,
                                                                           grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response, &AggregationMethods::SubmitBatch),
                           PutReactor::Wait::kBounded);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::PutResultRange(Context* context,
                                                                              grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response, &AggregationMethods::PutResultRange),
                           PutReactor::Wait::kBounded);
}

}  // namespace sparseagg::service
