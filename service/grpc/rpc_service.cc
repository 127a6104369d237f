#include "service/grpc/rpc_service.h"

#include <array>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "service/grpc/grpc_unary_call.h"

namespace sparseagg::service {

void RpcService::ServeUnary(const MethodEntry& method) {
  using Start = std::function<grpc::ServerUnaryReactor*(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer*)>;
  const Start start = [this, handler = method.handler](Context* context, const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
    auto call = std::make_shared<GrpcUnaryCall>(&server_, context, request, response);
    call->KeepAlive(call);
    handler(call);
    return call.get();
  };
  ServeWith<grpc::internal::CallbackUnaryHandler>(method.method, grpc::internal::RpcMethod::NORMAL_RPC, start);
}

const char* RpcService::PathOf(Method method) {
  static const std::array<std::string, kNumMethods>& paths = *[] {
    auto* made = new std::array<std::string, kNumMethods>;
    for (size_t i = 0; i < kNumMethods; ++i) {
      const auto each = static_cast<Method>(i);
      (*made)[i] = absl::StrCat("/", ServiceName(each), "/", Name(each));
    }
    return made;
  }();
  return paths[static_cast<size_t>(method)].c_str();
}

}  // namespace sparseagg::service
