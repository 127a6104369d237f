#include "service/rounds/round.h"

#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"
#include "service/base/to_status.h"

namespace sparseagg::service {
namespace {

// What a round takes beside its spec, submissions and result. A round figure above the true one.
constexpr uint64_t kRoundOverheadBytes = 4096;

const StageTime& Time(const Timeline& timeline, RoundStage stage) {
  return timeline.stages[static_cast<size_t>(stage)];
}

}  // namespace

absl::string_view Name(RoundState state) {
  switch (state) {
    case RoundState::kOpen:
      return "OPEN";
    case RoundState::kFinalizing:
      return "FINALIZING";
    case RoundState::kDone:
      return "DONE";
    case RoundState::kFailed:
      return "FAILED";
    case RoundState::kCancelled:
      return "CANCELLED";
  }
  return "?";
}

Round::Round(RoundConfig config, ServerContext* server, std::function<void()> on_expire)
    : config_(std::make_shared<const RoundConfig>(std::move(config))),
      server_(*server),
      on_expire_(std::move(on_expire)),
      created_(server->clock.Monotonic()),
      held_(&server->budget, config_->KeepsSubmissions()) {
  now_.create_time = server_.clock.WallTime();
}

Round::~Round() {
  server_.timer.Cancel(deadline_timer_);
  server_.timer.Cancel(expire_timer_);
}

absl::StatusOr<std::shared_ptr<Round>> Round::Open(RoundConfig config, ServerContext* server,
                                                   std::function<void()> on_expire) {
  if (!server->open_rounds.TryAcquire()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("max_open_rounds ", server->open_rounds.limit(), " rounds are open already"));
  }
  Permit slot(&server->open_rounds);
  auto round = std::shared_ptr<Round>(new Round(std::move(config), server, std::move(on_expire)));
  {
    std::lock_guard merge(round->merge_mu_);
    round->fixed_bytes_ = kRoundOverheadBytes * (1 + round->config().tensors.size()) + round->config().wire_spec.size();
    ASSIGN_OR_RETURN(round->aggregation_,
                     ToStatus([&] { return Aggregation::Create(server->engine, round->config().tensors); }));
    const uint64_t bytes = round->aggregation_->BytesWith(nullptr);
    const bool is_dense = bytes > round->aggregation_->memory_bytes();
    RETURN_IF_ERROR(round->held_.Grow(SaturatingAdd(round->fixed_bytes_, bytes),
                                      is_dense ? "a round with dense results" : "a round",
                                      is_dense ? "sparse results hold only the keys that were touched" : ""));
  }
  std::lock_guard lock(round->mu_);
  round->open_permit_ = std::move(slot);
  return round;
}

void Round::StartDeadline() {
  std::lock_guard lock(mu_);
  if (now_.state != RoundState::kOpen) return;
  deadline_timer_ = server_.timer.Schedule(created_ + config_->deadline, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Close();
  });
}

absl::Status Round::NotOpenLocked() const {
  const bool was_cut_short = now_.state == RoundState::kFailed || now_.state == RoundState::kCancelled;
  if (!was_cut_short && config_->max_submissions != 0 && now_.num_submissions == config_->max_submissions) {
    const std::string full =
        absl::StrCat("there are max_submissions ", config_->max_submissions, " submissions already");
    // A one-shot call knows of no round.
    if (config_->id.empty()) return absl::FailedPreconditionError(full);
    return absl::FailedPreconditionError(absl::StrCat("the round is ", Name(now_.state), ": ", full));
  }
  return IsInStateLocked();
}

absl::Status Round::IsInStateLocked() const {
  return absl::FailedPreconditionError(
      absl::StrCat("the round is ", Name(now_.state), now_.reason.empty() ? "" : ": ", now_.reason));
}

void Round::Close() {
  std::lock_guard lock(mu_);
  if (now_.state == RoundState::kOpen) FinalizeLocked();
}

void Round::FinalizeLocked() {
  now_.state = RoundState::kFinalizing;
  now_.close_time = server_.clock.WallTime();
  closed_ = server_.clock.Monotonic();
  server_.timer.Cancel(deadline_timer_);
  DropUploadsLocked();
  PostFinishLocked();
}

void Round::DropUploadsLocked() {
  const absl::Status verdict = NotOpenLocked();
  std::vector<std::shared_ptr<UploadHandle>> uploads;
  for (const auto& [id, upload] : uploads_) {
    // Only retries of what is committed have a meaning from here on.
    if (!upload->committing_ && !committed_.contains(upload->client_id)) uploads.push_back(upload);
  }
  for (const auto& upload : uploads) DiscardLocked(*upload, verdict);
}

absl::Status Round::Cancel(absl::string_view reason) {
  RunAfterUnlock after;
  std::lock_guard lock(mu_);
  if (now_.state == RoundState::kCancelled) return absl::OkStatus();
  if (HasEnded(now_.state)) return IsInStateLocked();
  EndLocked(RoundState::kCancelled, absl::CancelledError(absl::StrCat("the round was cancelled: ", reason)),
            std::string(reason), after);
  return absl::OkStatus();
}

void Round::EndLocked(RoundState state, absl::Status failure, std::string reason, RunAfterUnlock& after) {
  const absl::Duration now = server_.clock.Monotonic();
  if (now_.state == RoundState::kOpen) {
    now_.close_time = server_.clock.WallTime();
    closed_ = now;
    server_.timer.Cancel(deadline_timer_);
  }
  now_.state = state;
  now_.failure = std::move(failure);
  now_.reason = std::move(reason);
  now_.end_time = server_.clock.WallTime();
  now_.expire_time = now_.end_time + config_->result_ttl;
  now_.timeline.finish = now - closed_;
  server_.metrics.ObserveFinish(now_.timeline.finish);
  if (state == RoundState::kCancelled) {
    // Freeing a million of them takes time, which neither this lock nor gRPC's threads have.
    auto dropped = std::make_shared<decltype(committed_)>(std::exchange(committed_, {}));
    server_.pool.Post([dropped = std::move(dropped)] {});
  }
  DropUploadsLocked();
  PostFinishLocked();
  open_permit_.Release();
  if (on_expire_ != nullptr) {
    expire_timer_ = server_.timer.Schedule(now + config_->result_ttl, on_expire_);
  }
  for (auto& [id, waiter] : waiters_) {
    server_.timer.Cancel(waiter.timer);
    after.Add(std::move(waiter.done));
  }
  waiters_.clear();
  after.Add([this, snapshot = SnapshotLocked()] { LogEnd(snapshot); });
}

void Round::PostFinishLocked() {
  // A commit that has looked at the state but not added yet uses the aggregation; the last one posts instead.
  if (now_.state == RoundState::kOpen || preparing_ > 0 || finish_posted_) return;
  finish_posted_ = true;
  server_.pool.Post([self = shared_from_this()] { self->Finish(); });
}

void Round::Finish() {
  RunAfterUnlock after;
  std::lock_guard merge(merge_mu_);
  bool wanted;
  uint64_t num_submissions;
  {
    std::lock_guard lock(mu_);
    wanted = now_.state == RoundState::kFinalizing;
    num_submissions = now_.num_submissions;
  }
  const absl::Duration begin = server_.clock.Monotonic();
  absl::StatusOr<std::vector<Result>> results = absl::CancelledError();
  if (wanted && num_submissions < config_->min_submissions) {
    results = absl::FailedPreconditionError(absl::StrCat(
        "closed with ", num_submissions, " submissions, below min_submissions ", config_->min_submissions));
  } else if (wanted) {
    results = ToStatus([&] { return std::move(*aggregation_).Finish(); });
  }
  aggregation_.reset();

  std::lock_guard lock(mu_);
  if (wanted) Note(RoundStage::kMerge, server_.clock.Monotonic() - begin, begin - closed_, 0);
  if (now_.state == RoundState::kFinalizing) {  // not cancelled meanwhile
    if (results.ok()) {
      now_.results = std::make_shared<const std::vector<Result>>(*std::move(results));
      EndLocked(RoundState::kDone, absl::OkStatus(), "", after);
    } else {
      EndLocked(RoundState::kFailed, results.status(), results.status().ToString(), after);
    }
  }
  if (committed_.empty()) committed_bytes_ = 0;  // cancelled
  uint64_t bytes = fixed_bytes_ + committed_bytes_;
  if (now_.results != nullptr) {
    for (const Result& result : *now_.results) bytes += result.memory_bytes();
  }
  held_.SetTo(bytes);
}

RoundSnapshot Round::Snapshot() const {
  std::lock_guard lock(mu_);
  return SnapshotLocked();
}

RoundState Round::state() const {
  std::lock_guard lock(mu_);
  return now_.state;
}

absl::Time Round::create_time() const {
  std::lock_guard lock(mu_);
  return now_.create_time;
}

RoundSnapshot Round::SnapshotLocked() const {
  RoundSnapshot snapshot = now_;
  snapshot.num_uploads = uploads_.size();
  snapshot.timeline.stages = stages_.Read();
  snapshot.timeline.decode = Time(snapshot.timeline, RoundStage::kDecode).busy;
  snapshot.timeline.prepare = Time(snapshot.timeline, RoundStage::kPrepare).busy;
  snapshot.timeline.add = absl::Nanoseconds(add_ns_.load(std::memory_order_relaxed));
  const absl::Duration now = server_.clock.Monotonic();
  snapshot.timeline.open = (now_.state == RoundState::kOpen ? now : closed_) - created_;
  if (now_.state == RoundState::kFinalizing) snapshot.timeline.finish = now - closed_;
  return snapshot;
}

absl::StatusOr<Results> Round::GetResults() const {
  std::lock_guard lock(mu_);
  if (now_.state != RoundState::kDone) return IsInStateLocked();
  return now_.results;
}

Round::WaitId Round::Wait(absl::Duration timeout, std::function<void()> done) {
  RunAfterUnlock after;
  std::lock_guard lock(mu_);
  const WaitId id = next_id_++;
  if (HasEnded(now_.state)) {
    after.Add(std::move(done));
    return id;
  }
  Waiter waiter{std::move(done)};
  waiter.timer = server_.timer.Schedule(server_.clock.Monotonic() + timeout, [weak = weak_from_this(), id] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    RunAfterUnlock timed_out;
    std::lock_guard self_lock(self->mu_);
    const auto found = self->waiters_.find(id);
    if (found == self->waiters_.end()) return;
    timed_out.Add(std::move(found->second.done));
    self->waiters_.erase(found);
  });
  waiters_.emplace(id, std::move(waiter));
  return id;
}

bool Round::StopWaiting(WaitId id) {
  std::lock_guard lock(mu_);
  const auto found = waiters_.find(id);
  if (found == waiters_.end()) return false;
  server_.timer.Cancel(found->second.timer);
  waiters_.erase(found);
  return true;
}

void Round::ReleaseWaiters() {
  RunAfterUnlock after;
  std::lock_guard lock(mu_);
  for (auto& [id, waiter] : waiters_) {
    server_.timer.Cancel(waiter.timer);
    after.Add(std::move(waiter.done));
  }
  waiters_.clear();
}

void Round::LogEnd(const RoundSnapshot& snapshot) const {
  const Timeline& t = snapshot.timeline;
  Log(snapshot.state == RoundState::kFailed ? LogLevel::kWarning : LogLevel::kInfo, "round_ended",
      {{"round", config_->id},
       {"state", Name(snapshot.state)},
       {"reason", snapshot.reason},
       {"submissions", snapshot.num_submissions},
       {"refused", snapshot.num_refused},
       {"tuples", snapshot.num_tuples},
       {"bytes", snapshot.num_bytes},
       {"open_ms", t.open},
       {"decode_ms", t.decode},
       {"prepare_ms", t.prepare},
       {"add_ms", t.add},
       {"finish_ms", t.finish},
       {"received_bytes", Time(t, RoundStage::kReceive).bytes},
       {"receive_wait_ms", Time(t, RoundStage::kReceive).wait},
       {"decode_wait_ms", Time(t, RoundStage::kDecode).wait},
       {"merge_ms", Time(t, RoundStage::kMerge).busy},
       {"merge_wait_ms", Time(t, RoundStage::kMerge).wait},
       {"longest", Name(LongestStage(t.stages))}});
}

}  // namespace sparseagg::service
