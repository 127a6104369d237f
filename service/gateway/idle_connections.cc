#include "service/gateway/idle_connections.h"

#include <sys/socket.h>

#include <cstdint>

namespace sparseagg::service {

bool IdleConnections::EndIdlest(const std::string& host) {
  const auto by_host = connections_.CountByHost();
  const auto held_by = [&by_host](const std::string& name) {
    const auto found = by_host.find(name);
    return found == by_host.end() ? 0 : found->second;
  };
  const uint64_t own = held_by(host);
  const absl::Duration now = clock_.Monotonic();
  MutexLock lock(&mu_);
  auto idlest = idle_.end();
  uint64_t most = 0;
  // From the idlest on, so the first one of the host that holds most is the one.
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    const auto& [key, idle] = *it;
    const uint64_t held = held_by(*idle.host);
    const bool is_idle = now - idle.since >= min_idle_ || (key.idleness == Idleness::kUnused && own == 0);
    if (held <= most || !GivesWay(held, own, is_idle)) continue;
    idlest = it;
    most = held;
  }
  if (idlest == idle_.end()) return false;
  shutdown(idlest->second.fd, SHUT_RDWR);
  idle_.erase(idlest);
  return true;
}

void IdleConnections::Place::Enter(Idleness idleness) {
  if (is_ended_ || (key_.has_value() && key_->idleness == idleness)) return;
  Leave();
  if (is_ended_) return;
  MutexLock lock(&idle_.mu_);
  key_ = Key{idleness, ++idle_.entries_};
  idle_.idle_.emplace(*key_, Idle{fd_, &host_, idle_.clock_.Monotonic()});
}

void IdleConnections::Place::Leave() {
  if (!key_.has_value()) return;
  MutexLock lock(&idle_.mu_);
  is_ended_ = idle_.idle_.erase(*key_) == 0;
  key_.reset();
}

bool IdleConnections::Place::IsEnded() {
  MutexLock lock(&idle_.mu_);
  return is_ended_ || (key_.has_value() && idle_.idle_.count(*key_) == 0);
}

}  // namespace sparseagg::service
