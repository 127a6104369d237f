#include "service/rounds/round.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/base/log.h"
#include "service/base/refusals.h"

namespace sparseagg::service {
namespace {

// Time until a deadline is tried again that could not be stored.
constexpr absl::Duration kDeadlineRetry = absl::Seconds(1);

const StageTime& TimeOf(const RoundSnapshot& snapshot, RoundStage stage) {
  return snapshot.timeline.stages[static_cast<size_t>(stage)];
}

// The error for a call that the round's state does not allow.
absl::Status StateError(RoundState state, absl::string_view reason) {
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat("the round is ", Name(state), reason.empty() ? "" : ": ", reason)),
      "WRONG_ROUND_STATE", {{"state", Name(state)}});
}

void LogEnd(const RoundConfig& config, const RoundSnapshot& snapshot) {
  Log(snapshot.state == RoundState::kFailed ? LogLevel::kWarning : LogLevel::kInfo, "round_ended",
      {{"round", config.LogName()},
       {"state", Name(snapshot.state)},
       {"reason", snapshot.reason},
       {"submissions", snapshot.num_submissions},
       {"refused", snapshot.num_refused},
       {"withdrawn", snapshot.num_withdrawn},
       {"clipped", snapshot.clip.num_clipped},
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
      is_restored_(create_time.has_value()),
      meter_(*config_, tenant_, services.metrics, is_restored_),
      waits_(services.clock, services.timer),
      intake_(*this, config_, services, tenant_, journal_, meter_),
      ranges_(&tenant_.budget, journal_),
      sum_(*config_, &tenant_.budget),
      life_(create_time_, created_at_) {}

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
  RETURN_IF_ERROR(RoundCertificate::Check(config, services));
  if (config.has_certificate && config.leaf_salt_key.empty()) {
    ASSIGN_OR_RETURN(config.leaf_salt_key, services.certifier->MakeSaltKey(config.tenant, config.id));
  }
  if (config.HasPrivacy() && !create_time.has_value()) config.release_id = privacy::DrawReleaseId();
  auto round = std::shared_ptr<Round>(new Round(std::move(config), services, std::move(on_expire), create_time));
  {
    MutexLock merge(&round->merge_mu_);
    RETURN_IF_ERROR(round->sum_.Create(services.engine, services.noise_key));
  }
  MutexLock lock(&round->mu_);
  round->open_permit_ = std::move(permit);
  return round;
}

Timer::Id Round::ScheduleClose(absl::Duration at) {
  return services_.timer.Schedule(at, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CloseSoon();
  });
}

void Round::StartDeadline() {
  MutexLock lock(&mu_);
  if (life_.is_open()) deadline_timer_ = ScheduleClose(created_at_ + config_->deadline);
}

void Round::CloseSoon() {
  MutexLock lock(&mu_);
  if (!life_.is_open()) return;  // sealed or closed in the meantime
  const absl::Status closed = CloseLocked();
  if (closed.ok()) return;
  Log(LogLevel::kWarning, "deadline_not_stored", {{"round", config_->LogName()}, {"reason", closed.message()}});
  deadline_timer_ = ScheduleClose(services_.clock.Monotonic() + kDeadlineRetry);
}

absl::Status Round::NotOpenErrorLocked(RoundState state, absl::string_view reason) const {
  const bool has_result = state != RoundState::kFailed && state != RoundState::kCancelled;
  if (has_result && config_->max_submissions != 0 && committed_.num_submissions() >= config_->max_submissions) {
    const std::string full =
        absl::StrCat("there are max_submissions ", config_->max_submissions, " submissions already");
    // The caller of a one-shot call knows of no round.
    if (config_->id.empty()) return absl::FailedPreconditionError(full);
    return StateError(state, full);
  }
  return StateError(state, reason);
}

absl::Status Round::Seal() {
  RETURN_IF_ERROR(Freeze());
  intake_.AnnounceClosed();
  return absl::OkStatus();
}

absl::Status Round::Freeze() {
  {
    MutexLock lock(&mu_);  // first of all, so that the call does not wait for a final merge
    if (!life_.is_open()) return IsReadableLocked() ? absl::OkStatus() : NotOpenErrorLocked();
  }
  // A commit holds it from its last look at the state until its submission is recorded.
  MutexLock merge(&merge_mu_);
  MutexLock lock(&mu_);
  if (!life_.is_open()) return IsReadableLocked() ? absl::OkStatus() : NotOpenErrorLocked();
  const absl::Status refusal = NotOpenErrorLocked(RoundState::kSealed, "");
  intake_.PrepareToClose();
  const StateRecord record = life_.NextRecord(StateRecord::Name::kSealed, "", services_.clock.WallTime());
  RETURN_IF_ERROR(journal_->PutState(record));
  life_.Seal();
  services_.timer.Cancel(deadline_timer_);
  CloseIntakeLocked(refusal);
  return absl::OkStatus();
}

absl::Status Round::Close() {
  MutexLock lock(&mu_);
  return life_.is_closed() ? absl::OkStatus() : CloseLocked();
}

absl::Status Round::CloseLocked() {
  const absl::Status refusal = PrepareToFinalizeLocked();
  const Moment now = services_.clock.Now();
  RETURN_IF_ERROR(journal_->PutState(life_.NextRecord(StateRecord::Name::kClosed, "", now.wall)));
  FinalizeLocked(refusal, now);
  return absl::OkStatus();
}

absl::Status Round::PrepareToFinalizeLocked() {
  absl::Status refusal = NotOpenErrorLocked(RoundState::kFinalizing, "");
  // If an allocation fails later, the tasks find nothing to do.
  intake_.PrepareToClose();
  PostFinish();
  return refusal;
}

void Round::FinalizeLocked(const absl::Status& refusal, const Moment& now) {
  life_.Close(now);
  services_.timer.Cancel(deadline_timer_);
  ranges_.Close(/*drops=*/false);
  CloseIntakeLocked(refusal);
}

void Round::CloseIntakeLocked(const absl::Status& status) {
  intake_.Close(status, [&](const std::string& client_id)
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return committed_.Find(client_id) != nullptr; });
}

absl::Status Round::Cancel(absl::string_view reason) {
  {
    MutexLock lock(&mu_);
    if (life_.state() == RoundState::kCancelled) return absl::OkStatus();
    if (life_.has_ended()) return StateError(life_.state(), life_.reason());
    const Moment now = services_.clock.Now();
    RETURN_IF_ERROR(journal_->PutState(life_.NextRecord(StateRecord::Name::kCancelled, reason, now.wall)));
    EndLocked(RoundState::kCancelled, absl::CancelledError(absl::StrCat("the round was cancelled: ", reason)),
              std::string(reason), now);
  }
  AnnounceEnd();
  return absl::OkStatus();
}

void Round::EndLocked(RoundState state, absl::Status failure, std::string reason, const Moment& now) {
  // All allocations come first. Tasks that are posted before an allocation fails find nothing to do.
  const absl::Status status = NotOpenErrorLocked(state, reason);
  intake_.PrepareToClose();
  PostFinish();
  const absl::Duration time_to_expiry = life_.TimeToExpiry(config_->result_ttl, now);
  if (on_expire_ != nullptr) {
    expire_timer_ = services_.timer.Schedule(now.monotonic + time_to_expiry, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Expire();
    });
  }

  services_.timer.Cancel(deadline_timer_);
  meter_.CountEnd(life_.End(state, std::move(failure), std::move(reason), time_to_expiry, now));
  if (state == RoundState::kCancelled) committed_.DropAll();
  if (state != RoundState::kDone) ranges_.Close(/*drops=*/true);
  CloseIntakeLocked(status);
  open_permit_.Release();
}

std::shared_ptr<const void> Round::Hold() {
  MutexLock lock(&mu_);
  ++num_holds_;
  return {this, [self = shared_from_this()](const Round*) {
            bool is_due;
            {
              MutexLock held(&self->mu_);
              is_due = --self->num_holds_ == 0 && self->has_expired_;
            }
            if (is_due) self->on_expire_();
          }};
}

void Round::Expire() {
  {
    MutexLock lock(&mu_);
    has_expired_ = true;
    if (num_holds_ > 0) return;
  }
  on_expire_();
}

void Round::AnnounceEnd() {
  waits_.End();
  intake_.AnnounceClosed();
  LogEnd(*config_, Snapshot());
}

void Round::PostFinish() {
  services_.pool.Post([self = shared_from_this()] { self->FinishIfReady(); });
}

void Round::FinishIfReady() {
  SubmissionTable::Map dropped;  // of a Cancel; freed after mu_ is released
  {
    MutexLock lock(&mu_);
    dropped = committed_.TakeDropped();
    if (!life_.TryStartFinish()) return;
  }
  if (!Finish()) return;
  FailPoint("round_ended");
  // An error does no harm: the next restart computes the result again.
  journal_->PutState(RecordState()).IgnoreError();
  AnnounceEnd();
}

StateRecord Round::RecordState() const {
  MutexLock lock(&mu_);
  StateRecord record = life_.Record();
  record.certificate = certificate_.issued().envelope;
  record.certificate_content = certificate_.issued().content;
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
    is_wanted = life_.state() == RoundState::kFinalizing;
    num_submissions = committed_.num_submissions();
    closed_at = life_.closed_at();
  }
  const absl::Duration begin = services_.clock.Monotonic();
  absl::StatusOr<Results> results = absl::CancelledError();
  if (is_wanted && num_submissions < config_->min_submissions) {
    results = absl::FailedPreconditionError(absl::StrCat(
        "closed with ", num_submissions, " submissions, below min_submissions ", config_->min_submissions));
  } else if (is_wanted) {
    results = sum_.Finish();
  }
  sum_.Free();
  if (results.ok() && !durable.ok()) results = durable;
  if (is_wanted && config_->has_certificate) results = Certify(std::move(results));
  if (is_wanted) meter_.RecordStage(RoundStage::kMerge, services_.clock.Monotonic() - begin, begin - closed_at, 0);

  MutexLock lock(&mu_);
  const bool ends = life_.state() == RoundState::kFinalizing;  // not cancelled meanwhile
  if (ends && results.ok()) {
    EndLocked(RoundState::kDone, absl::OkStatus(), "", services_.clock.Now());
    life_.SetResults(*std::move(results));
  } else if (ends) {
    EndLocked(RoundState::kFailed, results.status(), results.status().ToString(), services_.clock.Now());
  }
  sum_.ReserveResults(life_.results(), /*keeps_submissions=*/life_.state() != RoundState::kCancelled);
  return ends;
}

RoundSnapshot Round::Snapshot() const {
  MutexLock lock(&mu_);
  RoundSnapshot snapshot;
  static_cast<IntakeSnapshot&>(snapshot) = intake_.Snapshot();
  life_.Fill(snapshot, services_.clock.Monotonic());
  snapshot.num_submissions = committed_.num_submissions();
  snapshot.num_tuples = committed_.num_tuples();
  snapshot.num_bytes = committed_.num_bytes();
  snapshot.num_withdrawn = committed_.num_withdrawn();
  snapshot.clip = committed_.clip();
  meter_.Fill(snapshot.timeline);
  return snapshot;
}

RoundState Round::state() const {
  MutexLock lock(&mu_);
  return life_.state();
}

absl::StatusOr<Results> Round::GetResults() const {
  MutexLock lock(&mu_);
  if (life_.state() != RoundState::kDone) return StateError(life_.state(), life_.reason());
  if (life_.keeps_sum()) {
    return absl::FailedPreconditionError(
        "the round is one of a cluster, and its servers have ranges of the result: GetResultRange reads them");
  }
  return life_.results();
}

Round::WaitId Round::Wait(absl::Duration timeout, std::function<void()> done) {
  if (!HasEnded(state())) return waits_.Add(timeout, std::move(done), weak_from_this());
  done();
  return 0;
}

}  // namespace sparseagg::service
