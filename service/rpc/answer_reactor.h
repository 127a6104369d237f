// Unary answers that may be large.
#ifndef SPARSEAGG_SERVICE_RPC_ANSWER_REACTOR_H_
#define SPARSEAGG_SERVICE_RPC_ANSWER_REACTOR_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "service/rpc/call_reactor.h"
#include "service/server_context.h"

namespace sparseagg::service {

// The memory of the answer is counted, as of what is in transit, until the client has taken it.
class AnswerReactor : public CallReactor<AnswerReactor, grpc::ServerUnaryReactor> {
 public:
  AnswerReactor(ServerContext* server, grpc::CallbackServerContext* context) : CallReactor(server, context) {}

  void OnCancel() override;

  // Finishes the call with what `answer` returns, which makes a message of up to `bytes`, when there is room for it: at
  // once, or on the pool; unless its client has gone by then. Few bytes are part of what any call takes.
  void AnswerWithin(uint64_t bytes, Wait wait, std::function<absl::Status()> answer);

  static bool IsSmall(uint64_t bytes) { return bytes <= (16 << 10); }

 private:
  void Answer(const std::function<absl::Status()>& answer);

  InFlightReservation reservation_;  // for the answer
  std::atomic<bool> is_cancelled_ = false;
  std::atomic<uint64_t> place_ = 0;  // in the line for that
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_ANSWER_REACTOR_H_
