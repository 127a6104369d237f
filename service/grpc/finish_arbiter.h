// The decision which thread finishes a stream.
#ifndef SPARSEAGG_SERVICE_GRPC_FINISH_ARBITER_H_
#define SPARSEAGG_SERVICE_GRPC_FINISH_ARBITER_H_

#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "host/base/mutex.h"

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_FINISH_ARBITER_H_
