// The gRPC service sparseagg.v1.Aggregation.
#ifndef SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_
#define SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/rounds/registry.h"
#include "service/rounds/round.h"
#include "service/rpc/api_service.h"
#include "service/server_context.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

// The handlers of the service. A handler decodes the request, calls the registry or a round, and encodes the response.
//
// Owned by the server, which outlives all calls. Borrows the server context and the registry. Thread-safe.
class AggregationService final : public ApiService {
 public:
  AggregationService(ServerContext* server, Registry* registry);

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

  Registry& registry() { return registry_; }
  // Finds a round of the caller's tenant by its resource name, "rounds/{id}".
  // Errors: INVALID_ARGUMENT for another form of name, NOT_FOUND.
  absl::StatusOr<std::shared_ptr<Round>> FindRound(const Context& context, absl::string_view name) const;
  // Encodes the spec and the present figures of a round.
  void Encode(const Round& round, v1::Round* wire) const;
  // Serializes what Encode makes, as the response of a call.
  absl::Status Respond(const Round& round, grpc::ByteBuffer* response) const;

 private:
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

  Registry& registry_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_
