// The base of the reactors that read messages from a client.
#ifndef SPARSEAGG_SERVICE_GRPC_READING_REACTOR_H_
#define SPARSEAGG_SERVICE_GRPC_READING_REACTOR_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/admission/memory_shares.h"
#include "service/grpc/call_errors.h"
#include "service/grpc/call_reactor.h"
#include "service/grpc/finish_arbiter.h"
#include "service/grpc/grpc_service.h"
#include "service/grpc/read_timeout.h"
#include "service/handlers/call_errors.h"

namespace sparseagg::service {

// A call that reads one message at a time. Each read begins when in-flight memory for the largest message is reserved;
// until then gRPC's flow control holds the client back. The call is aborted if a read takes longer than upload_timeout,
// or if other calls need the memory of a slow read.
//
// Life cycle: see CallReactor. The handler calls Start. Derived::OnReadDone(ok) calls EndRead first, which begins a
// step of FinishArbiter. It handles the message there or on the worker pool, and calls ReadNext if it wants another
// message; before that it moves received_ and reservation_ out. EndStep ends the step, also after Complete.
//
// `Base` is gRPC's reactor. `Derived` has OnReadDone, and
//
//   // Releases what the call uses, and calls Finish. Called once, when no other step is running.
//   void FinishWith(const absl::Status&);
template <typename Derived, typename Base>
class ReadingReactor : public CallReactor<Derived, Base> {
 public:
  using Wait = InFlightMemory::Wait;

  // Keeps the reactor alive and begins the first read.
  // Returns: the reactor, for gRPC.
  static Derived* Start(std::shared_ptr<Derived> started, Wait wait) {
    Derived* const reactor = started.get();
    ReadingReactor& self = *reactor;
    self.KeepAlive(std::move(started));
    if (self.ReserveForCall(kStreamBytes)) self.ReadNext(wait);
    return reactor;
  }

 protected:
  using CallReactor<Derived, Base>::canceller_;
  using CallReactor<Derived, Base>::context_;
  using CallReactor<Derived, Base>::self_;

  ReadingReactor(AggregationService* service, CallContext* context)
      : CallReactor<Derived, Base>(&service->context(), context), service_(*service), timeout_(&service->context()) {}

  // Reads the next message into received_, as soon as memory for it is reserved; gRPC then calls OnReadDone. A call
  // that flow control cannot hold back (Wait::kBounded) is finished with RESOURCE_EXHAUSTED after a few seconds.
  void ReadNext(Wait wait = Wait::kUnbounded) {
    auto granted = [weak = std::weak_ptr<Derived>(self_)](InFlightReservation reservation) {
      const std::shared_ptr<Derived> derived = weak.lock();
      if (derived == nullptr) return;
      ReadingReactor& self = *derived;
      if (!reservation) return self.Finish(ToGrpc(NoInFlightMemory(self.context()), self.context_));
      if (!self.arbiter_.BeginSteps()) return;
      self.reservation_ = std::move(reservation);
      self.timeout_.Start(self.AbortCallback());
      self.StartRead(&self.received_);
      self.EndStep();
    };
    auto reclaim = [abort = AbortCallback(), canceller = canceller_, &server = context()] {
      abort(ReclaimedError(server));
      // Pages of other calls on the same connection may leave no room for the status.
      canceller->EndStuckConnection();
    };
    context().in_flight.Acquire(MaxBufferedMessageBytes(context().limits), std::move(granted), std::move(reclaim), wait,
                                canceller_->peer());
  }

  // For OnReadDone: ends the read, begins `steps` steps, and gives back the memory that the message does not need.
  // Returns: false if the call is ending; OnReadDone must then return.
  bool EndRead(int steps = 1) {
    read_time_ = timeout_.Stop();
    if (!arbiter_.BeginSteps(steps)) return false;
    reservation_.ShrinkTo(received_.Length());
    received_at_ = context().clock.Monotonic();
    return true;
  }

  // Sets the outcome of the call. Requires: the caller is in a step, which it ends with EndStep afterwards. The call is
  // finished here, or by the EndStep of the last other step.
  void Complete(const absl::Status& status) {
    if (arbiter_.Complete(status)) static_cast<Derived*>(this)->FinishWith(status);
  }

  void EndStep() {
    if (const auto outcome = arbiter_.EndStep()) static_cast<Derived*>(this)->FinishWith(*outcome);
  }

  // Returns: a function that ends the call with a status, from any thread and at any time, even after the call.
  std::function<void(absl::Status)> AbortCallback() {
    return [weak = std::weak_ptr<Derived>(self_)](const absl::Status& status) {
      const std::shared_ptr<Derived> self = weak.lock();
      if (self != nullptr && self->arbiter_.Abort(status)) self->FinishWith(status);
    };
  }

  ServerContext& context() const { return this->server_; }

  AggregationService& service_;
  grpc::ByteBuffer received_;                          // the message of the current read
  InFlightReservation reservation_;                    // for received_
  absl::Duration read_time_ = absl::ZeroDuration();    // how long the last read took
  absl::Duration received_at_ = absl::ZeroDuration();  // when the last read ended: Clock::Monotonic
  FinishArbiter arbiter_;
  ReadTimeout timeout_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_READING_REACTOR_H_
