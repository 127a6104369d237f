// What the handlers have in common whose calls are not answered at once.
#ifndef SPARSEAGG_SERVICE_RPC_CALL_REACTOR_H_
#define SPARSEAGG_SERVICE_RPC_CALL_REACTOR_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "service/admission/in_flight_memory.h"
#include "service/rpc/call_end.h"
#include "service/rpc/grpc_util.h"
#include "service/server_context.h"

namespace sparseagg::service {

// `Base` is gRPC's reactor.
template <typename Derived, typename Base>
class CallReactor : public Base {
 public:
  using Wait = InFlightMemory::Wait;

  // Until OnDone the reactor keeps itself, and so do the tasks that use it.
  void Keep(std::shared_ptr<Derived> self) { self_ = std::move(self); }
  void OnDone() override {
    canceller_->Done();
    self_.reset();
  }

  // For what the call takes besides messages, as long as it lasts. False: there is no room, and the call is finished.
  bool Hold(uint64_t bytes) {
    auto held = server_.in_flight.TryReserveForStream(bytes);
    if (held.has_value()) {
      held_ = *std::move(held);
      return true;
    }
    Finish(NoInFlightMemory(server_, context_));
    return false;
  }

  // In place of gRPC's. What the call holds it holds until the client has taken its status, and the answer, if it is a
  // unary one: from here on the client's time runs.
  void Finish(const grpc::Status& status) {
    held_.StartDeadline([canceller = canceller_] { canceller->Reclaim(); });
    Base::Finish(status);
  }

 protected:
  CallReactor(ServerContext* server, grpc::CallbackServerContext* context)
      : server_(*server), context_(*context), canceller_(std::make_shared<Canceller>(server, context)) {}

  ServerContext& server_;
  grpc::CallbackServerContext& context_;
  const std::shared_ptr<Canceller> canceller_;
  std::shared_ptr<Derived> self_;

 private:
  InFlightReservation held_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_CALL_REACTOR_H_
