// A unary call in gRPC's callback API.
#ifndef SPARSEAGG_SERVICE_GRPC_GRPC_UNARY_CALL_H_
#define SPARSEAGG_SERVICE_GRPC_GRPC_UNARY_CALL_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>

#include "service/grpc/call_canceller.h"
#include "service/grpc/call_context.h"
#include "service/handlers/unary_call.h"
#include "service/server_context.h"

namespace sparseagg::service {

// The reactor of a unary call. Owned by itself until OnDone, and by the tasks of the method.
class GrpcUnaryCall final : public UnaryCall, public grpc::ServerUnaryReactor {
 public:
  GrpcUnaryCall(ServerContext* server, CallContext* context, const grpc::ByteBuffer* request,
                grpc::ByteBuffer* response)
      : UnaryCall(server),
        context_(*context),
        request_(*request),
        response_(response),
        canceller_(std::make_shared<CallCanceller>(server, context)) {}

  // Keeps the call alive until OnDone. Call it before the method.
  void KeepAlive(std::shared_ptr<GrpcUnaryCall> self) { self_ = std::move(self); }

  const Caller& caller() const override { return context_; }
  const grpc::ByteBuffer& request() const override { return request_; }
  grpc::ByteBuffer* response() override { return response_; }

  void OnCancel() override { UnaryCall::Cancel(); }
  void OnDone() override {
    canceller_->Detach();
    self_.reset();
  }

 private:
  void Send(const absl::Status& status) override;
  std::function<void()> ReclaimFunction() override;

  CallContext& context_;
  const grpc::ByteBuffer& request_;
  grpc::ByteBuffer* const response_;
  const std::shared_ptr<CallCanceller> canceller_;
  std::shared_ptr<GrpcUnaryCall> self_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_GRPC_UNARY_CALL_H_
