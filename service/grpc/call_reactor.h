// The base of all reactors that outlive the handler which made them.
#ifndef SPARSEAGG_SERVICE_GRPC_CALL_REACTOR_H_
#define SPARSEAGG_SERVICE_GRPC_CALL_REACTOR_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "service/admission/in_flight_memory.h"
#include "service/grpc/call_canceller.h"
#include "service/grpc/call_context.h"
#include "service/grpc/call_errors.h"
#include "service/handlers/transfer.h"
#include "service/server_context.h"

namespace sparseagg::service {

// One call in gRPC's callback API: the object on which gRPC reports what happens to the call.
//
// Owned by itself from KeepAlive to OnDone, and by every task and callback that uses it. Order of calls:
//
//   auto self = std::make_shared<Derived>(...);    // the handler, on a gRPC thread
//   self->KeepAlive(self);
//   self->ReserveForCall(bytes);                   // the handler, or a task; may finish the call
//   return self.get();                             // the handler returns the reactor to gRPC
//   Derived's reads, work and writes               // OnReadDone, OnWriteDone: gRPC threads; work: the worker pool
//   Finish(status);                                // exactly once, from any thread
//   OnCancel();                                    // gRPC thread; at any time before OnDone, or never
//   OnDone();                                      // gRPC thread; the last call, always
//
// gRPC threads must not block: other calls share them. Members that gRPC calls only take short locks and post tasks.
// The exception is a short decode (see grpc_submit.cc).
//
// A call ends when
//   - its handler has a response or an error;
//   - its client cancels it, reaches its deadline or disconnects: gRPC calls OnCancel, and reads and writes fail;
//   - its client sends nothing for upload_timeout (ReadTimeout);
//   - it is slow while others wait for its in-flight memory: InFlightMemory runs the reclaim callback of a reservation;
//   - the server shuts down: gRPC cancels the calls that are left after the grace period.
//
// `Base` is gRPC's reactor. Derived classes say which of their members are safe to call from several threads.
template <typename Derived, typename Base>
class CallReactor : public Base {
 public:
  using Wait = InFlightMemory::Wait;

  // Keeps the reactor alive until OnDone. Call it before anything else.
  void KeepAlive(std::shared_ptr<Derived> self) { self_ = std::move(self); }

  void OnDone() override {
    canceller_->Detach();
    self_.reset();
  }

  // Reserves in-flight memory that the call needs besides its messages, until the call is over.
  // Returns: false for lack of memory, or of permits of the tenant; the call is then finished with RESOURCE_EXHAUSTED
  // and a suggested retry delay.
  bool ReserveForCall(uint64_t bytes) {
    absl::StatusOr<Transfer> transfer = BeginTransfer(server_, context_, bytes);
    if (!transfer.ok()) {
      Finish(ToGrpc(transfer.status(), context_));
      return false;
    }
    transfer_ = *std::move(transfer);
    return true;
  }

  // Finishes the call, in place of gRPC's Finish. From now on the client has to read the status, and the response of a
  // unary call, in time: the memory of ReserveForCall is reclaimed from a slow client by cancelling the call.
  void Finish(const grpc::Status& status) {
    transfer_.reservation.StartDeadline([canceller = canceller_] { canceller->Cancel(); });
    Base::Finish(status);
  }

 protected:
  CallReactor(ServerContext* server, CallContext* context)
      : server_(*server), context_(*context), canceller_(std::make_shared<CallCanceller>(server, context)) {}

  ServerContext& server_;
  CallContext& context_;
  const std::shared_ptr<CallCanceller> canceller_;
  std::shared_ptr<Derived> self_;

 private:
  Transfer transfer_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_CALL_REACTOR_H_
