#include "service/http/idle_connections.h"

#include <sys/socket.h>

namespace sparseagg::service {

bool IdleConnections::EndIdlest() {
  MutexLock lock(&mu_);
  const auto idlest = idle_.begin();
  if (idlest == idle_.end()) return false;
  if (idlest->first.was_used && clock_.Monotonic() - idlest->second.since < kMinIdle) return false;
  shutdown(idlest->second.fd, SHUT_RDWR);
  idle_.erase(idlest);
  return true;
}

void IdleConnections::Place::Enter(bool was_used) {
  if (key_.has_value()) return;
  MutexLock lock(&idle_.mu_);
  key_ = Key{was_used, ++idle_.entries_};
  idle_.idle_.emplace(*key_, Idle{fd_, idle_.clock_.Monotonic()});
}

void IdleConnections::Place::Leave() {
  if (!key_.has_value()) return;
  MutexLock lock(&idle_.mu_);
  idle_.idle_.erase(*key_);
  key_.reset();
}

}  // namespace sparseagg::service
