#include "service/rounds/round_waits.h"

#include <utility>

namespace sparseagg::service {

RoundWaits::Id RoundWaits::Add(absl::Duration timeout, std::function<void()> done, std::weak_ptr<const void> owner) {
  Id id;
  {
    MutexLock lock(&mu_);
    id = next_id_++;
    if (!has_ended_) {
      const Timer::Id timer = timer_.Schedule(clock_.Monotonic() + timeout, [this, id, owner = std::move(owner)] {
        if (const auto kept = owner.lock()) Expire(id);
      });
      waits_.emplace(id, Wait{std::move(done), timer});
      return id;
    }
  }
  done();
  return id;
}

void RoundWaits::Expire(Id id) {
  std::map<Id, Wait>::node_type wait;
  {
    MutexLock lock(&mu_);
    wait = waits_.extract(id);
  }
  if (!wait.empty()) wait.mapped().done();
}

bool RoundWaits::Remove(Id id) {
  std::map<Id, Wait>::node_type wait;  // freed after mu_ is released
  MutexLock lock(&mu_);
  wait = waits_.extract(id);
  if (wait.empty()) return false;
  timer_.Cancel(wait.mapped().timer);
  return true;
}

void RoundWaits::Release() {
  std::map<Id, Wait> released;
  {
    MutexLock lock(&mu_);
    released.swap(waits_);
  }
  for (auto& [id, wait] : released) {
    timer_.Cancel(wait.timer);
    wait.done();
  }
}

void RoundWaits::End() {
  {
    MutexLock lock(&mu_);
    has_ended_ = true;
  }
  Release();
}

}  // namespace sparseagg::service
