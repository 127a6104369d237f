// sparseagg.v1.Aggregation over gRPC: handlers decode, delegate to the registry and its rounds, and encode.
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

// A unary method whose message is received when the server starts to read it, as that of a stream is, and comes
// unparsed: PutChunk, as ReceiveChunk. The generated handlers are called when all of it is in memory. Clients see no
// difference.
template <typename Base>
class PutChunkReadByUs : public Base {
 public:
  PutChunkReadByUs();
  virtual grpc::ServerReadReactor<grpc::ByteBuffer>* ReceiveChunk(grpc::CallbackServerContext*,
                                                                  grpc::ByteBuffer* response) = 0;
};

// All methods get their messages unparsed: what they become is bounded before they are parsed, and most of what is in
// chunks is to be copied once only (codec/chunk_message.h).
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
using AggregationBase =
    Compose<v1::Aggregation::WithRawCallbackMethod_GetServerInfo, v1::Aggregation::WithRawCallbackMethod_CreateRound,
            v1::Aggregation::WithRawCallbackMethod_GetRound, v1::Aggregation::WithRawCallbackMethod_ListRounds,
            v1::Aggregation::WithRawCallbackMethod_WaitRound, v1::Aggregation::WithRawCallbackMethod_CloseRound,
            v1::Aggregation::WithRawCallbackMethod_CancelRound, v1::Aggregation::WithRawCallbackMethod_DeleteRound,
            PutChunkReadByUs, v1::Aggregation::WithRawCallbackMethod_CommitSubmission,
            v1::Aggregation::WithRawCallbackMethod_GetUploadStatus, v1::Aggregation::WithRawCallbackMethod_SubmitUpdate,
            v1::Aggregation::WithRawCallbackMethod_GetResult, v1::Aggregation::WithRawCallbackMethod_StreamResult,
            v1::Aggregation::WithRawCallbackMethod_Aggregate>::Type;

// Reactions of gRPC never block: what takes time runs on the machine's pool. Thread-safe.
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
  // grpc_submit.cc
  grpc::ServerReadReactor<grpc::ByteBuffer>* SubmitUpdate(Context*, grpc::ByteBuffer* response) override;
  // grpc_results.cc
  Unary* GetResult(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamResult(Context*, const grpc::ByteBuffer*) override;
  // grpc_aggregate.cc
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Aggregate(Context*) override;

  // For the reactors of the streams.
  ServerContext& context() { return server_; }
  Registry& registry() { return registry_; }
  absl::StatusOr<std::shared_ptr<Round>> FindRound(absl::string_view name) const;
  // RESOURCE_EXHAUSTED: the message is larger than max_message_bytes.
  absl::Status CheckMessageSize(uint64_t bytes) const;
  // Bytes of a result page: what was asked for, within the server's limit.
  uint64_t PageBytes(uint64_t asked) const;
  void Encode(const Round& round, v1::Round* wire) const;
  absl::Status Answer(const Round& round, grpc::ByteBuffer* response) const;

 private:
  // An answer about rounds that can be made: when there is room for it.
  struct Answerable {
    uint64_t most_bytes;
    std::function<absl::Status()> make;
  };

  // Finishes the call with what `work` returns; on the pool, or at once where it is short.
  Unary* OnPool(Context* context, std::function<absl::Status()> work);
  Unary* AtOnce(Context* context, const std::function<absl::Status()>& work);
  // The same, where the answer may be large. `work` changes nothing yet: a call for whose answer there is no room is
  // refused, and tried again.
  Unary* AnswerOnPool(Context* context, const grpc::ByteBuffer* message,
                      std::function<absl::StatusOr<Answerable>()> work);
  Unary* AnswerAtOnce(Context* context, const std::function<absl::StatusOr<Answerable>()>& work);
  // `waiting_bytes`: what `answerable` has of its own.
  static void AnswerWith(AnswerReactor& reactor, uint64_t waiting_bytes, absl::StatusOr<Answerable> answerable);
  absl::Status List(int size, const std::string& token, uint64_t most_bytes, grpc::ByteBuffer* response) const;

  ServerContext& server_;
  Registry& registry_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_GRPC_SERVICE_H_
