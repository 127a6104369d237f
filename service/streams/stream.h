// One stream: buffered asynchronous aggregation.
#ifndef SPARSEAGG_SERVICE_STREAMS_STREAM_H_
#define SPARSEAGG_SERVICE_STREAMS_STREAM_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"
#include "service/rounds/intake.h"
#include "service/rounds/registry.h"
#include "service/rounds/round.h"
#include "service/rounds/round_config.h"
#include "service/rounds/round_journal.h"
#include "service/rounds/round_meter.h"
#include "service/rounds/round_services.h"
#include "service/store/records.h"

namespace sparseagg::service {

// The decoded spec of a stream.
struct StreamConfig {
  RoundConfig round;                      // of each version; tenant and id are the stream's
  uint64_t buffer = 0;                    // K
  std::vector<double> staleness_weights;  // of staleness 0, 1, …; not empty
  absl::Duration max_interval = absl::InfiniteDuration();
  bool one_per_client = false;
  std::string wire_spec;  // serialised v1::StreamSpec; equal for two requests of the same stream

  // Returns: whether a staleness weight is not 1, so that all tensors are weighted by them.
  bool HasFactors() const;
  // Errors: INVALID_ARGUMENT: it names the field. Call it before Stream::Create.
  absl::Status Check() const;
};

// Why a version was cut; the numbers are those of v1::CutCause.
enum class CutCause { kNone = 0, kFull = 1, kTimer = 2, kCall = 3 };

// A version that was cut.
struct StreamVersion {
  uint64_t version = 0;
  std::shared_ptr<Round> round;
  CutCause cause = CutCause::kNone;  // kNone: of an earlier run, whose record is gone
  absl::Time cut_time = absl::InfinitePast();
};

// What GetStream shows.
struct StreamSnapshot : IntakeSnapshot {
  uint64_t version = 0;  // that is being filled
  uint64_t num_buffered = 0;
  uint64_t num_commits = 0;                // since the start of the server, as the next one
  std::vector<uint64_t> staleness_counts;  // by staleness
  uint64_t oldest_version = 0;             // that is kept
  CutCause last_cut_cause = CutCause::kNone;
  absl::Time last_cut_time = absl::InfinitePast();  // that there was no cut, or its record is gone
};

// A stream is a chain of ordinary rounds, the versions 1, 2, …, each of the next `buffer` commits. The current version
// is being filled; all earlier ones were cut. docs/streams.md has the contract.
//
// Uploads go to the intake, which is found under the stream's id. A commit takes a slot of the current version under
// mu_, which fixes its version, its log position and its staleness. Then it adds its submission to that version's
// round, without mu_; a version that was cut meanwhile waits for the commits that have slots. So a cut neither waits
// for commits nor loses one. When all slots are taken, further commits wait until one is given back by a commit that
// was refused, or all have ended and the version is cut.
//
// A cut creates the next version, writes the cut to the store, and closes the current version, in this order. After the
// end of the process at any step, Restore finds the next version without a cut, which it deletes, or the cut without a
// closed version, which it closes.
//
// Owned by StreamRegistry, and by Registry for its intake. Thread-safe. Lock order: an upload's mutex, mu_, those of
// the versions, that of the intake.
class Stream : public SubmissionTarget, public std::enable_shared_from_this<Stream> {
 public:
  // Creates version 1, and then lists the intake: who finds it finds a version to fill. A run that ends in between
  // leaves a version without a stream, which the next start deletes. Requires: config.Check(). Errors: as of
  // Registry::Create.
  static absl::StatusOr<std::shared_ptr<Stream>> Create(StreamConfig config, Registry* registry,
                                                        const RoundServices& services);
  // A restart reopens a stream in this order: Reopen, which lists the intake; intake().Restore for each upload;
  // ResumeJournal; and, when all rounds are restored, RestoreVersions. `number`: of the stream, in the store.
  static absl::StatusOr<std::shared_ptr<Stream>> Reopen(StreamConfig config, Registry* registry,
                                                        const RoundServices& services, uint64_t number,
                                                        absl::Time create_time);
  // Returns: the config of the round of a version.
  RoundConfig VersionConfig(uint64_t version) const;
  void ResumeJournal(uint64_t number, uint64_t latest_upload) { journal_->Start(number, latest_upload); }
  // What an earlier run has left.
  struct Stored {
    std::map<uint64_t, std::shared_ptr<Round>> versions;
    std::map<uint64_t, CutRecord> cuts;
  };
  absl::Status RestoreVersions(const Stored& stored);
  ~Stream() override;

  const StreamConfig& config() const { return config_; }
  Intake& intake() { return intake_; }
  const Intake& intake() const { return intake_; }
  // Tells when what is written until now is durable.
  const RoundJournal& journal() const { return *journal_; }
  absl::Time create_time() const { return create_time_; }
  StreamSnapshot Snapshot() const;

  RoundState state() const override;  // OPEN, or CANCELLED once it is deleted
  absl::Status CheckOpen() const override;
  absl::Status CheckTakes(absl::string_view /*client_id*/) const override { return CheckOpen(); }
  std::optional<CommittedSubmission> FindCommitted(UploadName name, const std::string* tag = nullptr) const override;
  bool HasSubmission(absl::string_view client_id, absl::string_view submission_id) const override {
    return FindCommitted({client_id, submission_id}).has_value();
  }
  // Counts the upload in the version that is being filled. Errors: as of Intake::Commit. FAILED_PRECONDITION,
  // INVALID_ARGUMENT: its base version is too old, or in the future. Blocks: while the last commits of a full version
  // end.
  absl::StatusOr<Receipt> Commit(CompleteUpload& upload) override;
  // Takes a commit out of the current version; no other one moves. `submission_id`: empty: the latest of the client.
  // Returns: false if the version has none. Errors: FAILED_PRECONDITION: its version was cut; or as of Round::Withdraw.
  absl::StatusOr<bool> Withdraw(absl::string_view client_id, absl::string_view submission_id,
                                bool is_coordinator = false) override;
  std::optional<uint64_t> LatestVersion() const override;
  std::shared_ptr<const void> Keep() const override { return shared_from_this(); }
  // Cuts the current version, if it has a commit. `version`: only if that is the current one; 0: in any case.
  // Errors: as of Registry::Create. Of Store. The version then goes on.
  absl::Status Cut(uint64_t version, CutCause cause);
  // Ends the stream and removes its rounds. Errors: of Store.
  absl::Status Delete();
  // Keeps the versions from `version` on from expiring (Round::Hold), later ones included, and lets those before it
  // expire. LatestVersion is then `version` − 1. For the model that applies them: `owner` is its id. Errors:
  // FAILED_PRECONDITION: another owner has called this, and not Release; or `version` was cut and is gone, or comes
  // after the one that is being filled. NOT_FOUND: the stream is deleted.
  absl::Status KeepFrom(uint64_t version, absl::string_view owner);
  void Release(absl::string_view owner);

  // Returns: the first version after `after` that is kept: the current one at the latest.
  // Errors: INVALID_ARGUMENT: `after` was not cut yet.
  absl::StatusOr<std::shared_ptr<Round>> FirstAfter(uint64_t after) const;
  // Returns: the kept versions after `after` that have ended, up to the first one that has not.
  std::vector<StreamVersion> EndedAfter(uint64_t after, size_t max_size) const;

 private:
  // A commit, by client id and submission id. Its name is in Version::names.
  struct Entry {
    uint64_t version = 0;
    uint64_t position = 0;
    bool is_in_flight = true;
  };
  using Entries = std::unordered_map<std::string, Entry>;
  struct Version {
    std::weak_ptr<Round> round;
    std::vector<const std::string*> names;  // keys of commits_
    CutCause cause = CutCause::kNone;
    absl::Time cut_time = absl::InfinitePast();
  };

  using Holds = std::map<uint64_t, std::shared_ptr<const void>>;  // by version: Round::Hold

  Stream(StreamConfig config, Registry* registry, const RoundServices& services, Permit permit,
         std::optional<absl::Time> create_time);
  // Errors: RESOURCE_EXHAUSTED: too many rounds are open, of which the stream is one.
  static absl::StatusOr<std::shared_ptr<Stream>> Open(StreamConfig config, Registry* registry,
                                                      const RoundServices& services,
                                                      std::optional<absl::Time> create_time);
  absl::Status StartJournal(uint64_t number);
  // Makes the stream's journal wait for what the version has written until now, too.
  void FollowWrites(const Round& version) { journal_->Follow(version.journal().latest()); }
  // Returns: the key of a commit in its version's round: by its order the version is folded.
  std::string KeyOf(absl::string_view client_id, uint64_t position) const;
  absl::Status NotFoundError() const;
  // Errors: of Commit. Returns: the weight.
  absl::StatusOr<double> WeightOfLocked(uint64_t base_version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<CommittedSubmission> FindLocked(const Entry& entry, absl::string_view client_id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EraseLocked(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CutLocked(CutCause cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartTimerLocked(absl::Duration wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnTimer(uint64_t version);
  // Forgets versions whose rounds are gone, with their commits.
  void PruneLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static absl::StatusOr<Receipt> AnswerAgain(const CommittedSubmission& found, const CompleteUpload& upload);

  const StreamConfig config_;
  Registry& registry_;
  const RoundServices services_;
  const absl::Time create_time_;
  const std::shared_ptr<const RoundConfig> uploads_;  // the config of the uploads
  const std::shared_ptr<RoundJournal> journal_;
  mutable RoundMeter meter_;
  Intake intake_;

  mutable Mutex mu_;
  Permit open_permit_ ABSL_GUARDED_BY(mu_);  // of the tenant's open rounds
  CondVar changed_;                          // a slot is free, a commit has ended, or a version was cut
  bool is_deleted_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 1;
  std::shared_ptr<Round> current_ ABSL_GUARDED_BY(mu_);
  uint64_t num_slots_ ABSL_GUARDED_BY(mu_) = 0;      // of the current version: commits that count or are in flight
  uint64_t num_in_flight_ ABSL_GUARDED_BY(mu_) = 0;  // of these
  uint64_t next_position_ ABSL_GUARDED_BY(mu_) = 1;
  mutable Entries commits_ ABSL_GUARDED_BY(mu_);
  mutable std::map<uint64_t, Version> versions_ ABSL_GUARDED_BY(mu_);  // that are kept, the current one included
  uint64_t num_commits_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint64_t> staleness_counts_ ABSL_GUARDED_BY(mu_);
  Timer::Id timer_ ABSL_GUARDED_BY(mu_) = 0;
  std::string owner_ ABSL_GUARDED_BY(mu_);  // of KeepFrom; empty: none
  uint64_t keep_from_ ABSL_GUARDED_BY(mu_) = 0;
  Holds holds_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STREAMS_STREAM_H_
