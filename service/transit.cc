#include "service/transit.h"

#include <algorithm>
#include <memory>

namespace sparseagg::service {

void Credit::Settle(uint64_t bytes) {
  if (transit_ == nullptr || is_held_) return;
  const uint64_t kept = std::min(bytes, bytes_);
  transit_->GiveBack(bytes_ - kept, std::exchange(id_, 0), /*is_held=*/false);
  bytes_ = kept;
}

void Credit::Watch(std::function<void()> call_in) {
  if (transit_ != nullptr && id_ == 0) id_ = transit_->Watch(bytes_, std::move(call_in));
}

void Credit::Release() {
  if (transit_ == nullptr) return;
  std::exchange(transit_, nullptr)->GiveBack(std::exchange(bytes_, 0), std::exchange(id_, 0), is_held_);
}

Transit::Transit(uint64_t limit_bytes, const Clock* clock, Timer* timer, WorkerPool* pool)
    : limit_(limit_bytes), clock_(*clock), timer_(*timer), pool_(*pool) {}

Transit::~Transit() {
  timer_.Cancel(alarm_);
  for (const Waiter& waiter : waiting_) timer_.Cancel(waiter.give_up);
}

uint64_t Transit::Acquire(uint64_t bytes, std::function<void(Credit)> granted, std::function<void()> call_in,
                          Wait wait) {
  Credit credit;
  {
    std::lock_guard lock(mu_);
    const uint64_t id = next_id_++;
    if (!waiting_.empty() || !FitsLocked(bytes)) {
      const Timer::Id give_up =
          wait == Wait::kForTurn ? 0 : timer_.Schedule(clock_.Monotonic() + kShortWait, [this, id] { GiveUp(id); });
      waiting_.push_back({id, bytes, std::move(granted), std::move(call_in), give_up});
      wanted_ += bytes;
      ArmLocked();
      return id;
    }
    taken_ += bytes;
    credit = Credit(this, bytes, WatchLocked(bytes, std::move(call_in)));
  }
  granted(std::move(credit));
  return 0;
}

// Ids ascend.
std::deque<Transit::Waiter>::iterator Transit::FindLocked(uint64_t id) {
  const auto found = std::lower_bound(waiting_.begin(), waiting_.end(), id,
                                      [](const Waiter& waiter, uint64_t wanted) { return waiter.id < wanted; });
  return found == waiting_.end() || found->id == id ? found : waiting_.end();
}

void Transit::GiveUp(uint64_t id) {
  std::lock_guard lock(mu_);
  const auto found = FindLocked(id);
  if (found == waiting_.end()) return;
  wanted_ -= found->bytes;
  pool_.Post([granted = std::move(found->granted)] { granted(Credit()); });
  waiting_.erase(found);
  GrantLocked();  // the next one may want less
}

bool Transit::Leave(uint64_t place) {
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

std::optional<Credit> Transit::TryHold(uint64_t bytes) {
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
  return Credit(this, bytes, 0, /*is_held=*/true);
}

uint64_t Transit::RefusedLocked() const {
  const bool lately = clock_.Monotonic() - refused_at_ <= kShortWait;
  return lately && !MayHoldLocked(refused_bytes_) ? refused_bytes_ : 0;
}

uint64_t Transit::taken() const {
  std::lock_guard lock(mu_);
  return taken_;
}

uint64_t Transit::num_waiting() const {
  std::lock_guard lock(mu_);
  return waiting_.size();
}

uint64_t Transit::Watch(uint64_t bytes, std::function<void()> call_in) {
  std::lock_guard lock(mu_);
  return WatchLocked(bytes, std::move(call_in));
}

uint64_t Transit::WatchLocked(uint64_t bytes, std::function<void()> call_in) {
  const uint64_t id = next_id_++;
  out_.emplace(id, Out{bytes, clock_.Monotonic(), std::move(call_in)});
  ArmLocked();
  return id;
}

void Transit::GrantLocked() {
  while (!waiting_.empty() && FitsLocked(waiting_.front().bytes)) {
    Waiter next = std::move(waiting_.front());
    waiting_.pop_front();
    wanted_ -= next.bytes;
    taken_ += next.bytes;
    timer_.Cancel(next.give_up);
    // On the pool: whoever gives back may hold locks that the waiter needs. Shared, since a function is copied.
    auto credit = std::make_shared<Credit>(Credit(this, next.bytes, 0));
    pool_.Post([this, granted = std::move(next.granted), call_in = std::move(next.call_in),
                credit = std::move(credit)]() mutable {
      {
        std::lock_guard lock(mu_);
        credit->id_ = WatchLocked(credit->bytes_, std::move(call_in));
      }
      granted(std::move(*credit));
    });
  }
}

void Transit::ArmLocked() {
  if (alarm_ != 0 || (waiting_.empty() && RefusedLocked() == 0)) return;
  absl::Duration when = clock_.Monotonic() + kBetweenCalls;
  if (called_in_.empty()) {
    if (out_.empty()) return;
    when = std::max(when, out_.begin()->second.since + kPatience);
  }
  alarm_ = timer_.Schedule(when, [this] { OnTimer(); });
}

void Transit::OnTimer() {
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
  for (const auto& [id, out] : called_in_) bytes += out.calls < kMostCallsToEnd ? given_back(out) : 0;
  while (bytes < wanted_ + refused && !out_.empty()) {
    const Out& oldest = out_.begin()->second;
    if (now - oldest.since < kPatience) break;
    bytes += given_back(oldest);
    called_in_.insert(out_.extract(out_.begin()));
  }
  for (auto& [id, out] : called_in_) {
    if (!std::exchange(out.is_being_called, true)) pool_.Post([this, id = id] { CallIn(id); });
  }
  ArmLocked();
}

// By then the peer may have done its part.
void Transit::CallIn(uint64_t id) {
  std::function<void()> call_in;
  {
    std::lock_guard lock(mu_);
    const auto out = called_in_.find(id);
    if (out == called_in_.end()) return;
    call_in = out->second.call_in;
  }
  call_in();
  std::lock_guard lock(mu_);
  const auto out = called_in_.find(id);
  if (out == called_in_.end()) return;
  out->second.is_being_called = false;
  ++out->second.calls;
}

void Transit::GiveBack(uint64_t bytes, uint64_t id, bool is_held) {
  std::function<void()> dropped;  // destroyed after the lock
  std::lock_guard lock(mu_);
  taken_ -= bytes;
  if (is_held) held_ -= bytes;
  auto out = out_.extract(id);
  if (out.empty()) out = called_in_.extract(id);
  if (!out.empty()) dropped = std::move(out.mapped().call_in);
  if (bytes > 0) GrantLocked();
}

}  // namespace sparseagg::service
