#include "service/rounds/round.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/base/log.h"
#include "service/base/to_status.h"

namespace sparseagg::service {
namespace {

// Upper estimate of the memory of a round, and of each of its tensors, without spec, submissions and result.
constexpr uint64_t kRoundOverheadBytes = 4096;

// Time until a deadline is tried again that could not be stored.
constexpr absl::Duration kDeadlineRetry = absl::Seconds(1);

const StageTime& TimeOf(const RoundSnapshot& snapshot, RoundStage stage) {
  return snapshot.timeline.stages[static_cast<size_t>(stage)];
}

// The error for a call that the round's state does not allow.
absl::Status StateError(RoundState state, absl::string_view reason) {
  return absl::FailedPreconditionError(absl::StrCat("the round is ", Name(state), reason.empty() ? "" : ": ", reason));
}

void LogEnd(const RoundConfig& config, const RoundSnapshot& snapshot) {
  Log(snapshot.state == RoundState::kFailed ? LogLevel::kWarning : LogLevel::kInfo, "round_ended",
      {{"round", config.LogName()},
       {"state", Name(snapshot.state)},
       {"reason", snapshot.reason},
       {"submissions", snapshot.num_submissions},
       {"refused", snapshot.num_refused},
       {"withdrawn", snapshot.num_withdrawn},
       {"tuples", snapshot.num_tuples},
       {"bytes", snapshot.num_bytes},
       {"open_ms", snapshot.timeline.open},
       {"decode_ms", TimeOf(snapshot, RoundStage::kDecode).busy},
       {"prepare_ms", TimeOf(snapshot, RoundStage::kPrepare).busy},
       {"add_ms", snapshot.timeline.add},
       {"finish_ms", snapshot.timeline.finish},
       {"received_bytes", TimeOf(snapshot, RoundStage::kReceive).bytes},
       {"receive_wait_ms", TimeOf(snapshot, RoundStage::kReceive).wait},
       {"decode_wait_ms", TimeOf(snapshot, RoundStage::kDecode).wait},
       {"merge_ms", TimeOf(snapshot, RoundStage::kMerge).busy},
       {"merge_wait_ms", TimeOf(snapshot, RoundStage::kMerge).wait},
       {"longest", Name(LongestStage(snapshot.timeline.stages))}});
}

}  // namespace

Round::Round(RoundConfig config, const RoundServices& services, std::function<void()> on_expire,
             std::optional<absl::Time> create_time)
    : config_(std::make_shared<const RoundConfig>(std::move(config))),
      services_(services),
      on_expire_(std::move(on_expire)),
      create_time_(create_time.value_or(services.clock.WallTime())),
      // A time of day that was set back in between makes a round no younger than it is.
      created_at_(services.clock.Monotonic() -
                  std::max(services.clock.WallTime() - create_time_, absl::ZeroDuration())),
      journal_(std::make_shared<RoundJournal>(config_->id.empty() ? nullptr : services.store)),
      tenant_(services.tenants.Of(config_->tenant)),
      reservation_(&tenant_.budget, config_->KeepsSubmissions()),
      recent_refusals_(&tenant_.budget) {
  snapshot_.create_time = create_time_;
}

Round::~Round() {
  services_.timer.Cancel(deadline_timer_);
  services_.timer.Cancel(expire_timer_);
}

absl::StatusOr<std::shared_ptr<Round>> Round::Open(RoundConfig config, const RoundServices& services,
                                                   std::function<void()> on_expire,
                                                   std::optional<absl::Time> create_time) {
  Tenant& tenant = services.tenants.Of(config.tenant);
  if (!tenant.open_rounds.TryAcquire()) {
    return OpenLimitError(tenant.open_rounds, "open_rounds", "rounds", services.metrics);
  }
  Permit permit(&tenant.open_rounds);
  auto round = std::shared_ptr<Round>(new Round(std::move(config), services, std::move(on_expire), create_time));
  RETURN_IF_ERROR(round->Start(std::move(permit)));
  return round;
}

absl::Status Round::Start(Permit permit) {
  {
    MutexLock merge(&merge_mu_);
    fixed_bytes_ = kRoundOverheadBytes * (1 + config_->tensors.size()) + config_->wire_spec.size();
    ASSIGN_OR_RETURN(aggregation_, ToStatus([&] { return Aggregation::Create(services_.engine, config_->tensors); }));
    const uint64_t bytes = aggregation_->BytesWith(nullptr);
    const bool is_dense = bytes > aggregation_->memory_bytes();
    RETURN_IF_ERROR(
        reservation_.Grow(SaturatingAdd(fixed_bytes_, bytes), is_dense ? "a round with dense results" : "a round",
                          is_dense ? "ask for sparse results, which hold only the keys of submissions" : ""));
  }
  MutexLock lock(&mu_);
  open_permit_ = std::move(permit);
  return absl::OkStatus();
}

void Round::StartDeadline() {
  MutexLock lock(&mu_);
  if (snapshot_.state != RoundState::kOpen) return;
  deadline_timer_ = services_.timer.Schedule(created_at_ + config_->deadline, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->OnDeadline();
  });
}

void Round::OnDeadline() {
  const absl::Status closed = Close();
  if (closed.ok()) return;
  Log(LogLevel::kWarning, "deadline_not_stored", {{"round", config_->LogName()}, {"reason", closed.message()}});
  MutexLock lock(&mu_);
  deadline_timer_ = services_.timer.Schedule(services_.clock.Monotonic() + kDeadlineRetry, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->OnDeadline();
  });
}

absl::Status Round::NotOpenErrorLocked(RoundState state, absl::string_view reason) const {
  const bool has_result = state != RoundState::kFailed && state != RoundState::kCancelled;
  if (has_result && config_->max_submissions != 0 && snapshot_.num_submissions == config_->max_submissions) {
    const std::string full =
        absl::StrCat("there are max_submissions ", config_->max_submissions, " submissions already");
    // The caller of a one-shot call knows of no round.
    if (config_->id.empty()) return absl::FailedPreconditionError(full);
    return absl::FailedPreconditionError(absl::StrCat("the round is ", Name(state), ": ", full));
  }
  return StateError(state, reason);
}

absl::Status Round::Close() {
  MutexLock lock(&mu_);
  if (snapshot_.state != RoundState::kOpen) return absl::OkStatus();
  const absl::Status refusal = PrepareToFinalizeLocked();
  const Moment now = services_.clock.Now();
  RETURN_IF_ERROR(journal_->PutState(NextStateLocked(StateRecord::Name::kClosed, "", now.wall)));
  FinalizeLocked(refusal, now);
  return absl::OkStatus();
}

StateRecord Round::NextStateLocked(StateRecord::Name name, absl::string_view reason, absl::Time now) const {
  const absl::Time close_time = snapshot_.state == RoundState::kOpen ? now : snapshot_.close_time;
  return {name, std::string(reason), close_time, std::max(now, close_time)};
}

absl::Status Round::PrepareToFinalizeLocked() {
  absl::Status refusal = NotOpenErrorLocked(RoundState::kFinalizing, "");
  // If an allocation fails later, the tasks find nothing to do.
  PostNotifyDiscarded();
  PostFinish();
  return refusal;
}

void Round::FinalizeLocked(const absl::Status& refusal, const Moment& now) {
  snapshot_.state = RoundState::kFinalizing;
  SetClosedLocked(now);
  DiscardUploadsLocked(refusal);
}

void Round::SetClosedLocked(const Moment& now) {
  snapshot_.close_time = now.wall;
  closed_at_ = now.monotonic;
  services_.timer.Cancel(deadline_timer_);
}

void Round::DiscardUploadsLocked(const absl::Status& status) {
  for (auto it = uploads_.begin(); it != uploads_.end();) {
    UploadHandle& upload = *(it++)->second;  // DiscardLocked removes its entry
    if (!upload.is_committing_ && !committed_.contains(upload.client_id)) DiscardLocked(upload, status);
  }
}

absl::Status Round::Cancel(absl::string_view reason) {
  {
    MutexLock lock(&mu_);
    if (snapshot_.state == RoundState::kCancelled) return absl::OkStatus();
    if (HasEnded(snapshot_.state)) return StateError(snapshot_.state, snapshot_.reason);
    const Moment now = services_.clock.Now();
    RETURN_IF_ERROR(journal_->PutState(NextStateLocked(StateRecord::Name::kCancelled, reason, now.wall)));
    EndLocked(RoundState::kCancelled, absl::CancelledError(absl::StrCat("the round was cancelled: ", reason)),
              std::string(reason), now);
  }
  AnnounceEnd();
  return absl::OkStatus();
}

void Round::EndLocked(RoundState state, absl::Status failure, std::string reason, const Moment& now) {
  // All allocations come first. Tasks that are posted before an allocation fails find nothing to do.
  const absl::Status status = NotOpenErrorLocked(state, reason);
  PostNotifyDiscarded();
  if (!finish_started_) PostFinish();
  // A time of day that was set back neither ends the round before its close nor keeps it for longer than result_ttl.
  const absl::Time close_time = snapshot_.state == RoundState::kOpen ? now.wall : snapshot_.close_time;
  const absl::Time end_time = restored_end_.value_or(std::max(now.wall, close_time));
  const absl::Duration kept_for = config_->result_ttl - std::max(now.wall - end_time, absl::ZeroDuration());
  if (on_expire_ != nullptr) expire_timer_ = services_.timer.Schedule(now.monotonic + kept_for, on_expire_);

  if (snapshot_.state == RoundState::kOpen) SetClosedLocked(now);
  snapshot_.state = state;
  snapshot_.failure = std::move(failure);
  snapshot_.reason = std::move(reason);
  snapshot_.end_time = end_time;
  snapshot_.expire_time = now.wall + kept_for;
  snapshot_.timeline.finish = now.monotonic - closed_at_;
  services_.metrics.ObserveFinish(snapshot_.timeline.finish);
  if (state == RoundState::kCancelled) dropped_committed_.swap(committed_);
  DiscardUploadsLocked(status);
  open_permit_.Release();
}

void Round::AnnounceEnd() {
  ReleaseWaiters();
  LogEnd(*config_, Snapshot());
}

void Round::PostFinish() {
  services_.pool.Post([self = shared_from_this()] { self->FinishIfReady(); });
}

void Round::FinishIfReady() {
  {
    MutexLock lock(&mu_);
    if (snapshot_.state == RoundState::kOpen || num_committing_ > 0 || finish_started_) return;
    finish_started_ = true;
  }
  if (!Finish()) return;
  FailPoint("round_ended");
  // An error does no harm: the next restart computes the result again.
  journal_->PutState(StateToStore()).IgnoreError();
  AnnounceEnd();
}

StateRecord Round::StateToStore() const {
  MutexLock lock(&mu_);
  StateRecord record;
  record.name = snapshot_.state == RoundState::kDone        ? StateRecord::Name::kDone
                : snapshot_.state == RoundState::kFailed    ? StateRecord::Name::kFailed
                : snapshot_.state == RoundState::kCancelled ? StateRecord::Name::kCancelled
                                                            : StateRecord::Name::kClosed;
  record.reason = snapshot_.reason;
  record.close_time = snapshot_.close_time;
  record.end_time = snapshot_.end_time;
  return record;
}

bool Round::Finish() {
  // Nobody may read a result with a submission that a crash could still undo.
  const absl::Status durable = journal_->AwaitDurable();
  MutexLock merge(&merge_mu_);
  bool is_wanted;
  uint64_t num_submissions;
  absl::Duration closed_at;
  {
    MutexLock lock(&mu_);
    is_wanted = snapshot_.state == RoundState::kFinalizing;
    num_submissions = snapshot_.num_submissions;
    closed_at = closed_at_;
  }
  const absl::Duration begin = services_.clock.Monotonic();
  absl::StatusOr<Results> results = absl::CancelledError();
  if (is_wanted && num_submissions < config_->min_submissions) {
    results = absl::FailedPreconditionError(absl::StrCat(
        "closed with ", num_submissions, " submissions, below min_submissions ", config_->min_submissions));
  } else if (is_wanted) {
    results = ToStatus([aggregation = aggregation_.get()]() -> absl::StatusOr<Results> {
      ASSIGN_OR_RETURN(std::vector<Result> finished, std::move(*aggregation).Finish());
      return std::make_shared<const std::vector<Result>>(std::move(finished));
    });
  }
  aggregation_.reset();
  if (results.ok() && !durable.ok()) results = durable;
  if (is_wanted) RecordStage(RoundStage::kMerge, services_.clock.Monotonic() - begin, begin - closed_at, 0);

  MutexLock lock(&mu_);
  const bool ends = snapshot_.state == RoundState::kFinalizing;  // not cancelled meanwhile
  if (ends && results.ok()) {
    EndLocked(RoundState::kDone, absl::OkStatus(), "", services_.clock.Now());
    snapshot_.results = *std::move(results);
  } else if (ends) {
    EndLocked(RoundState::kFailed, results.status(), results.status().ToString(), services_.clock.Now());
  }
  if (committed_.empty()) committed_bytes_ = 0;  // cancelled
  uint64_t bytes = fixed_bytes_ + committed_bytes_;
  if (snapshot_.results != nullptr) {
    for (const Result& result : *snapshot_.results) bytes += result.memory_bytes();
  }
  reservation_.SetTo(bytes);
  return ends;
}

RoundSnapshot Round::Snapshot() const {
  MutexLock lock(&mu_);
  RoundSnapshot snapshot = snapshot_;
  snapshot.num_uploads = uploads_.size();
  snapshot.recent_refusals = recent_refusals_.list();
  snapshot.timeline.stages = stages_.Read();
  snapshot.timeline.add = absl::Nanoseconds(add_ns_.load(std::memory_order_relaxed));
  const absl::Duration now = services_.clock.Monotonic();
  snapshot.timeline.open = (snapshot_.state == RoundState::kOpen ? now : closed_at_) - created_at_;
  if (snapshot_.state == RoundState::kFinalizing) snapshot.timeline.finish = now - closed_at_;
  return snapshot;
}

RoundState Round::state() const {
  MutexLock lock(&mu_);
  return snapshot_.state;
}

absl::StatusOr<Results> Round::GetResults() const {
  MutexLock lock(&mu_);
  if (snapshot_.state != RoundState::kDone) return StateError(snapshot_.state, snapshot_.reason);
  return snapshot_.results;
}

Round::WaitId Round::Wait(absl::Duration timeout, std::function<void()> done) {
  WaitId id;
  {
    MutexLock lock(&mu_);
    id = next_id_++;
    if (!HasEnded(snapshot_.state)) {
      const Timer::Id timer =
          services_.timer.Schedule(services_.clock.Monotonic() + timeout, [weak = weak_from_this(), id] {
            if (const auto self = weak.lock()) self->OnWaitTimeout(id);
          });
      waiters_.emplace(id, Waiter{std::move(done), timer});
      return id;
    }
  }
  done();
  return id;
}

void Round::OnWaitTimeout(WaitId id) {
  std::map<WaitId, Waiter>::node_type waiter;
  {
    MutexLock lock(&mu_);
    waiter = waiters_.extract(id);
  }
  if (!waiter.empty()) waiter.mapped().done();
}

bool Round::StopWaiting(WaitId id) {
  std::map<WaitId, Waiter>::node_type waiter;  // freed after mu_ is released
  MutexLock lock(&mu_);
  waiter = waiters_.extract(id);
  if (waiter.empty()) return false;
  services_.timer.Cancel(waiter.mapped().timer);
  return true;
}

void Round::ReleaseWaiters() {
  std::map<WaitId, Waiter> released;
  {
    MutexLock lock(&mu_);
    released.swap(waiters_);
  }
  for (auto& [id, waiter] : released) {
    services_.timer.Cancel(waiter.timer);
    waiter.done();
  }
}

}  // namespace sparseagg::service
