// Whose turn it is in an upload.
#ifndef SPARSEAGG_SERVICE_UPLOAD_TURN_H_
#define SPARSEAGG_SERVICE_UPLOAD_TURN_H_

#include <mutex>

#include "absl/time/time.h"

namespace sparseagg::service {

// The client's, to send the next chunk, or the server's, which has no memory yet to read one: a client that is held
// back is not one that has stalled. Thread-safe.
class UploadTurn {
 public:
  void HoldBack() { Set(absl::InfiniteDuration()); }
  // `now`: Clock::Monotonic.
  void GiveToClient(absl::Duration now) { Set(now); }
  // Infinite while the client is held back.
  absl::Duration clients_since() const {
    const std::lock_guard lock(mu_);
    return clients_since_;
  }

 private:
  void Set(absl::Duration since) {
    const std::lock_guard lock(mu_);
    clients_since_ = since;
  }

  mutable std::mutex mu_;
  absl::Duration clients_since_ = -absl::InfiniteDuration();
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_UPLOAD_TURN_H_
