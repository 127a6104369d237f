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
#include "service/log.h"
#include "service/machine.h"

namespace sparseagg::service {

// The codes are the same numbers. Messages are cut to what fits the headers that clients accept.
grpc::Status ToGrpc(const absl::Status& status);

// What a stream takes at most while nothing of it is read: gRPC's window of it, the call, and our reactor.
inline constexpr int kStreamWindowBytes = 64 << 10;
inline constexpr uint64_t kStreamBytes = kStreamWindowBytes + (uint64_t{32} << 10);

// What a page of a result takes on its way out: itself, and what it is serialised to.
inline constexpr uint64_t PageTransitBytes(uint64_t page_bytes) { return 2 * page_bytes; }

// RESOURCE_EXHAUSTED for want of memory in transit, and when to try again: in the trailing metadata
// grpc-retry-pushback-ms, which gRPC's own retries go by, too.
grpc::Status NoRoomInTransit(const Machine& machine, grpc::CallbackServerContext& context);
// What a client is told whose credit was called in.
absl::Status CalledIn(const Machine& machine);

// As the answer of a call that takes its messages unparsed.
absl::Status Serialize(const google::protobuf::Message& message, grpc::ByteBuffer* buffer);

// One line a call, with the caller's traceparent if there is one.
void LogCall(LogLevel level, const grpc::CallbackServerContext& context, absl::string_view method,
             absl::string_view round, absl::string_view client = "");

// Decides who finishes a stream: exactly one may. A stream goes in steps, each of which handles the completion of one
// operation, away from gRPC's threads; and it may be interrupted from outside, between two steps or during one.
// Thread-safe.
class FinishGate {
 public:
  // A step begins. False: the stream is finished, and the step must do nothing.
  bool Begin();
  // A step ends. If it was interrupted and did not finish the stream: what the caller must finish the stream with.
  std::optional<absl::Status> End();
  // True: the caller, a step, must finish the stream.
  bool Claim();
  // True: the caller, from outside, must finish the stream with `status`. False: it is finished, or a step that is
  // under way will see to it.
  bool Interrupt(const absl::Status& status);

 private:
  std::mutex mu_;
  int steps_ = 0;
  bool finished_ = false;
  std::optional<absl::Status> interruption_;
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
