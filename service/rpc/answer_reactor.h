// Unary calls whose response may be large.
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

// A unary call that makes its response only when in-flight memory for it is reserved. The reservation lasts until the
// client has read the response.
//
// Life cycle: see CallReactor; then exactly one of ReserveAndAnswer and Finish.
class AnswerReactor : public CallReactor<AnswerReactor, grpc::ServerUnaryReactor> {
 public:
  AnswerReactor(ServerContext* server, CallContext* context) : CallReactor(server, context) {}

  void OnCancel() override;

  // Reserves in-flight memory for a response of up to `bytes`, runs `answer`, and finishes the call with the status
  // that `answer` returns. `answer` runs before the return or on the worker pool, but not at all if the client has
  // cancelled the call: it would not learn of a change that `answer` made, such as a new round. A small response needs
  // no reservation. Errors: RESOURCE_EXHAUSTED with a suggested retry delay, if memory is short for longer than `wait`
  // allows.
  void ReserveAndAnswer(uint64_t bytes, Wait wait, std::function<absl::Status()> answer);

  // Whether a response is part of the memory that any call takes.
  static bool IsSmall(uint64_t bytes) { return bytes <= (16 << 10); }

 private:
  void Answer(const std::function<absl::Status()>& answer);

  InFlightReservation response_reservation_;
  std::atomic<bool> is_cancelled_ = false;
  std::atomic<uint64_t> ticket_ = 0;  // of InFlightMemory, while the call waits for the reservation
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_ANSWER_REACTOR_H_
