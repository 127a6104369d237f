// The time limit for one read from a client.
#ifndef SPARSEAGG_SERVICE_GRPC_READ_TIMEOUT_H_
#define SPARSEAGG_SERVICE_GRPC_READ_TIMEOUT_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/server_context.h"

namespace sparseagg::service {

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_READ_TIMEOUT_H_
