// Small things that all handlers need.
#ifndef SPARSEAGG_SERVICE_GRPC_UTIL_H_
#define SPARSEAGG_SERVICE_GRPC_UTIL_H_

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/codec/parse.h"
#include "service/log.h"
#include "service/machine.h"

namespace sparseagg::service {

// The codes are the same numbers. Messages are cut to what fits the headers that clients accept.
grpc::Status ToGrpc(const absl::Status& status);

// What a stream takes at most while nothing of it is read: gRPC's window of it, the call, and our reactor.
inline constexpr int kStreamWindowBytes = 64 << 10;
inline constexpr uint64_t kStreamBytes = kStreamWindowBytes + (uint64_t{32} << 10);

// RESOURCE_EXHAUSTED for want of `what`, and when to try again: in the trailing metadata grpc-retry-pushback-ms, which
// gRPC's own retries go by, too.
grpc::Status TryAgain(absl::string_view what, grpc::CallbackServerContext& context);
// The same for want of memory in transit.
grpc::Status NoRoomInTransit(const Machine& machine, grpc::CallbackServerContext& context);
// What a client is told whose credit was called in.
absl::Status CalledIn(const Machine& machine);

// INTERNAL: it could not be encoded.
absl::Status Serialize(const google::protobuf::Message& message, grpc::ByteBuffer* buffer);

// One line a call, with the caller's traceparent if there is one.
void LogCall(LogLevel level, const grpc::CallbackServerContext& context, absl::string_view method,
             absl::string_view round, absl::string_view client = "");

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
  // True: the caller, from outside, must finish the stream with `status`. False: it is finished, or a step that is
  // under way will see to it.
  bool Interrupt(const absl::Status& status);

 private:
  std::mutex mu_;
  int steps_ = 0;
  bool concluded_ = false;  // no step begins, and no interruption counts
  bool finished_ = false;
  std::optional<absl::Status> outcome_;
};

// Cancels a call from outside, as long as there is one. Thread-safe.
class Canceller {
 public:
  explicit Canceller(grpc::CallbackServerContext* context) : context_(context) {}

  void Cancel() {
    std::lock_guard lock(mu_);
    if (context_ != nullptr) context_->TryCancel();
  }
  // OnDone: the context is about to go.
  void Done() {
    std::lock_guard lock(mu_);
    context_ = nullptr;
  }

 private:
  std::mutex mu_;
  grpc::CallbackServerContext* context_;  // guarded by mu_
};

// Interrupts a stream whose client sends nothing for upload_timeout. Not thread-safe: one read is pending at a time.
class IdleTimer {
 public:
  explicit IdleTimer(Machine* machine) : machine_(*machine) {}
  // A read begins. `on_idle` runs on the timer's thread.
  void Start(std::function<void(absl::Status)> on_idle);
  // It is done. Returns how long it took.
  absl::Duration Stop();

 private:
  Machine& machine_;
  Timer::Id timer_ = 0;
  absl::Duration begun_ = absl::ZeroDuration();
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_UTIL_H_
