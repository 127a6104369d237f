#include "service/grpc/grpc_unary_call.h"

#include "service/grpc/call_errors.h"

namespace sparseagg::service {

void GrpcUnaryCall::Send(const absl::Status& status) { grpc::ServerUnaryReactor::Finish(ToGrpc(status, context_)); }

std::function<void()> GrpcUnaryCall::ReclaimFunction() {
  return [canceller = canceller_] { canceller->Cancel(); };
}

}  // namespace sparseagg::service
