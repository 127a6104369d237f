#include "service/admission/in_flight_memory.h"

#include <algorithm>
#include <memory>

namespace sparseagg::service {

void InFlightReservation::ShrinkTo(uint64_t bytes) {
  if (memory_ == nullptr || is_for_stream_) return;
  const uint64_t kept = std::min(bytes, bytes_);
  memory_->Return(bytes_ - kept, std::exchange(deadline_id_, 0), /*is_for_stream=*/false);
  bytes_ = kept;
}

void InFlightReservation::StartDeadline(std::function<void()> reclaim) {
  if (memory_ != nullptr && deadline_id_ == 0) deadline_id_ = memory_->StartDeadline(bytes_, std::move(reclaim));
}

void InFlightReservation::Release() {
  if (memory_ == nullptr) return;
  std::exchange(memory_, nullptr)->Return(std::exchange(bytes_, 0), std::exchange(deadline_id_, 0), is_for_stream_);
}

InFlightMemory::InFlightMemory(uint64_t limit_bytes, const Clock* clock, Timer* timer, WorkerPool* pool)
    : limit_(limit_bytes), clock_(*clock), timer_(*timer), pool_(*pool) {}

InFlightMemory::~InFlightMemory() {
  MutexLock lock(&mu_);
  timer_.Cancel(reclaim_timer_);
  for (const Waiter& waiter : waiters_) timer_.Cancel(waiter.timeout);
}

uint64_t InFlightMemory::Acquire(uint64_t bytes, std::function<void(InFlightReservation)> granted,
                                 std::function<void()> reclaim, Wait wait) {
  InFlightReservation reservation;
  {
    MutexLock lock(&mu_);
    const uint64_t ticket = next_id_++;
    if (!waiters_.empty() || !FitsLocked(bytes)) {
      const Timer::Id timeout = wait == Wait::kUnbounded ? 0
                                                         : timer_.Schedule(clock_.Monotonic() + kBoundedWait,
                                                                           [this, ticket] { ExpireWait(ticket); });
      waiters_.push_back({ticket, bytes, std::move(granted), std::move(reclaim), timeout});
      waiting_bytes_ += bytes;
      ScheduleReclaimsLocked();
      return ticket;
    }
    reserved_ += bytes;
    reservation = InFlightReservation(this, bytes, StartDeadlineLocked(bytes, std::move(reclaim)));
  }
  granted(std::move(reservation));
  return 0;
}

std::deque<InFlightMemory::Waiter>::iterator InFlightMemory::FindWaiterLocked(uint64_t ticket) {
  const auto found = std::lower_bound(waiters_.begin(), waiters_.end(), ticket,
                                      [](const Waiter& waiter, uint64_t wanted) { return waiter.ticket < wanted; });
  return found == waiters_.end() || found->ticket == ticket ? found : waiters_.end();
}

void InFlightMemory::ExpireWait(uint64_t ticket) {
  MutexLock lock(&mu_);
  const auto found = FindWaiterLocked(ticket);
  if (found == waiters_.end()) return;
  waiting_bytes_ -= found->bytes;
  pool_.Post([granted = std::move(found->granted)] { granted(InFlightReservation()); });
  waiters_.erase(found);
  GrantLocked();  // the next waiter may need less
}

bool InFlightMemory::CancelWait(uint64_t ticket) {
  std::optional<Waiter> cancelled;  // destroyed after the lock is released: its functions may own a call
  MutexLock lock(&mu_);
  const auto found = FindWaiterLocked(ticket);
  if (found == waiters_.end()) return false;
  cancelled = std::move(*found);
  waiting_bytes_ -= cancelled->bytes;
  timer_.Cancel(cancelled->timeout);
  waiters_.erase(found);
  GrantLocked();
  return true;
}

std::optional<InFlightReservation> InFlightMemory::TryReserveForStream(uint64_t bytes) {
  MutexLock lock(&mu_);
  if (!StreamFitsLocked(bytes)) {
    const absl::Duration now = clock_.Monotonic();
    num_refused_ = now <= refused_until_ ? num_refused_ + 1 : 1;
    refused_until_ = now + kBoundedWait;
    ScheduleReclaimsLocked();
    return std::nullopt;
  }
  num_refused_ = 0;
  refused_until_ = -absl::InfiniteDuration();
  stream_bytes_ += bytes;
  reserved_ += bytes;
  return InFlightReservation(this, bytes, /*deadline_id=*/0, /*is_for_stream=*/true);
}

bool InFlightMemory::IsMemoryNeededLocked() const { return !waiters_.empty() || clock_.Monotonic() <= refused_until_; }

uint64_t InFlightMemory::reserved() const {
  MutexLock lock(&mu_);
  return reserved_;
}

uint64_t InFlightMemory::num_waiting() const {
  MutexLock lock(&mu_);
  return waiters_.size();
}

uint64_t InFlightMemory::StartDeadline(uint64_t bytes, std::function<void()> reclaim) {
  MutexLock lock(&mu_);
  return StartDeadlineLocked(bytes, std::move(reclaim));
}

uint64_t InFlightMemory::StartDeadlineLocked(uint64_t bytes, std::function<void()> reclaim) {
  const uint64_t id = next_id_++;
  deadlines_.emplace(id, Deadline{bytes, clock_.Monotonic(), std::move(reclaim)});
  ScheduleReclaimsLocked();
  return id;
}

void InFlightMemory::GrantLocked() {
  while (!waiters_.empty() && FitsLocked(waiters_.front().bytes)) {
    Waiter next = std::move(waiters_.front());
    waiters_.pop_front();
    waiting_bytes_ -= next.bytes;
    reserved_ += next.bytes;
    timer_.Cancel(next.timeout);
    // On the pool, because the caller may hold locks that `granted` needs. The deadline starts there: the peer does not
    // pay for a busy pool. The reservation is shared because std::function must be copyable.
    auto reservation = std::make_shared<InFlightReservation>(InFlightReservation(this, next.bytes, 0));
    pool_.Post([granted = std::move(next.granted), reclaim = std::move(next.reclaim),
                reservation = std::move(reservation)]() mutable {
      reservation->StartDeadline(std::move(reclaim));
      granted(std::move(*reservation));
    });
  }
}

void InFlightMemory::ScheduleReclaimsLocked() {
  if (reclaim_timer_ != 0 || !IsMemoryNeededLocked()) return;
  absl::Duration when = clock_.Monotonic() + kReclaimInterval;
  if (reclaiming_.empty()) {
    if (deadlines_.empty()) return;
    when = std::max(when, deadlines_.begin()->second.since + kReclaimAfter);
  }
  reclaim_timer_ = timer_.Schedule(when, [this] { PostReclaims(); });
}

void InFlightMemory::PostReclaims() {
  MutexLock lock(&mu_);
  reclaim_timer_ = 0;
  if (!IsMemoryNeededLocked()) return;
  const absl::Duration now = clock_.Monotonic();
  if (now > refused_until_) num_refused_ = 0;
  // Bytes that calls being reclaimed will release soon.
  uint64_t expected_bytes = 0;
  for (const auto& [id, deadline] : reclaiming_) {
    expected_bytes += deadline.num_attempts < kMaxReclaimAttempts ? deadline.bytes : 0;
  }
  while (!deadlines_.empty() && (expected_bytes < waiting_bytes_ || num_refused_ > 0)) {
    const Deadline& oldest = deadlines_.begin()->second;
    if (now - oldest.since < kReclaimAfter) break;
    expected_bytes += oldest.bytes;
    num_refused_ -= std::min<uint64_t>(num_refused_, 1);
    reclaiming_.insert(deadlines_.extract(deadlines_.begin()));
  }
  for (auto& [id, deadline] : reclaiming_) {
    if (!std::exchange(deadline.is_attempt_posted, true)) pool_.Post([this, id = id] { AttemptReclaim(id); });
  }
  ScheduleReclaimsLocked();
}

void InFlightMemory::AttemptReclaim(uint64_t deadline_id) {
  std::function<void()> reclaim;
  {
    MutexLock lock(&mu_);
    const auto found = reclaiming_.find(deadline_id);
    if (found == reclaiming_.end()) return;  // the peer has done its part meanwhile
    reclaim = found->second.reclaim;
  }
  reclaim();
  MutexLock lock(&mu_);
  const auto found = reclaiming_.find(deadline_id);
  if (found == reclaiming_.end()) return;
  found->second.is_attempt_posted = false;
  ++found->second.num_attempts;
}

void InFlightMemory::Return(uint64_t bytes, uint64_t deadline_id, bool is_for_stream) {
  std::function<void()> reclaim;  // destroyed after the lock is released: it may own a call
  MutexLock lock(&mu_);
  reserved_ -= bytes;
  if (is_for_stream) stream_bytes_ -= bytes;
  auto ended = deadlines_.extract(deadline_id);
  if (ended.empty()) ended = reclaiming_.extract(deadline_id);
  if (!ended.empty()) reclaim = std::move(ended.mapped().reclaim);
  if (bytes > 0) GrantLocked();
}

}  // namespace sparseagg::service
