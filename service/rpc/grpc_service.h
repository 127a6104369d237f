// The gRPC service sparseagg.v1.Aggregation.
#ifndef SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_
#define SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/rounds/registry.h"
#include "service/rounds/round.h"
#include "service/server_context.h"
#include "sparseagg/v1/aggregation.grpc.pb.h"

namespace sparseagg::service {

class AnswerReactor;

// Serves the unary method PutChunk as a client stream of one message, which clients cannot tell apart. The handler
// ReceiveChunk gets the message unparsed, and reads it when in-flight memory for it is reserved.
//
// Workaround: gRPC 1.51 receives all of a unary message before it calls the handler (grpc#29836). Remove with: a gRPC
// whose unary handlers start the read themselves.
template <typename Base>
class WithStreamedPutChunk : public Base {
 public:
  WithStreamedPutChunk();
  virtual grpc::ServerReadReactor<grpc::ByteBuffer>* ReceiveChunk(grpc::CallbackServerContext*,
                                                                  grpc::ByteBuffer* response) = 0;
};

// Adds the methods to the generated service, each as a base class of the one before. Every method gets its message
// unparsed, for two reasons: the server bounds the memory of the parsed message before it parses (codec/parse.h), and
// it copies the keys and values of a chunk only once (codec/chunk_message.h).
template <template <typename> typename... Methods>
struct Compose;
template <template <typename> typename First, template <typename> typename... Rest>
struct Compose<First, Rest...> {
  using Type = First<typename Compose<Rest...>::Type>;
};
template <>
struct Compose<> {
  using Type = v1::Aggregation::Service;
};
using AggregationBase = Compose<
    v1::Aggregation::WithRawCallbackMethod_GetServerInfo, v1::Aggregation::WithRawCallbackMethod_CreateRound,
    v1::Aggregation::WithRawCallbackMethod_GetRound, v1::Aggregation::WithRawCallbackMethod_ListRounds,
    v1::Aggregation::WithRawCallbackMethod_WaitRound, v1::Aggregation::WithRawCallbackMethod_CloseRound,
    v1::Aggregation::WithRawCallbackMethod_CancelRound, v1::Aggregation::WithRawCallbackMethod_DeleteRound,
    WithStreamedPutChunk, v1::Aggregation::WithRawCallbackMethod_CommitSubmission,
    v1::Aggregation::WithRawCallbackMethod_GetUploadStatus, v1::Aggregation::WithRawCallbackMethod_ListSubmissions,
    v1::Aggregation::WithRawCallbackMethod_WithdrawSubmission, v1::Aggregation::WithRawCallbackMethod_SubmitUpdate,
    v1::Aggregation::WithRawCallbackMethod_GetResult, v1::Aggregation::WithRawCallbackMethod_StreamResult,
    v1::Aggregation::WithRawCallbackMethod_Aggregate>::Type;

// The handlers of the service. A handler decodes the request, calls the registry or a round, and encodes the response.
//
// gRPC calls a handler on one of its own threads, where it must not block: a handler answers at once only if the work
// is short, otherwise it posts the work to the worker pool. A handler returns a reactor (call_reactor.h), on which gRPC
// reports the rest of the call.
//
// Owned by the server, which outlives all calls. Borrows the server context and the registry. Thread-safe.
class AggregationService final : public AggregationBase {
 public:
  AggregationService(ServerContext* server, Registry* registry);

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  // grpc_rounds.cc
  Unary* GetServerInfo(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  Unary* CreateRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  Unary* GetRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  Unary* ListRounds(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  Unary* CloseRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  Unary* CancelRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  Unary* DeleteRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  // grpc_wait.cc
  Unary* WaitRound(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  // grpc_uploads.cc
  grpc::ServerReadReactor<grpc::ByteBuffer>* ReceiveChunk(Context*, grpc::ByteBuffer* response) override;
  Unary* CommitSubmission(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  Unary* GetUploadStatus(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  // grpc_submissions.cc
  Unary* ListSubmissions(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  Unary* WithdrawSubmission(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  // grpc_submit.cc
  grpc::ServerReadReactor<grpc::ByteBuffer>* SubmitUpdate(Context*, grpc::ByteBuffer* response) override;
  // grpc_results.cc
  Unary* GetResult(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamResult(Context*, const grpc::ByteBuffer*) override;
  // grpc_aggregate.cc
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Aggregate(Context*) override;

  // ---- for the reactors ----

  ServerContext& context() { return server_; }
  Registry& registry() { return registry_; }
  // Finds a round by its resource name, "rounds/{id}".
  // Errors: INVALID_ARGUMENT for another form of name, NOT_FOUND.
  absl::StatusOr<std::shared_ptr<Round>> FindRound(absl::string_view name) const;
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

  // The same for calls whose response may be large: runs `plan`, reserves in-flight memory and then runs the planned
  // answer. `plan` must not change anything: without memory the call is refused, and its client tries again.
  Unary* AnswerOnPool(Context* context, const grpc::ByteBuffer* message,
                      std::function<absl::StatusOr<PlannedAnswer>()> plan);
  Unary* AnswerAtOnce(Context* context, const std::function<absl::StatusOr<PlannedAnswer>()>& plan);
  // `held_bytes`: memory that `planned` uses while it waits for the reservation.
  static void RunPlanned(AnswerReactor& reactor, uint64_t held_bytes, absl::StatusOr<PlannedAnswer> planned);

  // Answers a call about one round: parses the request, finds the round, runs `act` and responds with the round.
  template <typename Request>
  Unary* AnswerWithRound(Context* context, const grpc::ByteBuffer* message, grpc::ByteBuffer* response,
                         std::function<absl::Status(const Request&, Round&)> act);
  // Answers a CloseRound with a list of clients.
  Unary* CloseWithOnly(Context* context, const grpc::ByteBuffer* message, grpc::ByteBuffer* response);
  // Serializes a page of rounds: as many as fit `max_bytes` and a result page, and at least one.
  absl::Status RespondWithList(int size, const std::string& token, uint64_t max_bytes,
                               grpc::ByteBuffer* response) const;

  ServerContext& server_;
  Registry& registry_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_
