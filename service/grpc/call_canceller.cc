#include "service/grpc/call_canceller.h"

#include "service/base/log.h"

namespace sparseagg::service {

void CallCanceller::Cancel() {
  MutexLock lock(&mu_);
  if (context_ == nullptr) return;
  context_->TryCancel();
  EndStuckConnectionLocked();
}

void CallCanceller::EndStuckConnection() {
  MutexLock lock(&mu_);
  if (context_ != nullptr) EndStuckConnectionLocked();
}

void CallCanceller::EndStuckConnectionLocked() {
  const int ended = server_.connections.EndStuck(peer_);
  if (ended == 0) return;
  server_.metrics.CountEndedConnections(ended);
  Log(LogLevel::kWarning, "connection_ended",
      {{"peer", peer_}, {"reason", "the peer reads almost nothing while other calls wait for memory"}});
}

void CallCanceller::Detach() {
  MutexLock lock(&mu_);
  context_ = nullptr;
}

}  // namespace sparseagg::service
