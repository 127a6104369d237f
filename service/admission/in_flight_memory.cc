#include "service/admission/in_flight_memory.h"

#include <algorithm>
#include <memory>

#include "service/admission/memory_shares.h"

namespace sparseagg::service {

void InFlightReservation::ShrinkTo(uint64_t bytes) {
  if (memory_ == nullptr || is_for_stream_) return;
  const uint64_t kept = std::min(bytes, bytes_);
  memory_->Return(host_, bytes_ - kept, std::exchange(deadline_id_, 0), /*is_for_stream=*/false, /*is_all=*/false);
  bytes_ = kept;
}

void InFlightReservation::StartDeadline(std::function<void()> reclaim) {
  if (memory_ != nullptr && deadline_id_ == 0) deadline_id_ = memory_->StartDeadline(bytes_, std::move(reclaim));
}

void InFlightReservation::Release() {
  if (memory_ == nullptr) return;
  std::exchange(memory_, nullptr)
      ->Return(std::exchange(host_, nullptr), std::exchange(bytes_, 0), std::exchange(deadline_id_, 0), is_for_stream_,
               /*is_all=*/true);
}

InFlightMemory::InFlightMemory(uint64_t limit_bytes, const Clock* clock, Timer* timer, WorkerPool* pool)
    : limit_(limit_bytes), clock_(*clock), timer_(*timer), pool_(*pool) {}

InFlightMemory::~InFlightMemory() {
  MutexLock lock(&mu_);
  timer_.Cancel(reclaim_timer_);
  for (const auto& [ticket, waiter] : waiters_) timer_.Cancel(waiter.timeout);
}

bool InFlightMemory::FitsLocked(const InFlightPeer& host, uint64_t bytes) const {
  if (limit_ == 0 || reserved_ == stream_bytes_) return true;
  const bool is_share = host.name.empty() || host.bytes == 0 || host.bytes + bytes <= limit_ - limit_ / 4;
  return is_share && reserved_ + bytes <= limit_;
}

bool InFlightMemory::StreamFitsLocked(const InFlightPeer& host, uint64_t bytes) const {
  if (limit_ == 0) return true;
  const uint64_t most = limit_ / 2;
  const bool is_share = host.name.empty() || host.stream_bytes + bytes <= most - most / 4;
  return is_share && stream_bytes_ + bytes <= most && reserved_ + bytes <= limit_ + limit_ / 4;
}

InFlightPeer* InFlightMemory::HostLocked(absl::string_view peer) {
  const absl::string_view name = HostOfCaller(peer);
  const auto found = hosts_.find(name);
  if (found != hosts_.end()) return &found->second;
  InFlightPeer& host = hosts_[std::string(name)];
  host.name = std::string(name);
  return &host;
}

void InFlightMemory::ForgetIdleLocked(InFlightPeer* host) {
  if (host->reservations == 0 && host->tickets.empty()) hosts_.erase(hosts_.find(host->name));
}

uint64_t InFlightMemory::Acquire(uint64_t bytes, std::function<void(InFlightReservation)> granted,
                                 std::function<void()> reclaim, Wait wait, absl::string_view peer) {
  InFlightReservation reservation;
  {
    MutexLock lock(&mu_);
    InFlightPeer* const host = HostLocked(peer);
    // One that waits holds less, or would if the calls of this host came first.
    const bool must_wait = std::any_of(waiting_hosts_.begin(), waiting_hosts_.end(), [&](const InFlightPeer* other) {
      return other == host || other->bytes <= host->bytes;
    });
    if (must_wait || !FitsLocked(*host, bytes)) {
      const uint64_t ticket = next_id_++;
      const Timer::Id timeout = wait == Wait::kUnbounded ? 0
                                                         : timer_.Schedule(clock_.Monotonic() + kBoundedWait,
                                                                           [this, ticket] { ExpireWait(ticket); });
      waiters_.emplace(ticket, Waiter{host, bytes, std::move(granted), std::move(reclaim), timeout});
      host->tickets.insert(ticket);
      waiting_hosts_.insert(host);
      waiting_bytes_ += bytes;
      ScheduleReclaimsLocked();
      return ticket;
    }
    reservation = ReserveLocked(host, bytes, /*is_for_stream=*/false);
    reservation.deadline_id_ = StartDeadlineLocked(bytes, std::move(reclaim));
  }
  granted(std::move(reservation));
  return 0;
}

std::optional<InFlightMemory::Waiter> InFlightMemory::RemoveWaiterLocked(uint64_t ticket) {
  auto removed = waiters_.extract(ticket);
  if (removed.empty()) return std::nullopt;
  Waiter waiter = std::move(removed.mapped());
  waiting_bytes_ -= waiter.bytes;
  timer_.Cancel(waiter.timeout);
  waiter.host->tickets.erase(ticket);
  if (waiter.host->tickets.empty()) waiting_hosts_.erase(waiter.host);
  return waiter;
}

void InFlightMemory::ExpireWait(uint64_t ticket) {
  std::optional<Waiter> expired;  // destroyed after the lock is released, as in CancelWait
  MutexLock lock(&mu_);
  expired = RemoveWaiterLocked(ticket);
  if (!expired.has_value()) return;
  pool_.Post([granted = std::move(expired->granted)] { granted(InFlightReservation()); });
  ForgetIdleLocked(expired->host);
  GrantLocked();  // the next waiter may need less
}

bool InFlightMemory::CancelWait(uint64_t ticket) {
  std::optional<Waiter> cancelled;  // destroyed after the lock is released: its functions may own a call
  MutexLock lock(&mu_);
  cancelled = RemoveWaiterLocked(ticket);
  if (!cancelled.has_value()) return false;
  ForgetIdleLocked(cancelled->host);
  GrantLocked();
  return true;
}

std::optional<InFlightReservation> InFlightMemory::TryReserveForStream(uint64_t bytes, absl::string_view peer) {
  std::optional<InFlightReservation> reservation;  // its destructor, after an exception, takes the lock
  MutexLock lock(&mu_);
  InFlightPeer* const host = HostLocked(peer);
  if (!StreamFitsLocked(*host, bytes)) {
    ForgetIdleLocked(host);
    const absl::Duration now = clock_.Monotonic();
    num_refused_ = now <= refused_until_ ? num_refused_ + 1 : 1;
    refused_until_ = now + kBoundedWait;
    ScheduleReclaimsLocked();
    return std::nullopt;
  }
  num_refused_ = 0;
  refused_until_ = -absl::InfiniteDuration();
  reservation = ReserveLocked(host, bytes, /*is_for_stream=*/true);
  GrantLocked();  // this host holds more now: it may be the turn of another, which needs less
  return reservation;
}

InFlightReservation InFlightMemory::ReserveLocked(InFlightPeer* host, uint64_t bytes, bool is_for_stream) {
  reserved_ += bytes;
  host->bytes += bytes;
  ++host->reservations;
  if (is_for_stream) {
    stream_bytes_ += bytes;
    host->stream_bytes += bytes;
  }
  return InFlightReservation(this, host, bytes, /*deadline_id=*/0, is_for_stream);
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
  while (!waiting_hosts_.empty()) {
    InFlightPeer* const host =
        *std::min_element(waiting_hosts_.begin(), waiting_hosts_.end(), [](InFlightPeer* left, InFlightPeer* right) {
          return std::pair(left->bytes, *left->tickets.begin()) < std::pair(right->bytes, *right->tickets.begin());
        });
    const uint64_t ticket = *host->tickets.begin();
    if (!FitsLocked(*host, waiters_.at(ticket).bytes)) return;
    Waiter next = *RemoveWaiterLocked(ticket);
    // On the pool, because the caller may hold locks that `granted` needs. The deadline starts there: the peer does not
    // pay for a busy pool. The reservation is shared because std::function must be copyable.
    auto reservation = std::make_shared<InFlightReservation>(ReserveLocked(host, next.bytes, /*is_for_stream=*/false));
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
    expected_bytes += deadline.num_attempts < kAttemptsUntilStuck ? deadline.bytes : 0;
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

void InFlightMemory::Return(InFlightPeer* host, uint64_t bytes, uint64_t deadline_id, bool is_for_stream, bool is_all) {
  std::function<void()> reclaim;  // destroyed after the lock is released: it may own a call
  MutexLock lock(&mu_);
  reserved_ -= bytes;
  host->bytes -= bytes;
  if (is_for_stream) {
    stream_bytes_ -= bytes;
    host->stream_bytes -= bytes;
  }
  auto ended = deadlines_.extract(deadline_id);
  if (ended.empty()) ended = reclaiming_.extract(deadline_id);
  if (!ended.empty()) reclaim = std::move(ended.mapped().reclaim);
  if (is_all) {
    --host->reservations;
    ForgetIdleLocked(host);
  }
  if (bytes > 0) GrantLocked();
}

}  // namespace sparseagg::service
