// The methods of the service: how gRPC calls their handlers, and the check of the caller before each.
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/support/server_callback.h>

#include <array>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "service/base/to_status.h"
#include "service/rpc/call_context.h"
#include "service/rpc/call_errors.h"
#include "service/rpc/grpc_service.h"

namespace sparseagg::service {
namespace {

using grpc::internal::RpcMethod;

// A call that has ended before its handler: gRPC's reactor, with a status.
template <typename Reactor>
class RefusedCall final : public Reactor {
 public:
  explicit RefusedCall(const absl::Status& status) { this->Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

// Returns: the path of a method in HTTP/2. gRPC keeps the pointer, so that the text is never freed.
const char* PathOf(Method method) {
  static const std::array<std::string, kNumMethods>& paths = *[] {
    auto* made = new std::array<std::string, kNumMethods>;
    for (size_t i = 0; i < kNumMethods; ++i) {
      (*made)[i] = absl::StrCat("/", v1::UpdateChunk::descriptor()->file()->service(0)->full_name(), "/",
                                Name(static_cast<Method>(i)));
    }
    return made;
  }();
  return paths[static_cast<size_t>(method)].c_str();
}

}  // namespace

template <template <typename, typename> typename Handler, typename Reactor, typename... Args>
void AggregationService::Serve(Method method, RpcMethod::RpcType type,
                               Reactor* (AggregationService::*handler)(Context*, Args...)) {
  const auto checked = [this, method, handler](grpc::CallbackServerContext* context, Args... args) -> Reactor* {
    auto* const call = static_cast<CallContext*>(context);  // RegisterWith
    const absl::Status admitted = ToStatus([&] { return call->Admit(&server_, method); });
    return admitted.ok() ? (this->*handler)(call, args...) : new RefusedCall<Reactor>(admitted);
  };
  AddMethod(new grpc::internal::RpcServiceMethod(PathOf(method), type, nullptr));
  MarkMethodRawCallback(num_methods_++, new Handler<grpc::ByteBuffer, grpc::ByteBuffer>(checked));
}

AggregationService::AggregationService(ServerContext* server, Registry* registry)
    : server_(*server), registry_(*registry) {
  using grpc::internal::CallbackBidiHandler;
  using grpc::internal::CallbackClientStreamingHandler;
  using grpc::internal::CallbackServerStreamingHandler;
  using grpc::internal::CallbackUnaryHandler;
  const auto serve_unary = [this](Method method, auto handler) {
    Serve<CallbackUnaryHandler>(method, RpcMethod::NORMAL_RPC, handler);
  };
  serve_unary(Method::kGetServerInfo, &AggregationService::GetServerInfo);
  serve_unary(Method::kCreateRound, &AggregationService::CreateRound);
  serve_unary(Method::kGetRound, &AggregationService::GetRound);
  serve_unary(Method::kListRounds, &AggregationService::ListRounds);
  serve_unary(Method::kWaitRound, &AggregationService::WaitRound);
  serve_unary(Method::kCloseRound, &AggregationService::CloseRound);
  serve_unary(Method::kCancelRound, &AggregationService::CancelRound);
  serve_unary(Method::kDeleteRound, &AggregationService::DeleteRound);
  serve_unary(Method::kCommitSubmission, &AggregationService::CommitSubmission);
  serve_unary(Method::kGetUploadStatus, &AggregationService::GetUploadStatus);
  serve_unary(Method::kListSubmissions, &AggregationService::ListSubmissions);
  serve_unary(Method::kWithdrawSubmission, &AggregationService::WithdrawSubmission);
  serve_unary(Method::kGetResult, &AggregationService::GetResult);
  // Workaround: gRPC 1.51 receives all of a unary message before it calls the handler (grpc#29836). A client stream of
  // one message looks the same to clients, and its handler reads when in-flight memory is reserved. Remove with: a gRPC
  // whose unary handlers start the read themselves.
  Serve<CallbackClientStreamingHandler>(Method::kPutChunk, RpcMethod::CLIENT_STREAMING, &AggregationService::PutChunk);
  Serve<CallbackClientStreamingHandler>(Method::kSubmitUpdate, RpcMethod::CLIENT_STREAMING,
                                        &AggregationService::SubmitUpdate);
  Serve<CallbackServerStreamingHandler>(Method::kStreamResult, RpcMethod::SERVER_STREAMING,
                                        &AggregationService::StreamResult);
  Serve<CallbackBidiHandler>(Method::kAggregate, RpcMethod::BIDI_STREAMING, &AggregationService::Aggregate);
}

void AggregationService::RegisterWith(grpc::ServerBuilder& builder) {
  builder.SetContextAllocator(std::make_unique<CallContexts>());
  builder.RegisterService(this);
}

}  // namespace sparseagg::service
