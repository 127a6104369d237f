#include "service/streams/stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/base/log.h"
#include "service/base/refusals.h"

namespace sparseagg::service {
namespace {

// Time until a cut by the timer is tried again that has failed.
constexpr absl::Duration kTimerRetry = absl::Seconds(1);

// Neither id has control characters.
std::string NameOf(absl::string_view client_id, absl::string_view submission_id) {
  return absl::StrCat(client_id, "\n", submission_id);
}

// Returns: the id of the round that is a version of the stream.
std::string VersionId(const StreamConfig& config, uint64_t version) {
  return absl::StrCat(config.round.id, ".v", version);
}

// Returns: the config of the stream's uploads.
RoundConfig UploadsOf(const StreamConfig& stream) {
  RoundConfig config = stream.round;
  config.takes_base_version = true;
  return config;
}

}  // namespace

Stream::Stream(StreamConfig config, Registry* registry, const RoundServices& services, Permit permit,
               std::optional<absl::Time> create_time)
    : config_(std::move(config)),
      registry_(*registry),
      services_(services),
      create_time_(create_time.value_or(services.clock.WallTime())),
      uploads_(std::make_shared<const RoundConfig>(UploadsOf(config_))),
      journal_(std::make_shared<RoundJournal>(services.store)),
      meter_(*uploads_, services.tenants.Of(config_.round.tenant), services.metrics, create_time.has_value()),
      intake_(*this, uploads_, services, services.tenants.Of(config_.round.tenant), journal_, meter_),
      open_permit_(std::move(permit)),
      staleness_counts_(config_.staleness_weights.size()) {}

Stream::~Stream() { services_.timer.Cancel(timer_); }

absl::StatusOr<std::shared_ptr<Stream>> Stream::Open(StreamConfig config, Registry* registry,
                                                     const RoundServices& services,
                                                     std::optional<absl::Time> create_time) {
  Tenant& tenant = services.tenants.Of(config.round.tenant);
  if (!tenant.open_rounds.TryAcquire()) {
    return OpenLimitError(tenant.open_rounds, "open_rounds", "rounds", services.metrics);
  }
  return std::shared_ptr<Stream>(
      new Stream(std::move(config), registry, services, Permit(&tenant.open_rounds), create_time));
}

absl::StatusOr<std::shared_ptr<Stream>> Stream::Create(StreamConfig config, Registry* registry,
                                                       const RoundServices& services) {
  ASSIGN_OR_RETURN(auto stream, Open(std::move(config), registry, services, std::nullopt));
  bool has_version = false;
  const auto prepare = [&]() -> absl::Status {
    RETURN_IF_ERROR(stream->RestoreVersions({}));
    has_version = true;
    FailPoint("stream_created");
    return absl::OkStatus();
  };
  absl::Status listed = registry->AddIntake({stream, &stream->intake_}, prepare,
                                            [&](uint64_t number) { return stream->StartJournal(number); });
  if (listed.ok()) return stream;
  if (has_version) registry->Delete(stream->config_.round.tenant, VersionId(stream->config_, 1)).IgnoreError();
  return listed;
}

absl::StatusOr<std::shared_ptr<Stream>> Stream::Reopen(StreamConfig config, Registry* registry,
                                                       const RoundServices& services, uint64_t number,
                                                       absl::Time create_time) {
  ASSIGN_OR_RETURN(auto stream, Open(std::move(config), registry, services, create_time));
  registry->RestoreIntake({stream, &stream->intake_}, number);
  return stream;
}

absl::Status Stream::StartJournal(uint64_t number) {
  if (!journal_->HasStore()) return absl::OkStatus();
  journal_->Start(number);
  RoundRecord record{config_.round.tenant, config_.round.id, config_.round.wire_spec, create_time_, "", "", ""};
  record.stream_spec = config_.wire_spec;
  return journal_->Write(&Store::PutRound, record);
}

RoundConfig Stream::VersionConfig(uint64_t version) const {
  RoundConfig config = config_.round;
  config.id = VersionId(config_, version);
  config.max_submissions = 0;  // the stream cuts it
  const bool has_factors = config_.HasFactors();
  config.stream = std::make_shared<StreamPart>(StreamPart{config_.round.id, version, has_factors, uploads_});
  for (TensorSpec& tensor : config.tensors) {
    if (!has_factors) break;
    tensor.aggregation.weighting = Weighting::kByWeight;
  }
  return config;
}

absl::Status Stream::RestoreVersions(const Stored& stored) {
  MutexLock lock(&mu_);
  if (!stored.cuts.empty()) version_ = stored.cuts.rbegin()->first + 1;
  for (const auto& [version, cut] : stored.cuts) next_position_ = std::max(next_position_, cut.next_position);
  for (const auto& [version, round] : stored.versions) {
    if (version > version_) {
      // The run ended between the creation of the version and the cut, so that it has no commit.
      RETURN_IF_ERROR(registry_.Delete(config_.round.tenant, round->config().id).status());
      continue;
    }
    Version& kept = versions_[version];
    kept.round = round;
    if (const auto cut = stored.cuts.find(version); cut != stored.cuts.end()) {
      kept.cause = static_cast<CutCause>(cut->second.cause);
      kept.cut_time = cut->second.time;
    }
    uint64_t num_commits = 0;
    round->ReadCommitted([&, version = version](const SubmissionTable::Map& all) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      num_commits = all.size();
      for (const auto& [key, submission] : all) {
        const StreamPlace place = submission.receipt.stream.value_or(StreamPlace());
        next_position_ = std::max(next_position_, place.position + 1);
        const std::string name = NameOf(submission.receipt.client_id, submission.receipt.submission_id);
        const auto entry = commits_.emplace(name, Entry{version, place.position, /*is_in_flight=*/false}).first;
        kept.names.push_back(&entry->first);
      }
    });
    if (version < version_) {
      round->CloseSoon();  // no effect on most: they are closed
    } else {
      current_ = round;
      num_slots_ = num_commits;
    }
  }
  if (current_ == nullptr) {
    ASSIGN_OR_RETURN(current_, registry_.Create(VersionConfig(version_)));
    versions_[version_].round = current_;
  }
  FollowWrites(*current_);
  if (num_slots_ >= config_.buffer) {
    CutLocked(CutCause::kFull).IgnoreError();  // else the next commit tries again
  } else if (num_slots_ > 0) {
    StartTimerLocked(config_.max_interval);
  }
  return absl::OkStatus();
}

absl::Status Stream::NotFoundError() const {
  return absl::NotFoundError(absl::StrCat("no stream '", config_.round.id, "'"));
}

RoundState Stream::state() const {
  MutexLock lock(&mu_);
  return is_deleted_ ? RoundState::kCancelled : RoundState::kOpen;
}

absl::Status Stream::CheckOpen() const {
  MutexLock lock(&mu_);
  return is_deleted_ ? NotFoundError() : absl::OkStatus();
}

std::string Stream::KeyOf(absl::string_view client_id, uint64_t position) const {
  if (config_.one_per_client) return std::string(client_id);
  // Ids have no control characters, so that all keys of one client are together, and in the place of its id. Digits, so
  // that a key is text.
  return absl::StrCat(client_id, absl::string_view("\0", 1), absl::StrFormat("%016x", position));
}

absl::StatusOr<double> Stream::WeightOfLocked(uint64_t base_version) const {
  if (base_version >= version_) {
    return absl::InvalidArgumentError(absl::StrCat("base_version ", base_version, " is in the future: version ",
                                                   version_, " of stream '", config_.round.id, "' is being filled"));
  }
  const uint64_t staleness = version_ - 1 - base_version;
  if (staleness < config_.staleness_weights.size()) return config_.staleness_weights[staleness];
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat(
          "stale by ", staleness, ": base_version ", base_version, ", where version ", version_ - 1, " of stream '",
          config_.round.id, "' is the latest, and max_staleness is ", config_.staleness_weights.size() - 1)),
      "STALE_BASE_VERSION", {{"staleness", absl::StrCat(staleness)}});
}

std::optional<CommittedSubmission> Stream::FindLocked(const Entry& entry, absl::string_view client_id) const {
  const auto version = versions_.find(entry.version);
  const std::shared_ptr<Round> round = version == versions_.end() ? nullptr : version->second.round.lock();
  return round == nullptr ? std::nullopt : round->FindCommitted({KeyOf(client_id, entry.position), ""});
}

std::optional<CommittedSubmission> Stream::FindCommitted(UploadName name, const std::string* tag) const {
  MutexLock lock(&mu_);
  const auto entry = commits_.find(NameOf(name.first, name.second));
  if (is_deleted_ || entry == commits_.end() || entry->second.is_in_flight) return std::nullopt;
  std::optional<CommittedSubmission> found = FindLocked(entry->second, name.first);
  return found.has_value() && (tag == nullptr || found->tag == *tag) ? found : std::nullopt;
}

absl::Status Stream::KeepFrom(uint64_t version, absl::string_view owner) {
  Holds dropped;  // released after mu_
  MutexLock lock(&mu_);
  if (is_deleted_) return NotFoundError();
  if (!owner_.empty() && owner_ != owner) {
    return absl::FailedPreconditionError(
        absl::StrCat("the stream '", config_.round.id, "' drives the model '", owner_, "' already"));
  }
  Holds holds = holds_;
  for (uint64_t each = version; each <= version_; ++each) {
    if (holds.count(each) > 0) continue;
    const auto found = versions_.find(each);
    const std::shared_ptr<Round> round = found == versions_.end() ? nullptr : found->second.round.lock();
    if (round == nullptr) break;
    holds.emplace(each, round->Hold());
  }
  if (holds.count(version) == 0) {
    return absl::FailedPreconditionError(absl::StrCat("the stream '", config_.round.id, "' has no version ", version,
                                                      version > version_ ? " yet" : " any more"));
  }
  holds.erase(holds.begin(), holds.lower_bound(version));
  owner_ = std::string(owner);
  keep_from_ = version;
  dropped = std::exchange(holds_, std::move(holds));
  return absl::OkStatus();
}

void Stream::Release(absl::string_view owner) {
  Holds dropped;  // released after mu_
  MutexLock lock(&mu_);
  if (owner_ != owner) return;
  owner_.clear();
  dropped.swap(holds_);
}

std::optional<uint64_t> Stream::LatestVersion() const {
  MutexLock lock(&mu_);
  if (!owner_.empty()) return keep_from_ - 1;
  for (auto version = versions_.rbegin(); version != versions_.rend(); ++version) {
    const std::shared_ptr<Round> round = version->second.round.lock();
    if (round != nullptr && round->state() == RoundState::kDone) return version->first;
  }
  return 0;
}

absl::StatusOr<Receipt> Stream::AnswerAgain(const CommittedSubmission& found, const CompleteUpload& upload) {
  if (found.hash != upload.hash) {
    return absl::AlreadyExistsError(absl::StrCat("client '", upload.client_id, "' has committed submission '",
                                                 upload.submission_id,
                                                 "' with other content; send another update under another id"));
  }
  Receipt receipt = found.receipt;
  receipt.duplicate = true;
  return receipt;
}

absl::StatusOr<Receipt> Stream::Commit(CompleteUpload& upload) {
  const std::string name = NameOf(upload.client_id, upload.submission_id);
  std::shared_ptr<Round> round;
  StreamPlace place;
  {
    MutexLock lock(&mu_);
    while (true) {
      if (is_deleted_) return NotFoundError();
      if (const auto found = commits_.find(name); found != commits_.end()) {
        if (found->second.is_in_flight) {
          changed_.Wait(&mu_);
          continue;
        }
        const std::optional<CommittedSubmission> committed = FindLocked(found->second, upload.client_id);
        if (committed.has_value()) {
          absl::StatusOr<Receipt> answer = AnswerAgain(*committed, upload);
          if (answer.ok()) services_.metrics.CountSubmission(true, answer->num_tuples, answer->num_bytes);
          return answer;
        }
        EraseLocked(found);  // its version is gone
        continue;
      }
      ASSIGN_OR_RETURN(place.weight, WeightOfLocked(upload.content.base_version()));
      if (HasEnded(current_->state())) {  // an Add has failed half way
        RETURN_IF_ERROR(CutLocked(CutCause::kFull));
      } else if (num_slots_ < config_.buffer) {
        break;
      } else if (num_in_flight_ == 0) {  // the cut has failed before
        RETURN_IF_ERROR(CutLocked(CutCause::kFull));
      } else {
        changed_.Wait(&mu_);
      }
    }
    round = current_;
    place.version = version_;
    place.base_version = upload.content.base_version();
    place.position = next_position_;
    std::vector<const std::string*>& names = versions_[version_].names;
    if (names.size() == names.capacity()) names.reserve(2 * names.size() + 1);  // so that the push allocates nothing
    names.push_back(&commits_.emplace(name, Entry{place.version, place.position}).first->first);
    if (absl::Status begun = round->BeginCommit(); !begun.ok()) {
      EraseLocked(commits_.find(name));
      return begun;
    }
    ++next_position_;
    ++num_slots_;
    ++num_in_flight_;
  }
  // Its chunks go from the store of the stream to that of the version.
  CompleteUpload in_version{upload.client_id, upload.submission_id, upload.tag,
                            upload.content,   upload.hash,          upload.chunks};
  absl::StatusOr<Receipt> receipt = round->AddBegun(in_version, KeyOf(upload.client_id, place.position), place);
  FollowWrites(*round);

  MutexLock lock(&mu_);
  const bool is_current = place.version == version_;
  if (is_current) --num_in_flight_;
  const auto entry = commits_.find(name);
  if (receipt.ok() && !receipt->duplicate) {
    if (entry != commits_.end()) entry->second.is_in_flight = false;
    ++num_commits_;
    ++staleness_counts_[place.staleness()];
    services_.metrics.ObserveStaleness(place.staleness());
    if (is_current && num_slots_ - num_in_flight_ == 1) StartTimerLocked(config_.max_interval);
    if (is_current && num_slots_ == config_.buffer && num_in_flight_ == 0 && !is_deleted_) {
      const absl::Status cut = CutLocked(CutCause::kFull);
      if (!cut.ok()) {  // the next commit tries again
        Log(LogLevel::kWarning, "stream_not_cut", {{"stream", config_.round.LogName()}, {"reason", cut.message()}});
      }
    }
  } else {
    if (entry != commits_.end()) EraseLocked(entry);
    if (is_current) --num_slots_;
  }
  changed_.SignalAll();
  return receipt;
}

void Stream::EraseLocked(Entries::iterator entry) {
  const auto version = versions_.find(entry->second.version);
  if (version != versions_.end()) {
    std::vector<const std::string*>& names = version->second.names;
    // From the back: most are of a commit that was refused just now.
    const auto found = std::find(names.rbegin(), names.rend(), &entry->first);
    if (found != names.rend()) {
      *found = names.back();
      names.pop_back();
    }
  }
  commits_.erase(entry);
}

absl::StatusOr<bool> Stream::Withdraw(absl::string_view client_id, absl::string_view submission_id,
                                      bool /*is_coordinator*/) {
  MutexLock lock(&mu_);
  auto found = commits_.end();
  if (!submission_id.empty()) {
    found = commits_.find(NameOf(client_id, submission_id));
  } else {
    const std::string prefix = NameOf(client_id, "");
    for (const std::string* const name : versions_[version_].names) {
      if (name->compare(0, prefix.size(), prefix) != 0) continue;
      const auto each = commits_.find(*name);
      if (found == commits_.end() || each->second.position > found->second.position) found = each;
    }
  }
  if (found == commits_.end() || found->second.is_in_flight) return false;
  if (found->second.version != version_) {
    if (!FindLocked(found->second, client_id).has_value()) return false;
    return absl::FailedPreconditionError(absl::StrCat("the commit belongs to version ", found->second.version,
                                                      ", which was cut: it cannot be withdrawn any more"));
  }
  ASSIGN_OR_RETURN(const bool withdrawn, current_->Withdraw(KeyOf(client_id, found->second.position), ""));
  FollowWrites(*current_);
  if (!withdrawn) return false;
  EraseLocked(found);
  --num_slots_;
  changed_.SignalAll();
  return true;
}

absl::Status Stream::Cut(uint64_t version, CutCause cause) {
  MutexLock lock(&mu_);
  if (is_deleted_) return NotFoundError();
  if (version > version_) {
    return absl::InvalidArgumentError(
        absl::StrCat("version ", version, " is in the future: version ", version_, " is being filled"));
  }
  if ((version != 0 && version != version_) || num_slots_ == num_in_flight_) return absl::OkStatus();
  return CutLocked(cause);
}

absl::Status Stream::CutLocked(CutCause cause) {
  const absl::Duration begin = services_.clock.Monotonic();
  PruneLocked();
  const uint64_t cut = version_;
  absl::StatusOr<std::shared_ptr<Round>> next = registry_.Create(VersionConfig(cut + 1));
  if (!next.ok()) {
    return absl::Status(next.status().code() == absl::StatusCode::kAlreadyExists ? absl::StatusCode::kFailedPrecondition
                                                                                 : next.status().code(),
                        absl::StrCat("version ", cut + 1, " of the stream cannot open: ", next.status().message()));
  }
  FailPoint("version_created");
  const auto hold = owner_.empty() ? nullptr : (*next)->Hold();
  const absl::Time now = services_.clock.WallTime();
  absl::Status recorded = journal_->Write(&Store::PutCut, cut, CutRecord{static_cast<int>(cause), now, next_position_},
                                          versions_.begin()->first);
  if (!recorded.ok()) {
    registry_.Delete(config_.round.tenant, (*next)->config().id).IgnoreError();
    return recorded;
  }
  FailPoint("cut_recorded");
  const char* const cause_name = cause == CutCause::kFull ? "full" : cause == CutCause::kTimer ? "timer" : "call";
  services_.metrics.CountCut(cause_name);
  versions_[cut].cause = cause;
  versions_[cut].cut_time = now;
  versions_[cut + 1].round = *next;
  if (hold != nullptr) holds_.emplace(cut + 1, hold);
  const std::shared_ptr<Round> closed = std::exchange(current_, *std::move(next));
  version_ = cut + 1;
  const uint64_t num_commits = std::exchange(num_slots_, 0);
  num_in_flight_ = 0;
  services_.timer.Cancel(timer_);
  closed->CloseSoon();
  FollowWrites(*closed);
  FollowWrites(*current_);
  changed_.SignalAll();
  Log(LogLevel::kInfo, "stream_cut",
      {{"stream", config_.round.LogName()},
       {"version", cut},
       {"cause", cause_name},
       {"commits", num_commits},
       {"ms", services_.clock.Monotonic() - begin}});
  return absl::OkStatus();
}

void Stream::StartTimerLocked(absl::Duration wait) {
  if (wait == absl::InfiniteDuration()) return;
  services_.timer.Cancel(timer_);
  timer_ = services_.timer.Schedule(services_.clock.Monotonic() + wait,
                                    [weak = weak_from_this(), version = version_, pool = &services_.pool] {
                                      const std::shared_ptr<Stream> self = weak.lock();
                                      if (self != nullptr) pool->Post([self, version] { self->OnTimer(version); });
                                    });
}

void Stream::OnTimer(uint64_t version) {
  const absl::Status cut = ToStatus([&] { return Cut(version, CutCause::kTimer); });
  if (cut.ok() || absl::IsNotFound(cut)) return;
  Log(LogLevel::kWarning, "stream_not_cut", {{"stream", config_.round.LogName()}, {"reason", cut.message()}});
  MutexLock lock(&mu_);
  if (version == version_ && !is_deleted_) StartTimerLocked(kTimerRetry);
}

absl::Status Stream::Delete() {
  std::vector<std::string> ids;
  Holds dropped;  // released after mu_
  {
    MutexLock lock(&mu_);
    dropped.swap(holds_);
    is_deleted_ = true;
    services_.timer.Cancel(timer_);
    for (const auto& [version, kept] : versions_) ids.push_back(VersionId(config_, version));
    changed_.SignalAll();
  }
  // The stream first: a version without it is of no stream, and the next start deletes it.
  RETURN_IF_ERROR(journal_->Delete());
  {
    MutexLock lock(&mu_);
    intake_.PrepareToClose();
    intake_.Close(NotFoundError(), /*may_retry=*/[](const std::string&) { return false; });
  }
  intake_.AnnounceClosed();
  FailPoint("stream_deleted");
  for (const std::string& id : ids) {
    const absl::StatusOr<std::shared_ptr<Round>> version = registry_.Delete(config_.round.tenant, id);
    if (version.ok()) {
      FollowWrites(**version);
    } else if (!absl::IsNotFound(version.status())) {
      return version.status();
    }
  }
  registry_.RemoveIntake(config_.round.tenant, config_.round.id);
  MutexLock lock(&mu_);
  open_permit_.Release();
  return absl::OkStatus();
}

void Stream::PruneLocked() const {
  while (versions_.size() > 1 && versions_.begin()->second.round.expired()) {
    for (const std::string* const name : versions_.begin()->second.names) commits_.erase(commits_.find(*name));
    versions_.erase(versions_.begin());
  }
}

StreamSnapshot Stream::Snapshot() const {
  MutexLock lock(&mu_);
  PruneLocked();
  StreamSnapshot snapshot{intake_.Snapshot(), version_,          num_slots_ - num_in_flight_,
                          num_commits_,       staleness_counts_, versions_.begin()->first};
  if (const auto last = versions_.find(version_ - 1); last != versions_.end()) {
    snapshot.last_cut_cause = last->second.cause;
    snapshot.last_cut_time = last->second.cut_time;
  }
  return snapshot;
}

absl::StatusOr<std::shared_ptr<Round>> Stream::FirstAfter(uint64_t after) const {
  MutexLock lock(&mu_);
  if (is_deleted_) return NotFoundError();
  if (after >= version_) {
    return absl::InvalidArgumentError(
        absl::StrCat("after_version ", after, " is in the future: version ", version_, " is being filled"));
  }
  for (auto version = versions_.upper_bound(after); version != versions_.end(); ++version) {
    if (std::shared_ptr<Round> round = version->second.round.lock()) return round;
  }
  return current_;
}

std::vector<StreamVersion> Stream::EndedAfter(uint64_t after, size_t max_size) const {
  std::vector<StreamVersion> ended;
  MutexLock lock(&mu_);
  for (auto version = versions_.upper_bound(after); version != versions_.end(); ++version) {
    if (version->first == version_ || ended.size() == max_size) break;
    std::shared_ptr<Round> round = version->second.round.lock();
    if (round == nullptr) continue;  // it has expired
    if (!HasEnded(round->state())) break;
    ended.push_back({version->first, std::move(round), version->second.cause, version->second.cut_time});
  }
  return ended;
}

}  // namespace sparseagg::service
