#include "service/rounds/round_life.h"

#include <algorithm>
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

void RoundLife::Fill(RoundSnapshot& snapshot, absl::Duration now) const {
  snapshot.state = state_;
  snapshot.reason = reason_;
  snapshot.failure = failure_;
  snapshot.create_time = create_time_;
  snapshot.close_time = close_time_;
  snapshot.end_time = end_time_;
  snapshot.expire_time = expire_time_;
  snapshot.timeline.open = (is_closed() ? closed_at_ : now) - created_at_;
  snapshot.timeline.finish = state_ == RoundState::kFinalizing ? now - closed_at_ : finish_;
  snapshot.results = results_;
}

void RoundLife::Close(const Moment& now) {
  state_ = RoundState::kFinalizing;
  close_time_ = now.wall;
  closed_at_ = now.monotonic;
}

absl::Time RoundLife::EndTime(const Moment& now) const {
  // A time of day that was set back does not end the round before its close.
  const absl::Time close_time = is_closed() ? close_time_ : now.wall;
  return restored_end_.has_value() ? restored_end_->first : std::max(now.wall, close_time);
}

absl::Duration RoundLife::TimeToExpiry(absl::Duration result_ttl, const Moment& now) const {
  if (restored_end_.has_value()) return result_ttl - restored_end_->second;
  // Nor does such a time keep the round for longer than result_ttl.
  return result_ttl - std::max(now.wall - EndTime(now), absl::ZeroDuration());
}

std::optional<absl::Duration> RoundLife::End(RoundState state, absl::Status failure, std::string reason,
                                             absl::Duration time_to_expiry, const Moment& now) {
  end_time_ = EndTime(now);
  const bool was_closed = is_closed();
  if (!was_closed) Close(now);
  state_ = state;
  failure_ = std::move(failure);
  reason_ = std::move(reason);
  expire_time_ = now.wall + time_to_expiry;
  finish_ = now.monotonic - closed_at_;
  return was_closed ? std::optional(finish_) : std::nullopt;
}

bool RoundLife::EndCommit() {
  --num_committing_;
  return CanFinish();
}

bool RoundLife::TryStartFinish() {
  if (!CanFinish()) return false;
  finish_started_ = true;
  return true;
}

StateRecord RoundLife::NextRecord(StateRecord::Name name, absl::string_view reason, absl::Time now) const {
  const absl::Time close_time = is_closed() ? close_time_ : now;
  return {name, std::string(reason), close_time, std::max(now, close_time)};
}

StateRecord RoundLife::Record() const {
  const StateRecord::Name name = keeps_sum_                         ? StateRecord::Name::kMerged
                                 : state_ == RoundState::kDone      ? StateRecord::Name::kDone
                                 : state_ == RoundState::kFailed    ? StateRecord::Name::kFailed
                                 : state_ == RoundState::kCancelled ? StateRecord::Name::kCancelled
                                 : state_ == RoundState::kSealed    ? StateRecord::Name::kSealed
                                                                    : StateRecord::Name::kClosed;
  return {name, reason_, close_time_, end_time_};
}

}  // namespace sparseagg::service
