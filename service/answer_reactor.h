// Unary answers that may be large.
#ifndef SPARSEAGG_SERVICE_ANSWER_REACTOR_H_
#define SPARSEAGG_SERVICE_ANSWER_REACTOR_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "service/call_end.h"
#include "service/grpc_util.h"
#include "service/machine.h"

namespace sparseagg::service {

// The memory of the answer is counted, as of what is in transit, until the client has taken it.
class AnswerReactor : public grpc::ServerUnaryReactor {
 public:
  enum class Wait {
    kForTurn,
    kShortly,  // Transit::kShortWait; then the client is told to try again
  };

  AnswerReactor(Machine* machine, grpc::CallbackServerContext* context)
      : machine_(*machine), context_(*context), canceller_(std::make_shared<Canceller>(machine, context)) {}

  // Until OnDone the reactor keeps itself, and so do the tasks that use it.
  void Keep(std::shared_ptr<AnswerReactor> self) { self_ = std::move(self); }
  void OnDone() override;

  // For what the call takes besides, as long as it lasts. False: there is no room, and the call is finished.
  bool Hold(uint64_t bytes);
  // Finishes the call with what `answer` returns, which makes a message of up to `bytes`, when there is room for it: at
  // once, or on the pool. Few bytes are part of what any call takes.
  void AnswerWithin(uint64_t bytes, Wait wait, std::function<absl::Status()> answer);

  static bool IsSmall(uint64_t bytes) { return bytes <= (16 << 10); }

 protected:
  Machine& machine_;
  grpc::CallbackServerContext& context_;

 private:
  const std::shared_ptr<Canceller> canceller_;
  Credit held_;    // for the call itself
  Credit credit_;  // for the answer
  std::shared_ptr<AnswerReactor> self_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ANSWER_REACTOR_H_
