#include "service/http/idle_connections.h"

#include <sys/socket.h>

namespace sparseagg::service {

bool IdleConnections::EndIdlest() {
  MutexLock lock(&mu_);
  for (const Idleness idleness : {Idleness::kUnused, Idleness::kUsed, Idleness::kExchange}) {
    const auto idlest = idle_.lower_bound(Key{idleness, 0});
    if (idlest == idle_.end()) return false;
    if (idlest->first.idleness != idleness) continue;
    if (idleness != Idleness::kUnused && clock_.Monotonic() - idlest->second.since < kMinIdle) continue;
    shutdown(idlest->second.fd, SHUT_RDWR);
    idle_.erase(idlest);
    return true;
  }
  return false;
}

void IdleConnections::Place::Enter(Idleness idleness) {
  if (key_.has_value() && key_->idleness == idleness) return;
  MutexLock lock(&idle_.mu_);
  if (key_.has_value()) idle_.idle_.erase(*key_);
  key_ = Key{idleness, ++idle_.entries_};
  idle_.idle_.emplace(*key_, Idle{fd_, idle_.clock_.Monotonic()});
}

void IdleConnections::Place::Leave() {
  if (!key_.has_value()) return;
  MutexLock lock(&idle_.mu_);
  idle_.idle_.erase(*key_);
  key_.reset();
}

}  // namespace sparseagg::service
