// What the handlers have in common that read messages by themselves.
#ifndef SPARSEAGG_SERVICE_RPC_READING_REACTOR_H_
#define SPARSEAGG_SERVICE_RPC_READING_REACTOR_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/admission/memory_shares.h"
#include "service/rpc/call_end.h"
#include "service/rpc/call_reactor.h"
#include "service/rpc/grpc_service.h"
#include "service/rpc/grpc_util.h"

namespace sparseagg::service {

// Reads one message at a time, each when there is credit for it, and ends the call if its client is silent for too long
// or others need the memory. `Base` is gRPC's reactor. `Derived` has OnReadDone, where a step begins (FinishGate), and
//
//   void FinishWith(const absl::Status&);  // calls Finish; no step is under way
template <typename Derived, typename Base>
class ReadingReactor : public CallReactor<Derived, Base> {
 public:
  using Wait = InFlightMemory::Wait;

  static Derived* Start(std::shared_ptr<Derived> started, Wait wait) {
    Derived* const reactor = started.get();
    ReadingReactor& self = *reactor;
    self.Keep(std::move(started));
    if (self.Hold(kStreamBytes)) self.ReadNext(wait);
    return reactor;
  }

 protected:
  using CallReactor<Derived, Base>::canceller_;
  using CallReactor<Derived, Base>::context_;
  using CallReactor<Derived, Base>::self_;

  ReadingReactor(AggregationService* service, grpc::CallbackServerContext* context)
      : CallReactor<Derived, Base>(&service->context(), context), service_(*service), idle_(&service->context()) {}

  // Brings OnReadDone, with the message in received_ and what it takes in reservation_. Meanwhile flow control holds
  // the client back; who waits only shortly is then told to try again.
  void ReadNext(Wait wait = Wait::kUnbounded) {
    auto granted = [weak = std::weak_ptr<Derived>(self_)](InFlightReservation credit) {
      const std::shared_ptr<Derived> derived = weak.lock();
      if (derived == nullptr) return;
      ReadingReactor& self = *derived;
      if (!credit) return self.Finish(NoInFlightMemory(self.context(), self.context_));
      if (!self.gate_.Begin()) return;
      self.reservation_ = std::move(credit);
      self.idle_.Start(self.Interrupter());
      self.StartRead(&self.received_);
      self.EndStep();
    };
    auto reclaim = [interrupt = Interrupter(), canceller = canceller_, &server = context()] {
      interrupt(Reclaimed(server));
      canceller->EndStuckConnection();  // where other calls on it leave no room for the status
    };
    context().in_flight.Acquire(MaxBufferedMessageBytes(context().limits), std::move(granted), std::move(reclaim),
                                wait);
  }

  // From a step: the call is to end with `status`.
  void Conclude(const absl::Status& status) {
    if (gate_.Conclude(status)) static_cast<Derived*>(this)->FinishWith(status);
  }

  void EndStep() {
    if (const auto outcome = gate_.End()) static_cast<Derived*>(this)->FinishWith(*outcome);
  }

  // Ends the call from outside.
  std::function<void(absl::Status)> Interrupter() {
    return [weak = std::weak_ptr<Derived>(self_)](const absl::Status& status) {
      const std::shared_ptr<Derived> self = weak.lock();
      if (self != nullptr && self->gate_.Interrupt(status)) self->FinishWith(status);
    };
  }

  ServerContext& context() { return this->server_; }

  AggregationService& service_;
  grpc::ByteBuffer received_;        // where gRPC reads to
  InFlightReservation reservation_;  // for that
  FinishGate gate_;
  IdleTimer idle_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_READING_REACTOR_H_
