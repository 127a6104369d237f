// The gRPC service sparseagg.v1.Aggregation.
#ifndef SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_
#define SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_

#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/auth/authorize.h"
#include "service/rounds/registry.h"
#include "service/rounds/round.h"
#include "service/rpc/call_context.h"
#include "service/server_context.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

class AnswerReactor;

// The handlers of the service. A handler decodes the request, calls the registry or a round, and encodes the response.
//
// gRPC calls a handler on one of its own threads, where it must not block: a handler answers at once only if the work
// is short, otherwise it posts the work to the worker pool. A handler returns a reactor (call_reactor.h), on which gRPC
// reports the rest of the call.
//
// A handler runs only for callers that may call its method (CallContext::Admit); grpc_methods.cc sees to it for all of
// them. Every method gets its message unparsed, for two reasons: the server bounds the memory of the parsed message
// before it parses (codec/parse.h), and it copies the keys and values of a chunk only once (codec/chunk_message.h).
//
// Owned by the server, which outlives all calls. Borrows the server context and the registry. Thread-safe.
class AggregationService final : public grpc::Service {
 public:
  AggregationService(ServerContext* server, Registry* registry);

  // Adds this service to a server.
  void RegisterWith(grpc::ServerBuilder& builder);

  using Context = CallContext;
  using Unary = grpc::ServerUnaryReactor;

  // grpc_rounds.cc
  Unary* GetServerInfo(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* CreateRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* GetRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* ListRounds(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* CloseRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* CancelRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* DeleteRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  // grpc_wait.cc
  Unary* WaitRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  // grpc_uploads.cc
  grpc::ServerReadReactor<grpc::ByteBuffer>* PutChunk(Context*, grpc::ByteBuffer* response);
  Unary* CommitSubmission(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* GetUploadStatus(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  // grpc_submissions.cc
  Unary* ListSubmissions(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* WithdrawSubmission(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  // grpc_submit.cc
  grpc::ServerReadReactor<grpc::ByteBuffer>* SubmitUpdate(Context*, grpc::ByteBuffer* response);
  // grpc_results.cc
  Unary* GetResult(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamResult(Context*, const grpc::ByteBuffer*);
  // grpc_aggregate.cc
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Aggregate(Context*);

  // ---- for the reactors ----

  ServerContext& context() { return server_; }
  Registry& registry() { return registry_; }
  // Finds a round of the caller's tenant by its resource name, "rounds/{id}".
  // Errors: INVALID_ARGUMENT for another form of name, NOT_FOUND.
  absl::StatusOr<std::shared_ptr<Round>> FindRound(const Context& context, absl::string_view name) const;
  // Errors: RESOURCE_EXHAUSTED if a message of `bytes` exceeds max_message_bytes.
  absl::Status CheckMessageSize(uint64_t bytes) const;
  // Returns: the size of a result page for a request of `asked` bytes (0: the default), within max_page_bytes.
  uint64_t PageBytes(uint64_t asked) const;
  // Encodes the spec and the present figures of a round.
  void Encode(const Round& round, v1::Round* wire) const;
  // Serializes what Encode makes, as the response of a call.
  absl::Status Respond(const Round& round, grpc::ByteBuffer* response) const;

 private:
  // A checked call whose response needs a reservation of in-flight memory.
  struct PlannedAnswer {
    uint64_t max_bytes;                    // of the response
    std::function<absl::Status()> answer;  // does the work of the call, and serializes the response
  };

  // Runs `work` and finishes the call with the status that it returns: on the worker pool, or before the return, for
  // work that is short.
  Unary* OnPool(Context* context, std::function<absl::Status()> work);
  Unary* AtOnce(Context* context, const std::function<absl::Status()>& work);
  // On the pool if the work waits for a disk, else at once.
  Unary* OnPoolIfStored(Context* context, std::function<absl::Status()> work);

  // The same for calls whose response may be large: runs `plan`, reserves in-flight memory and then runs the planned
  // answer. `plan` must not change anything: without memory the call is refused, and its client tries again.
  Unary* AnswerOnPool(Context* context, const grpc::ByteBuffer* message,
                      std::function<absl::StatusOr<PlannedAnswer>()> plan);
  Unary* AnswerAtOnce(Context* context, const std::function<absl::StatusOr<PlannedAnswer>()>& plan);
  // `held_bytes`: memory that `planned` uses while it waits for the reservation.
  static void RunPlanned(AnswerReactor& reactor, uint64_t held_bytes, absl::StatusOr<PlannedAnswer> planned);

  // Answers a call about one round: parses the request, finds the round, runs `act` and responds with the round.
  // `changes`: `act` changes the round, and waits for the disk if there is a store.
  template <typename Request>
  Unary* AnswerWithRound(Context* context, const grpc::ByteBuffer* message, grpc::ByteBuffer* response, bool changes,
                         std::function<absl::Status(const Request&, Round&)> act);
  // Answers a CloseRound with a list of clients.
  Unary* CloseWithOnly(Context* context, const grpc::ByteBuffer* message, grpc::ByteBuffer* response);
  // Serializes a page of rounds: as many as fit `max_bytes` and a result page, and at least one.
  absl::Status RespondWithList(const Context& context, int size, const std::string& token, uint64_t max_bytes,
                               grpc::ByteBuffer* response) const;

  // Adds a method to the service (grpc_methods.cc). `Handler`: gRPC's adapter for methods of `type`.
  template <template <typename, typename> typename Handler, typename Reactor, typename... Args>
  void Serve(Method method, grpc::internal::RpcMethod::RpcType type,
             Reactor* (AggregationService::*handler)(Context*, Args...));

  ServerContext& server_;
  Registry& registry_;
  int num_methods_ = 0;  // served
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_
