// The base of all reactors that outlive the handler which made them, and what reactors that read or write pages use.
#ifndef SPARSEAGG_SERVICE_GRPC_REACTORS_H_
#define SPARSEAGG_SERVICE_GRPC_REACTORS_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "host/base/status_macros.h"
#include "service/admission/in_flight_memory.h"
#include "service/admission/memory_shares.h"
#include "service/grpc/byte_buffers.h"
#include "service/grpc/call_context.h"
#include "service/grpc/grpc_service.h"
#include "service/handlers/caller.h"
#include "service/handlers/page_stream.h"
#include "service/server_context.h"

namespace sparseagg::service {

// Chooses the one thread that calls Finish() of a stream, and the status it passes.
//
// A reactor works in steps. A step handles one completed operation, mostly on the worker pool, and may start the next
// operation. gRPC aborts the process on a second Finish(), and on an operation that starts after Finish(). So Finish()
// has to wait until no step is running. Meanwhile other threads may abort the stream: the timer, a reclaim, the round.
//
// Owned by the reactor. Order of calls, for each completed operation:
//
//   if (!arbiter.BeginSteps()) return;                                // the stream is ending
//   ...                                                               // may start the next operation
//   if (is_over && arbiter.Complete(status)) Finish(status);          // the step knows the outcome
//   if (const auto outcome = arbiter.EndStep()) Finish(*outcome);     // an outcome came while other steps ran
//
// and from any other thread: if (arbiter.Abort(status)) Finish(status);
//
// Thread-safe.
class FinishArbiter {
 public:
  // Counts `steps` as running.
  // Returns: false if the stream is finished or about to be; the caller must then do nothing.
  bool BeginSteps(int steps = 1) ABSL_LOCKS_EXCLUDED(mu_);

  // Counts one step less as running.
  // Returns: the status with which the caller must finish the stream, if the caller ended the last step of a stream
  // that has an outcome.
  std::optional<absl::Status> EndStep() ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the outcome of the stream; no step can begin afterwards. Replaces the status of an earlier Abort.
  // Requires: the caller is in a step.
  // Returns: true if the caller must finish the stream with `status`. False if another step still runs, whose EndStep
  // will return the outcome, or if another thread has completed the stream.
  bool Complete(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the outcome of the stream, unless it is complete or finished; no step can begin afterwards. A step that is
  // running may still replace the outcome with Complete.
  // Returns: true if no step is running and the caller must finish the stream with `status`.
  bool Abort(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;
  int running_steps_ ABSL_GUARDED_BY(mu_) = 0;
  bool completed_ ABSL_GUARDED_BY(mu_) = false;  // Abort has no effect any more
  bool finished_ ABSL_GUARDED_BY(mu_) = false;   // a caller was told to finish the stream
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mu_);
};

// Measures each read of a stream, and reports a read that takes longer than upload_timeout.
//
// Owned by the reactor. Order of calls for each read: Start, then Stop. Not thread-safe: a stream has one read at a
// time.
class ReadTimeout {
 public:
  explicit ReadTimeout(ServerContext* server) : server_(*server) {}

  // Starts the time limit. `on_timeout` gets DEADLINE_EXCEEDED, on the timer's thread, and must not block.
  void Start(std::function<void(absl::Status)> on_timeout);

  // Ends the time limit. `on_timeout` may be running.
  // Returns: how long the read took.
  absl::Duration Stop();

 private:
  ServerContext& server_;
  Timer::Id timer_ = 0;
  absl::Duration started_at_ = absl::ZeroDuration();  // Clock::Monotonic
};

// One call in gRPC's callback API: the object on which gRPC reports what happens to the call.
//
// Owned by itself from KeepAlive to OnDone, and by every task and callback that uses it. Order of calls:
//
//   auto self = std::make_shared<Derived>(...);    // the handler, on a gRPC thread
//   return Start(self, wait);                      // or StartWriting; the handler returns the reactor to gRPC
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
// A call that reads handles one message at a time. Each read begins when in-flight memory for the largest message is
// reserved; until then gRPC's flow control holds the client back. Derived::OnReadDone(ok) calls EndRead first, which
// begins a step of FinishArbiter. It handles the message there or on the worker pool, and calls ReadNext if it wants
// another message; before that it moves received_ and reservation_ out. EndStep ends the step, also after Complete.
//
// `Base` is gRPC's reactor. Derived classes say which of their members are safe to call from several threads. Those
// that read have OnReadDone, and
//
//   // Releases what the call uses, and calls Finish. Called once, when no other step is running.
//   void FinishWith(const absl::Status&);
template <typename Derived, typename Base>
class CallReactor : public Base {
 public:
  using Wait = InFlightMemory::Wait;

  // Begins the first read of a call that reads. Returns: the reactor, for gRPC, which keeps it alive until OnDone.
  static Derived* Start(const std::shared_ptr<Derived>& derived, Wait wait) {
    CallReactor& self = *derived;
    self.self_ = derived;
    if (self.ReserveForCall()) self.ReadNext(wait);
    return derived.get();
  }

  // Begins a call that has one message and writes: runs Derived::Open on the worker pool, and WriteNext if it succeeds.
  // Returns: as Start.
  static Derived* StartWriting(const std::shared_ptr<Derived>& derived, const grpc::ByteBuffer* message) {
    CallReactor& self = *derived;
    self.self_ = derived;
    if (!self.ReserveForCall()) return derived.get();
    self.context().pool.Post([derived, &self, message] {
      const absl::Status status = ToStatus([&] { return derived->Open(ToCord(*message)); });
      status.ok() ? derived->WriteNext() : derived->Finish(ToGrpc(status, self.context_));
    });
    return derived.get();
  }

  void OnDone() override {
    canceller_->Detach();
    self_.reset();
  }

  // Finishes the call, in place of gRPC's Finish. From now on the client has to read the status, and the response of a
  // unary call, in time: the memory of the call is reclaimed from a slow client by cancelling the call.
  void Finish(const grpc::Status& status) {
    transfer_.reservation.StartDeadline([canceller = canceller_] { canceller->Cancel(); });
    Base::Finish(status);
  }

 protected:
  CallReactor(AggregationService* service, CallContext* context)
      : service_(*service),
        context_(*context),
        canceller_(std::make_shared<CallCanceller>(&service->context(), context)),
        timeout_(&service->context()) {}

  // Reads the next message into received_, as soon as memory for it is reserved; gRPC then calls OnReadDone. A call
  // that flow control cannot hold back (Wait::kBounded) is finished with RESOURCE_EXHAUSTED after a few seconds.
  void ReadNext(Wait wait = Wait::kUnbounded) {
    auto granted = [weak = std::weak_ptr<Derived>(self_)](InFlightReservation reservation) {
      const std::shared_ptr<Derived> derived = weak.lock();
      if (derived == nullptr) return;
      CallReactor& self = *derived;
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

  // Returns: the message that was read. gRPC's buffer is then empty.
  absl::Cord TakeMessage() {
    absl::Cord message = ToCord(received_);
    received_.Clear();
    return message;
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

  ServerContext& context() const { return service_.context(); }

  AggregationService& service_;
  CallContext& context_;
  const std::shared_ptr<CallCanceller> canceller_;
  std::shared_ptr<Derived> self_;
  grpc::ByteBuffer received_;                          // the message of the current read
  InFlightReservation reservation_;                    // for received_, or for the page that is written
  absl::Duration read_time_ = absl::ZeroDuration();    // how long the last read took
  absl::Duration received_at_ = absl::ZeroDuration();  // when the last read ended: Clock::Monotonic
  FinishArbiter arbiter_;

 private:
  // Reserves in-flight memory that the call needs besides its messages, until the call is over.
  // Returns: false for lack of memory, or of permits of the tenant; the call is then finished with RESOURCE_EXHAUSTED
  // and a suggested retry delay.
  bool ReserveForCall() {
    absl::StatusOr<Transfer> transfer = BeginTransfer(context(), context_, kStreamBytes);
    if (!transfer.ok()) {
      Finish(ToGrpc(transfer.status(), context_));
      return false;
    }
    transfer_ = *std::move(transfer);
    return true;
  }

  ReadTimeout timeout_;
  Transfer transfer_;
};

// Serializes the pages of a stream, one at a time, each when in-flight memory for it is reserved. So a slow reader
// costs one page of memory. If other calls wait for that memory, the call of a slow reader is cancelled.
//
// Owned by the reactor. Order of calls: Open; then for each page Prepare, gRPC's StartWrite, and OnWritten from
// OnWriteDone. Not thread-safe: one page is prepared or written at a time.
class PageWriter {
 public:
  // Gets the serialized page, null after the last page, or an error.
  using OnPrepared = std::function<void(absl::StatusOr<const grpc::ByteBuffer*>)>;

  PageWriter(ServerContext* server, std::shared_ptr<CallCanceller> canceller)
      : server_(*server), canceller_(std::move(canceller)) {}

  // `complete_first`, if not null, adds to the first page.
  void Open(PageStream pages, std::function<void(v1::ResultPage*)> complete_first);

  // Makes the next page as soon as memory for it is reserved, and calls `on_prepared`, before the return or on the
  // worker pool. The page stays valid until OnWritten. `on_prepared` must keep the owner of this writer alive.
  void Prepare(OnPrepared on_prepared);

  // The write of the page has ended: releases the memory of the page.
  void OnWritten();

 private:
  absl::Status MakePage();

  ServerContext& server_;
  const std::shared_ptr<CallCanceller> canceller_;
  std::optional<PageStream> pages_;
  std::function<void(v1::ResultPage*)> complete_first_;
  InFlightReservation reservation_;
  grpc::ByteBuffer page_;
  absl::Duration write_began_ = absl::ZeroDuration();  // Clock::Monotonic
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_REACTORS_H_
