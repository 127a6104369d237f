#include "service/admission/in_flight_memory.h"

#include <algorithm>
#include <memory>

namespace sparseagg::service {

void InFlightReservation::ShrinkTo(uint64_t bytes) {
  if (transit_ == nullptr || is_held_) return;
  const uint64_t kept = std::min(bytes, bytes_);
  transit_->Release(bytes_ - kept, std::exchange(id_, 0), /*is_held=*/false);
  bytes_ = kept;
}

void InFlightReservation::StartDeadline(std::function<void()> reclaim) {
  if (transit_ != nullptr && id_ == 0) id_ = transit_->StartDeadline(bytes_, std::move(reclaim));
}

void InFlightReservation::Release() {
  if (transit_ == nullptr) return;
  std::exchange(transit_, nullptr)->Release(std::exchange(bytes_, 0), std::exchange(id_, 0), is_held_);
}

InFlightMemory::InFlightMemory(uint64_t limit_bytes, const Clock* clock, Timer* timer, WorkerPool* pool)
    : limit_(limit_bytes), clock_(*clock), timer_(*timer), pool_(*pool) {}

InFlightMemory::~InFlightMemory() {
  timer_.Cancel(alarm_);
  for (const Waiter& waiter : waiting_) timer_.Cancel(waiter.give_up);
}

uint64_t InFlightMemory::Acquire(uint64_t bytes, std::function<void(InFlightReservation)> granted,
                                 std::function<void()> reclaim, Wait wait) {
  InFlightReservation credit;
  {
    std::lock_guard lock(mu_);
    const uint64_t id = next_id_++;
    if (!waiting_.empty() || !FitsLocked(bytes)) {
      const Timer::Id give_up =
          wait == Wait::kUnbounded ? 0 : timer_.Schedule(clock_.Monotonic() + kBoundedWait, [this, id] { GiveUp(id); });
      waiting_.push_back({id, bytes, std::move(granted), std::move(reclaim), give_up});
      wanted_ += bytes;
      ArmLocked();
      return id;
    }
    taken_ += bytes;
    credit = InFlightReservation(this, bytes, StartDeadlineLocked(bytes, std::move(reclaim)));
  }
  granted(std::move(credit));
  return 0;
}

// Ids ascend.
std::deque<InFlightMemory::Waiter>::iterator InFlightMemory::FindLocked(uint64_t id) {
  const auto found = std::lower_bound(waiting_.begin(), waiting_.end(), id,
                                      [](const Waiter& waiter, uint64_t wanted) { return waiter.id < wanted; });
  return found == waiting_.end() || found->id == id ? found : waiting_.end();
}

void InFlightMemory::GiveUp(uint64_t id) {
  std::lock_guard lock(mu_);
  const auto found = FindLocked(id);
  if (found == waiting_.end()) return;
  wanted_ -= found->bytes;
  pool_.Post([granted = std::move(found->granted)] { granted(InFlightReservation()); });
  waiting_.erase(found);
  GrantLocked();  // the next one may want less
}

bool InFlightMemory::CancelWait(uint64_t place) {
  std::optional<Waiter> left;  // destroyed after the lock
  std::lock_guard lock(mu_);
  const auto found = FindLocked(place);
  if (found == waiting_.end()) return false;
  left = std::move(*found);
  wanted_ -= left->bytes;
  timer_.Cancel(left->give_up);
  waiting_.erase(found);
  GrantLocked();
  return true;
}

std::optional<InFlightReservation> InFlightMemory::TryReserveForStream(uint64_t bytes) {
  std::lock_guard lock(mu_);
  if (!MayHoldLocked(bytes)) {
    refused_bytes_ = std::min(RefusedLocked() + bytes, limit_ / 2);
    refused_each_ = bytes;
    refused_at_ = clock_.Monotonic();
    ArmLocked();
    return std::nullopt;
  }
  refused_bytes_ -= std::min(refused_bytes_, bytes);  // it may be one of them, come again
  held_ += bytes;
  taken_ += bytes;
  return InFlightReservation(this, bytes, 0, /*is_held=*/true);
}

uint64_t InFlightMemory::RefusedLocked() const {
  const bool lately = clock_.Monotonic() - refused_at_ <= kBoundedWait;
  return lately && !MayHoldLocked(refused_bytes_) ? refused_bytes_ : 0;
}

uint64_t InFlightMemory::taken() const {
  std::lock_guard lock(mu_);
  return taken_;
}

uint64_t InFlightMemory::num_waiting() const {
  std::lock_guard lock(mu_);
  return waiting_.size();
}

uint64_t InFlightMemory::StartDeadline(uint64_t bytes, std::function<void()> reclaim) {
  std::lock_guard lock(mu_);
  return StartDeadlineLocked(bytes, std::move(reclaim));
}

uint64_t InFlightMemory::StartDeadlineLocked(uint64_t bytes, std::function<void()> reclaim) {
  const uint64_t id = next_id_++;
  out_.emplace(id, Out{bytes, clock_.Monotonic(), std::move(reclaim)});
  ArmLocked();
  return id;
}

void InFlightMemory::GrantLocked() {
  while (!waiting_.empty() && FitsLocked(waiting_.front().bytes)) {
    Waiter next = std::move(waiting_.front());
    waiting_.pop_front();
    wanted_ -= next.bytes;
    taken_ += next.bytes;
    timer_.Cancel(next.give_up);
    // On the pool: whoever gives back may hold locks that the waiter needs. Shared, since a function is copied.
    auto credit = std::make_shared<InFlightReservation>(InFlightReservation(this, next.bytes, 0));
    pool_.Post([this, granted = std::move(next.granted), reclaim = std::move(next.reclaim),
                credit = std::move(credit)]() mutable {
      {
        std::lock_guard lock(mu_);
        credit->id_ = StartDeadlineLocked(credit->bytes_, std::move(reclaim));
      }
      granted(std::move(*credit));
    });
  }
}

void InFlightMemory::ArmLocked() {
  if (alarm_ != 0 || (waiting_.empty() && RefusedLocked() == 0)) return;
  absl::Duration when = clock_.Monotonic() + kReclaimInterval;
  if (being_reclaimed_.empty()) {
    if (out_.empty()) return;
    when = std::max(when, out_.begin()->second.since + kReclaimAfter);
  }
  alarm_ = timer_.Schedule(when, [this] { OnTimer(); });
}

void InFlightMemory::OnTimer() {
  std::lock_guard lock(mu_);
  alarm_ = 0;
  const uint64_t refused = RefusedLocked();
  if (waiting_.empty() && refused == 0) return;
  const absl::Duration now = clock_.Monotonic();
  // A call that ends gives back what it holds besides: about as much as those wanted who were refused.
  const auto given_back = [&](const Out& out) { return refused == 0 ? out.bytes : std::max(out.bytes, refused_each_); };
  // No more than those who wait can use: with what those give back who have been called in and are about to end, or
  // will be called as soon as there is a thread.
  uint64_t bytes = 0;
  for (const auto& [id, out] : being_reclaimed_) bytes += out.calls < kMaxReclaimAttempts ? given_back(out) : 0;
  while (bytes < wanted_ + refused && !out_.empty()) {
    const Out& oldest = out_.begin()->second;
    if (now - oldest.since < kReclaimAfter) break;
    bytes += given_back(oldest);
    being_reclaimed_.insert(out_.extract(out_.begin()));
  }
  for (auto& [id, out] : being_reclaimed_) {
    if (!std::exchange(out.is_being_called, true)) pool_.Post([this, id = id] { Reclaim(id); });
  }
  ArmLocked();
}

// By then the peer may have done its part.
void InFlightMemory::Reclaim(uint64_t id) {
  std::function<void()> reclaim;
  {
    std::lock_guard lock(mu_);
    const auto out = being_reclaimed_.find(id);
    if (out == being_reclaimed_.end()) return;
    reclaim = out->second.reclaim;
  }
  reclaim();
  std::lock_guard lock(mu_);
  const auto out = being_reclaimed_.find(id);
  if (out == being_reclaimed_.end()) return;
  out->second.is_being_called = false;
  ++out->second.calls;
}

void InFlightMemory::Release(uint64_t bytes, uint64_t id, bool is_held) {
  std::function<void()> dropped;  // destroyed after the lock
  std::lock_guard lock(mu_);
  taken_ -= bytes;
  if (is_held) held_ -= bytes;
  auto out = out_.extract(id);
  if (out.empty()) out = being_reclaimed_.extract(id);
  if (!out.empty()) dropped = std::move(out.mapped().reclaim);
  if (bytes > 0) GrantLocked();
}

}  // namespace sparseagg::service
