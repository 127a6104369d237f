// How calls end before their clients end them.
#ifndef SPARSEAGG_SERVICE_RPC_CALL_END_H_
#define SPARSEAGG_SERVICE_RPC_CALL_END_H_

#include <grpcpp/server_context.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/server_context.h"

namespace sparseagg::service {

// Decides who finishes a stream: exactly one may, and nobody while a step of another thread may still start an
// operation, which must not follow the finish. A stream goes in steps, each of which handles the completion of one
// operation, away from gRPC's threads; and it may be interrupted from outside, between two steps or during one.
// Thread-safe.
class FinishGate {
 public:
  // So many steps begin. False: the stream is finished, or about to be, and there must be none.
  bool Begin(int steps = 1);
  // A step ends. If it is the last one under way, and the stream is to end: what the caller must finish it with.
  std::optional<absl::Status> End();
  // From a step, which is the last one to begin: the stream is to end with `status`. True: the caller must finish it.
  // False: whoever ends the last step will, or somebody has.
  bool Conclude(const absl::Status& status);
  // True: the caller, from outside, must finish the stream with `status`. False: it is finished, or will be when the
  // steps have ended that are under way, the last ones: what comes now comes too late.
  bool Interrupt(const absl::Status& status);

 private:
  std::mutex mu_;
  int steps_ = 0;
  bool concluded_ = false;  // no interruption counts
  bool finished_ = false;
  std::optional<absl::Status> outcome_;  // no step begins
};

// Ends a call from outside whose client does not take what it is sent, as long as there is one. Thread-safe.
class Canceller {
 public:
  Canceller(ServerContext* server, grpc::CallbackServerContext* context)
      : server_(*server), peer_(context->peer()), context_(context) {}

  // For InFlightMemory to call in what waits to be taken. Nothing can be sent past that, not even a status.
  void Reclaim();
  // Ends the call's connection if that takes next to nothing: gRPC keeps what it has put in there even if the call is
  // over. For InFlightMemory to call again and again (ConnectionTable::EndStuck).
  void EndStuckConnection();
  // OnDone: the context is about to go.
  void Done();

 private:
  void EndStuckConnectionLocked();

  ServerContext& server_;
  const std::string peer_;  // gRPC does not know it any more when the call has been cancelled
  std::mutex mu_;
  grpc::CallbackServerContext* context_;  // guarded by mu_
};

// Interrupts a stream whose client sends nothing for upload_timeout. Not thread-safe: one read is pending at a time.
class IdleTimer {
 public:
  explicit IdleTimer(ServerContext* server) : server_(*server) {}
  // A read begins. `on_idle` runs on the timer's thread.
  void Start(std::function<void(absl::Status)> on_idle);
  // It is done. Returns how long it took.
  absl::Duration Stop();

 private:
  ServerContext& server_;
  Timer::Id timer_ = 0;
  absl::Duration begun_ = absl::ZeroDuration();
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_CALL_END_H_
