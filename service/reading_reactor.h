// What the handlers have in common that read messages by themselves.
#ifndef SPARSEAGG_SERVICE_READING_REACTOR_H_
#define SPARSEAGG_SERVICE_READING_REACTOR_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/call_end.h"
#include "service/grpc_service.h"
#include "service/grpc_util.h"
#include "service/memory_shares.h"

namespace sparseagg::service {

// Reads one message at a time, each when there is credit for it, and ends the call if its client is silent for too long
// or others need the memory. `Base` is gRPC's reactor. `Derived` has OnReadDone, where a step begins (FinishGate), and
//
//   void FinishWith(const absl::Status&);  // calls Finish; no step is under way
template <typename Derived, typename Base>
class ReadingReactor : public Base {
 public:
  enum class Wait {
    kForTurn,  // flow control holds the client back meanwhile
    kShortly,  // Transit::kShortWait; then the client is told to try again
  };

  // Until OnDone the reactor keeps itself, and so do the tasks that use it.
  static Derived* Start(std::shared_ptr<Derived> started, Wait wait) {
    Derived* const reactor = started.get();
    ReadingReactor& self = *reactor;
    self.self_ = std::move(started);
    if (auto held = self.machine().transit.TryHold(kStreamBytes)) {
      self.held_ = *std::move(held);
      self.ReadNext(wait);
    } else {
      self.Finish(NoRoomInTransit(self.machine(), self.context_));
    }
    return reactor;
  }

  void OnDone() override {
    canceller_->Done();
    self_.reset();
  }

 protected:
  ReadingReactor(AggregationService* service, grpc::CallbackServerContext* context)
      : service_(*service),
        context_(*context),
        canceller_(std::make_shared<Canceller>(&service->machine(), context)),
        idle_(&service->machine()) {}

  // Brings OnReadDone, with the message in received_ and what it takes in credit_.
  void ReadNext(Wait wait = Wait::kForTurn) {
    auto granted = [weak = std::weak_ptr<Derived>(self_)](Credit credit) {
      const std::shared_ptr<Derived> derived = weak.lock();
      if (derived == nullptr) return;
      ReadingReactor& self = *derived;
      if (!credit) return self.Finish(NoRoomInTransit(self.machine(), self.context_));
      if (!self.gate_.Begin()) return;
      self.credit_ = std::move(credit);
      self.idle_.Start(self.Interrupter());
      self.StartRead(&self.received_);
      self.EndStep();
    };
    auto call_in = [interrupt = Interrupter(), canceller = canceller_, &machine = machine()] {
      interrupt(CalledIn(machine));
      canceller->EndStuckConnection();  // where other calls on it leave no room for the status
    };
    const uint64_t bytes = MostMessageBytes(machine().limits);
    if (wait == Wait::kShortly) {
      machine().transit.AcquireSoon(bytes, std::move(granted), std::move(call_in));
    } else {
      machine().transit.Acquire(bytes, std::move(granted), std::move(call_in));
    }
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

  Machine& machine() { return service_.machine(); }

  AggregationService& service_;
  grpc::CallbackServerContext& context_;
  const std::shared_ptr<Canceller> canceller_;
  grpc::ByteBuffer received_;  // where gRPC reads to
  Credit credit_;              // for that
  FinishGate gate_;
  IdleTimer idle_;
  std::shared_ptr<Derived> self_;

 private:
  Credit held_;  // for the call itself
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_READING_REACTOR_H_
