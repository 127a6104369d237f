// One aggregation round.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "host/aggregation.h"
#include "host/base/mutex.h"
#include "service/rounds/intake.h"
#include "service/rounds/result_ranges.h"
#include "service/rounds/round_certificate.h"
#include "service/rounds/round_config.h"
#include "service/rounds/round_journal.h"
#include "service/rounds/round_life.h"
#include "service/rounds/round_meter.h"
#include "service/rounds/round_services.h"
#include "service/rounds/round_sum.h"
#include "service/rounds/submission_table.h"

namespace sparseagg::service {

// A round collects one submission per client, merges them, and keeps the result.
//
//   state        entered by                                           then
//   OPEN         Open                                                 the intake takes uploads and commits them
//   SEALED       Seal                                                 a SealedReader reads the submissions
//   FINALIZING   Close, the deadline (StartDeadline), or the commit   the worker pool computes the result
//                that reaches config.max_submissions
//   DONE         the result is there                                  GetResults returns it; of a cluster's round
//                                                                     ranges() has it
//   FAILED       fewer submissions than config asks for, an error     there is a reason, and no result
//                of the final merge, an Add that failed half way
//   CANCELLED    Cancel, before one of these two                      there is a reason, and no result
//
// A round in one of the last three states has ended. The end releases the waits; result_ttl later `on_expire` runs.
//
//   ASSIGN_OR_RETURN(std::shared_ptr<Round> round, Round::Open(config, server.ForRounds(), on_expire));
//   round->StartDeadline();
//   ASSIGN_OR_RETURN(const Receipt receipt, round->intake().Submit("client", "submission", chunk));
//   RETURN_IF_ERROR(round->Close());
//   round->Wait(absl::Minutes(1), [round, &pool] { pool.Post([round] { Read(round->GetResults()); }); });
//
// Owned by shared_ptr: Registry keeps the round until it expires or is deleted (a deletion cancels it); calls and
// posted tasks keep it while they use it.
//
// Parts: Intake, ResultRanges, RoundJournal, RoundMeter and RoundWaits (thread-safe), RoundLife, SubmissionTable and
// RoundCertificate (guarded by mu_), RoundSum (by merge_mu_). This class does what concerns several of them.
// SealedReader and ReadBundle read a round without being part of it.
//
// Thread-safe. Calls that wait say so (Blocks); the rest are short. Preparation of a submission takes none of the
// round's two locks, so that many threads do it at once. merge_mu_ is held while the engine adds or finishes; mu_
// guards the state and is never held for long. Lock order: an upload's mutex, merge_mu_, mu_, those of the parts.
//
// Changes of state allocate first and change afterwards: if an allocation fails, the call throws std::bad_alloc, and
// the round is as it was. Only the engine's Add may fail half way, which ends the round as FAILED.
//
// With a data directory, a call that changes the round writes the change to the store first. What cannot be written
// does not happen: every such call may also return an error of Store, after which the round is as it was. A change is
// acknowledged only when the journal is as safe as the server's --durability promises (journal().WhenDurable).
class Round : public SubmissionTarget, public std::enable_shared_from_this<Round> {
 public:
  // Opens a round, which holds a permit of its tenant's open rounds until it ends. The parts of `services` must outlive
  // the round. `on_expire`, if any, runs once on the timer's thread, result_ttl after the end, unless the round is
  // gone. Errors: INVALID_ARGUMENT: config.tensors has no tensor, a bad one, or two of one name. RESOURCE_EXHAUSTED:
  // too many rounds have not ended, or no memory for the round and its dense results. `create_time`: of a round that a
  // restart opens again; deadlines are counted from it. nullopt: now.
  static absl::StatusOr<std::shared_ptr<Round>> Open(RoundConfig config, const RoundServices& services,
                                                     std::function<void()> on_expire,
                                                     std::optional<absl::Time> create_time = std::nullopt);
  ~Round() override;  // cancels the timers, and drops waits without calling their `done`
  // Schedules Close for config.deadline after the creation: at once if that has passed, never if it is infinite. Call
  // it once. Not part of Open, so that a round cannot end and expire before the registry lists it.
  void StartDeadline();

  Intake& intake() { return intake_; }
  const Intake& intake() const { return intake_; }
  ResultRanges& ranges() { return ranges_; }
  const ResultRanges& ranges() const { return ranges_; }  // of a cluster's round
  const RoundJournal& journal() const { return *journal_; }
  RoundMeter& meter() const { return meter_; }
  const RoundConfig& config() const { return *config_; }
  const Clock& clock() const { return services_.clock; }
  MemoryBudget& budget() const { return tenant_.budget; }
  absl::Time create_time() const { return create_time_; }
  RoundSnapshot Snapshot() const;
  RoundState state() const override;
  // Errors: FAILED_PRECONDITION unless the round is DONE.
  absl::StatusOr<Results> GetResults() const;

  // ---- the store ----

  // Writes a new round to the store, and from now on what happens to it. `number`: in the store. Without a call of it
  // or of ResumeJournal nothing is stored, and the journal's WhenDurable and AwaitDurable answer at once.
  absl::Status StartJournal(uint64_t number);
  // Errors: FAILED_PRECONDITION: the round is private, and was created with another noise key.
  absl::Status CheckNoiseKey(absl::string_view noise_key_id) const;
  // Removes the round from the store.
  absl::Status DeleteStored() { return journal_->Delete(); }

  // A restart opens a stored round in this order, on one thread, before the server listens: Open, RestoreSubmission or
  // RestoreReceipt for each submission, RestoreWithdrawn, intake().Restore for each upload of an open round,
  // ranges().Restore, ResumeJournal, RestoreState if the round was not open, StartDeadline.
  //
  // Errors: DATA_LOSS: the chunks are not those that were committed. Otherwise as Intake::Append and Commit, and of
  // `chunks`; nothing is left of the submission.
  absl::Status RestoreSubmission(const std::string& key, const SubmissionRecord& record,
                                 const Intake::ChunkSource& chunks);
  // Lists a submission of a round that has FAILED, without adding it.
  void RestoreReceipt(const std::string& key, const SubmissionRecord& record);
  void RestoreWithdrawn(std::vector<std::string> leaves);
  // From now on the round writes to the store. `latest_upload`: the largest number of an upload there.
  void ResumeJournal(uint64_t number, uint64_t latest_upload) { journal_->Start(number, latest_upload); }
  // Brings the round to the state that it had. A result is not stored: it is computed again, as after Close.
  void RestoreState(const StateRecord& record);

  // Postpones the round's expiry until the returned object, and all others of Hold, are gone. The round then expires
  // when its result_ttl is over, or at once. Thread-safe.
  std::shared_ptr<const void> Hold();

  // ---- submissions ----

  absl::Status CheckOpen() const override;
  absl::Status CheckTakes(absl::string_view client_id) const override;
  std::optional<CommittedSubmission> FindCommitted(UploadName name, const std::string* tag = nullptr) const override;
  bool HasSubmission(absl::string_view client_id, absl::string_view submission_id) const override;
  absl::StatusOr<Receipt> Commit(CompleteUpload& upload) override;
  // Takes the submission of a client out of the open round, as if it had never been sent, and releases its memory.
  // `submission_id`: that of its first commit or of its latest retry; empty: any. `is_coordinator`: also out of a
  // sealed round of a cluster, whose servers may have more than max_submissions together. Returns: false, without
  // effect, if the client has no such submission. Errors: FAILED_PRECONDITION: the round is not open; or submissions
  // are merged already. RESOURCE_EXHAUSTED: of RoundCertificate::CheckMayWithdraw. Blocks: while a commit adds its
  // submission.
  absl::StatusOr<bool> Withdraw(absl::string_view client_id, absl::string_view submission_id,
                                bool is_coordinator = false) override;
  std::shared_ptr<const void> Keep() const override { return shared_from_this(); }

  // Begins a commit, which AddBegun then counts even if the round is closed before. Errors: of CheckOpen.
  absl::Status BeginCommit();
  // Counts a submission under `key`. Call it once after each BeginCommit. `place`: in a stream, of which the round is a
  // version. Errors: as of Commit, but for those of a closed round.
  absl::StatusOr<Receipt> AddBegun(CompleteUpload& upload, const std::string& key,
                                   const std::optional<StreamPlace>& place);

  // Returns: up to `page_size` committed submissions from the token on; from the first one on if the token is empty.
  // None if the round is CANCELLED. Requires: page_size > 0. Errors: INVALID_ARGUMENT: not a token of this round.
  // Cost: O(page_size), under the lock of the round's state.
  // `with_withdrawn`: whether the last page has withdrawn_leaves.
  absl::StatusOr<SubmissionPage> ListSubmissions(size_t page_size, absl::string_view page_token,
                                                 bool with_withdrawn = false) const;
  // Calls `read` with the committed submissions. It must be short, and must not call the round.
  void ReadCommitted(absl::FunctionRef<void(const SubmissionTable::Map&)> read) const;
  // Returns: the result of `read`, which gets the sum; the sum of a closed round may have no aggregation any more. Used
  // by SealedReader. Blocks: while a commit adds its submission. Commits and the close wait for `read`.
  absl::Status ReadSum(absl::FunctionRef<absl::Status(RoundSum&)> read);
  // Whether a SealedReader can read the submissions.
  bool IsReadable() const {
    MutexLock lock(&mu_);
    return IsReadableLocked();
  }

  // ---- certificate ----

  // Returns: the signed envelope, always the same.
  // Errors: FAILED_PRECONDITION: the round has not ended, or has no certificate. Of Store: the certificate could not be
  // stored, so that a restart would make another one.
  absl::StatusOr<std::string> GetCertificate() const;
  // `submission_id`: of the commit or of its latest retry; empty: the only one of the client.
  // Errors: FAILED_PRECONDITION: the spec asks for no certificate; or the client has several commits in a version of a
  // stream, and `submission_id` is empty. NOT_FOUND: no such submission of the client counts.
  // Cost: of the first call after the end, the hashes of the whole tree; of every call, a signature.
  absl::StatusOr<SubmissionReceipt> GetReceipt(absl::string_view client_id, absl::string_view submission_id) const;

  // ---- life cycle ----

  // Takes no new submission, and keeps those that it has as they are until a call closes, cancels or deletes the round.
  // The deadline has no effect any more. Discards the uploads that Close discards. No effect on a round that is sealed.
  // Errors: FAILED_PRECONDITION: the round is closed. Of Store.
  // Blocks: until commits have added their submissions, which may merge others.
  absl::Status Seal();
  // Takes no new submission and starts the merge. Discards the uploads, but not those being committed and those of
  // clients with a committed submission, which may be retries. No effect on a round that is closed.
  // Errors: of Store.
  absl::Status Close();
  // Closes the round if it is open; if the store does not take that now, as soon as it does.
  void CloseSoon();
  // As Close, but only the submissions of `clients` count. All others are withdrawn first, also those that a commit is
  // about to add. Without effect on a round that is closed and counts these clients.
  // A commit whose submission is withdrawn here still gives its caller a receipt.
  // Errors, which leave the round as it was: FAILED_PRECONDITION: a client has no committed submission, or there are
  // others, which are merged already, or which a round with privacy does not give back; or the round is closed and
  // counts other clients.
  // Blocks: until commits have added their submissions, which may merge others.
  absl::Status CloseWithOnly(absl::Span<const std::string> clients);
  // Closes a sealed round. The weight of each client's submission is multiplied by its factor; submissions of factor 0
  // are withdrawn first. The result has the bits of a round by weight, whose clients with a factor above 0 have sent
  // these weights. Without effect on a round that is closed and counts these factors.
  // Errors, which leave the round as it was: INVALID_ARGUMENT: a client has no committed submission, or no factor, or
  // two; a factor or weight is out of range; or a factor is neither 0 nor 1, and a tensor does not take it.
  // FAILED_PRECONDITION: the round is open, or closed with other factors; or a factor is 0, and submissions are merged
  // already.
  using ClientWeight = std::pair<std::string, double>;
  absl::Status CloseWithWeights(absl::Span<const ClientWeight> weights);

  // Keeps a range of a cluster's result, or its list, which ends the round as DONE; `page` is a serialized
  // v1::ResultPage, empty for an end without a list. `created`: create_time() as the caller knows it, to the
  // microsecond. Errors, which leave the round as it was: of ResultRanges::Put. FAILED_PRECONDITION: not a cluster's
  // round, not created then, or not sealed.
  absl::Status PutRange(absl::Time created, RangeRecord range, std::string page);
  // Ends the round without a result. A merge that runs is not interrupted, but its result is dropped. No effect on a
  // round that is CANCELLED. Errors: FAILED_PRECONDITION on a round that is DONE or FAILED.
  absl::Status Cancel(absl::string_view reason);

  using WaitId = RoundWaits::Id;
  // Calls `done` once: within Wait if the round has ended; else when the round ends, after `timeout`, or on
  // ReleaseWaiters; never after StopWaiting has returned true or the round is gone. `done` learns from state() whether
  // the round has ended. It runs on the thread that ended or released the wait, perhaps under merge_mu_: so it must be
  // short, such as a post to the pool, and must not commit, withdraw or close. If it holds the round, the round lives
  // until the wait has ended. Returns: the wait, for StopWaiting; 0 if `done` has been called already.
  WaitId Wait(absl::Duration timeout, std::function<void()> done);
  // Ends a wait. Returns: true if `done` will not be called; false if it has been, or another thread is about to.
  bool StopWaiting(WaitId id) { return waits_.Remove(id); }
  // Ends all waits, because the server stops: calls their `done` on this thread.
  void ReleaseWaiters() { waits_.Release(); }

 private:
  // A complete upload on its way into the sum.
  struct Entry {
    CompleteUpload& upload;
    const std::string& key;                   // of the submission: the client id, in a version perhaps with a position
    const std::optional<StreamPlace>& place;  // in a stream
    uint64_t number;                          // of the chunks in the round's store

    // Returns: the factor of the weight; nullopt: there is none.
    std::optional<double> Factor(const RoundConfig& config) const {
      return place.has_value() && config.stream->has_factors ? std::optional(place->weight) : std::nullopt;
    }
  };

  Round(RoundConfig config, const RoundServices& services, std::function<void()> on_expire,
        std::optional<absl::Time> create_time);

  // round_commit.cc: from a complete upload to the sum
  absl::StatusOr<Receipt> StoreAndAdd(CompleteUpload& upload, const std::string& key,
                                      const std::optional<StreamPlace>& place);
  absl::StatusOr<Receipt> PrepareAndAdd(const Entry& entry);
  // Makes of a complete upload what Add takes. Errors: of Commit.
  absl::StatusOr<PreparedSubmission> Prepare(const Entry& entry) const;
  absl::StatusOr<Receipt> Add(const Entry& entry, Receipt receipt, PreparedSubmission prepared, const std::string& leaf)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(merge_mu_);
  // Returns: the answer to a commit that must not be added: a duplicate receipt or an error.
  std::optional<absl::StatusOr<Receipt>> AnswerWithoutAddLocked(const CompleteUpload& upload, const std::string& key,
                                                                bool has_begun) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Records a submission that is in the sum, and closes the round at max_submissions.
  absl::StatusOr<Receipt> RecordLocked(SubmissionTable::Map::node_type record, Receipt receipt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the round as failed, because an Add has changed some tensors and not others. Returns: the error.
  absl::Status FailAfterPartialAdd(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(merge_mu_);
  // The aggregation, for Prepare only. Finish, which destroys the aggregation, waits until no commit runs.
  const Aggregation& AggregationForPrepare() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return *sum_.aggregation(); }
  // Errors: RESOURCE_EXHAUSTED: the round has as many submissions as the server allows.
  absl::Status CheckLimitLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the round takes what an earlier run has accepted.
  bool IsRestoring() const { return is_restored_ && !journal_->IsActive(); }

  // round_submissions.cc: submissions that are taken out again, or weighted
  // Moves the record of a client to `withdrawn` and takes its submission out of the figures. Allocates nothing.
  void WithdrawLocked(absl::string_view client_id, SubmissionTable::Map& withdrawn)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(merge_mu_, mu_);
  // Closes the round and starts the merge without the submissions `left_out` (indices of sum_'s client_ids()), whose
  // records go to `withdrawn`; the caller takes them out of the sum. `kept`: records to replace in the store.
  // Errors: FAILED_PRECONDITION: as of Aggregation::CheckKeepsAll. Those of the store. The round is then as before.
  absl::Status FinalizeWithoutLocked(absl::Span<const uint32_t> left_out,
                                     absl::Span<const std::pair<std::string, SubmissionRecord>> kept,
                                     SubmissionTable::Map& withdrawn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(merge_mu_, mu_);
  // Errors: FAILED_PRECONDITION: a client has no committed submission; or the round is closed and others count, too.
  absl::Status CheckCountedLocked(absl::Span<const absl::string_view> clients) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Errors: of CloseWithWeights for a round that is closed. `sorted`: by client id.
  absl::Status CheckClosedWithLocked(absl::Span<const ClientWeight* const> sorted) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Multiplies the weights in the sum by the factors of the committed submissions, if an earlier run has stored some.
  void MultiplyStoredWeightsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(merge_mu_, mu_);
  bool TakesWithdrawalsLocked(bool is_coordinator) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // round_certificate.cc
  // Returns: the leaf of the submission in a complete upload; empty if the round has no certificate.
  std::string MakeLeaf(const Entry& entry) const;
  // Issues and stores the certificate, before anybody can read the results. Returns: `results`.
  // Errors: DATA_LOSS: an earlier run has certified other submissions or results.
  absl::StatusOr<Results> Certify(absl::StatusOr<Results> results) ABSL_EXCLUSIVE_LOCKS_REQUIRED(merge_mu_);
  // Returns: the proofs of the certificate; null if there is none yet.
  std::shared_ptr<const ProofIndex> FindProofs() const;

  // round.cc: life cycle
  bool IsReadableLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return life_.state() == RoundState::kSealed || life_.keeps_sum();
  }
  // Seal, without telling those who wait.
  absl::Status Freeze();
  // Close. Requires: the round is not closed.
  absl::Status CloseLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns: the error for a submission to a round that is not open.
  absl::Status NotOpenErrorLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return NotOpenErrorLocked(life_.state(), life_.reason());
  }
  absl::Status NotOpenErrorLocked(RoundState state, absl::string_view reason) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Closing a round has two steps, so that all allocations come first. Returns: the error that the discarded uploads
  // will get, which is the argument of FinalizeLocked; not a failure of this call.
  absl::Status PrepareToFinalizeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `refusal`: the error for the uploads that the close discards. Allocates nothing.
  void FinalizeLocked(const absl::Status& refusal, const Moment& now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Discards all uploads but those being committed and those of committed clients, which may be retries.
  void CloseIntakeLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the round. The caller calls AnnounceEnd after it has released mu_.
  void EndLocked(RoundState state, absl::Status failure, std::string reason, const Moment& now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs on_expire_, or leaves that to the last hold.
  void Expire();
  // Wakes the waiters of a round that has ended, and logs the end.
  void AnnounceEnd();
  // Ends the sealed round as DONE, if it has not ended, and drops the ranges that its list does not have.
  absl::Status EndMerged();
  void PostFinish();
  // Computes the result or frees the aggregation, once the round is closed and no commit runs. Posted at the close, at
  // the end and after the last commit; the first call that finds both does the work, all others do nothing.
  void FinishIfReady();
  // Returns: true if the round has ended by this call.
  bool Finish();
  // Returns: what the store is to keep of the round's state. Requires: the round is not open.
  StateRecord RecordState() const;
  Timer::Id ScheduleClose(absl::Duration at);

  const std::shared_ptr<const RoundConfig> config_;
  const RoundServices services_;
  const std::function<void()> on_expire_;
  const absl::Time create_time_;
  const absl::Duration created_at_;  // Clock::Monotonic; before the start of the clock for a round of an earlier run
  const std::shared_ptr<RoundJournal> journal_;
  Tenant& tenant_;
  const bool is_restored_;

  mutable RoundMeter meter_;
  RoundWaits waits_;
  Intake intake_;
  ResultRanges ranges_;

  Mutex merge_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  RoundSum sum_ ABSL_GUARDED_BY(merge_mu_);

  mutable Mutex mu_;
  Permit open_permit_ ABSL_GUARDED_BY(mu_);  // of tenant_.open_rounds
  SubmissionTable committed_ ABSL_GUARDED_BY(mu_);
  RoundLife life_ ABSL_GUARDED_BY(mu_);
  RoundCertificate certificate_ ABSL_GUARDED_BY(mu_);
  Timer::Id deadline_timer_ ABSL_GUARDED_BY(mu_) = 0;
  Timer::Id expire_timer_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_holds_ ABSL_GUARDED_BY(mu_) = 0;
  bool has_expired_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_H_
