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
#include "service/admission/count_limit.h"
#include "service/base/clock.h"
#include "service/rounds/receipt.h"
#include "service/rounds/result_ranges.h"
#include "service/rounds/round_certificate.h"
#include "service/rounds/round_config.h"
#include "service/rounds/round_journal.h"
#include "service/rounds/round_life.h"
#include "service/rounds/round_meter.h"
#include "service/rounds/round_services.h"
#include "service/rounds/round_snapshot.h"
#include "service/rounds/round_sum.h"
#include "service/rounds/stream_commits.h"
#include "service/rounds/submission_table.h"
#include "service/rounds/upload.h"
#include "service/rounds/upload_table.h"

namespace sparseagg::service {

// A round collects one submission per client, merges them, and keeps the result.
//
//   state        entered by                                           then
//   OPEN         Open                                                 uploads are taken and committed
//   SEALED       Seal                                                 a SealedReader reads the submissions
//   FINALIZING   Close, the deadline (StartDeadline), or the commit   the worker pool computes the result
//                that reaches config.max_submissions
//   DONE         the result is there                                  GetResults returns the result; of a cluster's
//   round
//                                                                     FindRange its ranges
//   FAILED       fewer submissions than config asks for, an error     there is a reason, and no result
//                of the final merge, an Add that failed half way
//   CANCELLED    Cancel, before one of these two                      there is a reason, and no result
//
// A round in one of the last three states has ended. The end releases the waits; result_ttl later `on_expire` runs.
//
// An upload carries one submission, in chunks. There are two kinds. A stream upload belongs to the call that holds its
// handle. Dropping the handle does not end the upload: the call must Commit, Discard or Refuse it, and watches itself
// that a message comes within the server's upload_timeout. A named upload is found by its ids in every call; the round
// discards it if no new chunk comes for upload_timeout.
//
//   ASSIGN_OR_RETURN(std::shared_ptr<Round> round, Round::Open(config, server.ForRounds(), on_expire));
//   round->StartDeadline();
//   ASSIGN_OR_RETURN(const auto upload, round->OpenStreamUpload("client", "submission", on_discard));
//   RETURN_IF_ERROR(round->Append(*upload, chunk));
//   ASSIGN_OR_RETURN(const Receipt receipt, round->Commit(*upload));
//   round->Close();
//   round->Wait(absl::Minutes(1), [round, &pool] { pool.Post([round] { Read(round->GetResults()); }); });
//
// Owned by shared_ptr: Registry keeps the round until it expires or is deleted (a deletion cancels it); calls and
// posted tasks keep it while they use it.
//
// Parts of their own: RoundLife, UploadTable, SubmissionTable and RoundCertificate (guarded by mu_), RoundSum (by
// merge_mu_), RoundJournal, RoundMeter and RoundWaits (thread-safe). This class does what concerns several of them.
// SealedReader and ReadBundle read a round without being part of it.
//
// Thread-safe. Append, PutChunk, Commit and CommitNamed decode, sort, merge and wait for each other: call them on the
// worker pool unless their input is small. The round makes chunks and commit of one upload run one after another. Other
// calls that wait say so (Blocks); the rest are short.
//
// Decoding, validation and sorting take none of the round's two locks, so that many threads do them at once. merge_mu_
// is held while the engine adds or finishes; mu_ guards the state and is never held for long. Lock order: an upload's
// mutex, merge_mu_, mu_.
//
// Changes of state allocate first and change afterwards: if an allocation fails, the call throws std::bad_alloc, and
// the round is as it was. Only the engine's Add may fail half way, which ends the round as FAILED.
//
// With a data directory, a call that changes the round writes the change to the store first. What cannot be written
// does not happen: every such call may also return an error of Store, after which the round is as it was. The upload of
// such a chunk or commit ends.
class Round : public std::enable_shared_from_this<Round> {
 public:
  // Opens a round, which holds a permit of its tenant's open rounds until it ends. The parts of `services` must outlive
  // the round. `on_expire`, if any, runs once on the timer's thread, result_ttl after the end, unless the round is
  // gone. Errors: INVALID_ARGUMENT: config.tensors has no tensor, a bad one, or two of one name. RESOURCE_EXHAUSTED:
  // too many rounds have not ended, or no memory for the round and its dense results. `create_time`: of a round that a
  // restart opens again; deadlines are counted from it. nullopt: now.
  static absl::StatusOr<std::shared_ptr<Round>> Open(RoundConfig config, const RoundServices& services,
                                                     std::function<void()> on_expire,
                                                     std::optional<absl::Time> create_time = std::nullopt);
  ~Round();  // cancels the timers, and drops waits without calling their `done`: there is no round to ask any more
  // Schedules Close for config.deadline after the creation: at once if that has passed, never if it is infinite. Call
  // it once. Not part of Open, so that a round cannot end and expire before the registry lists it.
  void StartDeadline();

  const RoundConfig& config() const { return *config_; }
  std::shared_ptr<const RoundConfig> shared_config() const { return config_; }
  const Clock& clock() const { return services_.clock; }
  RoundSnapshot Snapshot() const;
  RoundState state() const;
  size_t num_recent_refusals() const;
  absl::Time create_time() const { return create_time_; }
  MemoryBudget& budget() const { return tenant_.budget; }
  // For those who bring messages to the round, or take pages of its result.
  RoundMeter& meter() const { return meter_; }
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
  // A change to the round is acknowledged only when the journal is as safe as the server's --durability promises, which
  // WhenDurable and AwaitDurable tell. `done` of WhenDurable runs before the return, or on the store's thread: it must
  // be short. AwaitDurable blocks for about two syncs of the disk.
  const RoundJournal& journal() const { return *journal_; }

  // A restart opens a stored round in this order, on one thread, before the server listens:
  // Open, RestoreSubmission or RestoreReceipt for each submission, RestoreUpload for each upload of an open round,
  // ResumeJournal, RestoreState if the round was not open, StartDeadline.
  //
  // `chunks` calls its argument for each stored chunk. Blocks: while they are decoded.
  using ChunkSource = std::function<absl::Status(const std::function<absl::Status(const Chunk&)>&)>;
  // Errors: DATA_LOSS: the chunks are not those that were committed; the submission is in the sum, so the round must
  // not be used. Otherwise as Append and Commit, and of `chunks`; nothing is left of the submission.
  absl::Status RestoreSubmission(const std::string& client_id, const SubmissionRecord& record,
                                 const ChunkSource& chunks);
  // The leaves of withdrawn submissions. Call it before RestoreState.
  void RestoreWithdrawn(std::vector<std::string> leaves);
  // Lists a submission of a round that has FAILED, without adding it.
  void RestoreReceipt(const std::string& client_id, const SubmissionRecord& record);
  // `number`: of the upload, in the store. Adds the number of chunks that the upload took to `*num_chunks`. Errors:
  // ABORTED, of `chunks`; the upload keeps the chunks that it has, and is dropped if it has none. Any other error of
  // `chunks`, or of Append, drops it.
  absl::Status RestoreUpload(uint64_t number, const UploadRecord& record, const ChunkSource& chunks,
                             uint64_t* num_chunks);
  // Brings the round to the state that it had. A result is not stored: it is computed again, as after Close.
  void RestoreState(const StateRecord& record);
  // `number`: of the upload whose chunk is the page, in the store.
  void RestoreRange(uint64_t number, RangeRecord range, std::string page);
  // From now on the round writes to the store. `latest_upload`: the largest number of an upload there.
  void ResumeJournal(uint64_t number, uint64_t latest_upload);

  // ---- stream uploads ----

  // Opens an upload. `on_discard`, if any, runs once, on the pool, if the close or the end of the round discards the
  // upload; not after Discard, Refuse or an error of Append or Commit. A client with a committed submission may upload
  // in every state but CANCELLED (also in FAILED), since this may be a retry: the commit compares the content. Errors:
  // FAILED_PRECONDITION: the round is not open for this client. RESOURCE_EXHAUSTED: the server's or the tenant's limit
  // of uploads is reached, the tenant has begun too many in the last second (RetryLater), or the round has as many
  // submissions as the server allows (config.submission_limit).
  absl::StatusOr<std::shared_ptr<UploadHandle>> OpenStreamUpload(const std::string& client_id,
                                                                 const std::string& submission_id,
                                                                 UploadHandle::OnDiscard on_discard);
  // Appends the next chunk. An error discards the upload and counts it as refused.
  // Errors: FAILED_PRECONDITION: not the chunk expected next. INVALID_ARGUMENT: bad input. RESOURCE_EXHAUSTED: a limit
  // is exceeded. Of an upload discarded before: the reason of the discard, and nothing is counted.
  absl::Status Append(UploadHandle& upload, const Chunk& chunk) { return AppendChunk(upload, chunk, nullptr); }
  // Counts the submission, completely or not at all, and ends the upload. The same content committed before by the
  // same client is answered with a duplicate receipt.
  // An error that leaves the upload: FAILED_PRECONDITION: the last chunk is missing. Errors that end it and count it as
  // refused: FAILED_PRECONDITION: the round is not open. ALREADY_EXISTS: the client has committed other content.
  // INVALID_ARGUMENT, OUT_OF_RANGE: wrong keys or values, as of Upload::TakeUpdates and Aggregation::Prepare.
  // RESOURCE_EXHAUSTED: no memory, or too many submissions. INTERNAL: the Add failed half way. Of an upload discarded
  // before: the reason of the discard, and nothing is counted.
  absl::StatusOr<Receipt> Commit(UploadHandle& handle);
  // Returns: true if a commit may also merge pending updates of other submissions, so that a small one may take long.
  bool MergesOnArrival() const { return service::MergesOnArrival(*config_); }
  // Ends the upload, if it has not ended, and does not count it as refused: its client has given it up. Does not
  // stop a commit that runs.
  void Discard(UploadHandle& upload);
  // As Discard, but counts the upload as refused, with `status` as the reason.
  void Refuse(UploadHandle& upload, const absl::Status& status);

  // ---- named uploads ----
  //
  // The ids name at most one upload at a time. The client chooses the upload's tag, which identifies content and
  // chunking; an empty tag is compared as any other, but says nothing about the content. Only a chunk 0 with another
  // tag replaces the upload; all other calls leave an upload with another tag alone.

  // Appends a chunk. Chunk 0 opens the upload. A chunk number received before changes nothing: the content is not
  // compared. If an upload with another tag is being committed, chunk 0 does not wait for the commit: both uploads go
  // on, and whichever is committed last is compared with the other.
  // Returns: the upload's progress after the chunk; that of the committed submission for a late chunk of it.
  // Errors: FAILED_PRECONDITION: a gap, or a chunk after the last, and the upload goes on; or there is no upload and
  // this is not chunk 0; or another upload has replaced this one. Otherwise as OpenStreamUpload and Append.
  absl::StatusOr<UploadProgress> PutChunk(const std::string& client_id, const std::string& submission_id,
                                          const Chunk& chunk, const std::string& tag = "");
  // Counts a refusal for a chunk that never reached PutChunk (malformed or too large), and discards the chunk's upload,
  // if there is one that is not being committed.
  void RefuseNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                   const absl::Status& status);
  // Commits as Commit does and calls `done` once: before returning or, if another call is already committing the
  // upload, later on that call's thread, for which this call does not wait. Commits of different uploads wait for each
  // other, at merge_mu_.
  // Gives `done`, if no upload has these ids and this tag: a duplicate receipt if such an upload has been committed;
  // else FAILED_PRECONDITION: the round is not open, or the upload has another tag; else NOT_FOUND.
  void CommitNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                   const UploadHandle::OnCommit& done);
  // Returns: the upload's progress, also after its commit. If the ids name an upload with another tag, committed or
  // not: zero, since nothing of this one is here. Errors: NOT_FOUND: no upload.
  absl::StatusOr<UploadProgress> GetProgress(const std::string& client_id, const std::string& submission_id,
                                             const std::string& tag = "");

  // ---- streams: docs/streams.md ----

  // A stream has an intake, which is a round that has uploads and no sum, and gives complete uploads to its
  // StreamCommits; and versions, which are rounds that take no uploads but the commits that their stream gives them.

  // The intake: submits in one chunk. Errors: as of OpenStreamUpload, Append and Commit.
  absl::StatusOr<Receipt> SubmitToStream(const std::string& client_id, const std::string& submission_id,
                                         const Chunk& chunk);
  // The intake: writes a cut to the store. Errors: of Store.
  absl::Status RecordCut(uint64_t version, const CutRecord& record, uint64_t oldest) {
    return journal_->PutCut(version, record, oldest);
  }
  // Makes the journal wait for what `other` has written until now, too.
  void FollowWrites(const Round& other) { journal_->Follow(other.journal_->latest()); }
  // Returns: the latest version of the intake's stream that is DONE; nullopt of any other round.
  std::optional<uint64_t> LatestVersion() const {
    const std::shared_ptr<StreamCommits> commits = Commits();
    return commits == nullptr ? std::nullopt : std::optional(commits->LatestDone());
  }
  // A version: begins a commit, which will be counted even if the version is closed before AddStreamCommit.
  // Errors: FAILED_PRECONDITION: the version is not open.
  absl::Status BeginStreamCommit();
  // A version: counts a submission. Call it once after each BeginStreamCommit. `upload`: complete. `hash`: of it.
  // Errors: as of Commit, but for those of a closed round.
  absl::StatusOr<Receipt> AddStreamCommit(const StreamUpload& upload, const std::string& key, const StreamPlace& place);
  // A version: closes it, now or, if the store does not take that, as soon as it does.
  void CloseVersion();
  // A version. Returns: the submission with this key, or nothing.
  std::optional<CommittedSubmission> FindCommitted(const std::string& key) const;

  // ---- committed submissions ----

  // Returns: up to `page_size` committed submissions from the token on; from the first one on if the token is empty.
  // None if the round is CANCELLED. Requires: page_size > 0. Errors: INVALID_ARGUMENT: not a token of this round.
  // Cost: O(page_size), under the lock of the round's state.
  // `with_withdrawn`: whether the last page has withdrawn_leaves.
  absl::StatusOr<SubmissionPage> ListSubmissions(size_t page_size, absl::string_view page_token,
                                                 bool with_withdrawn = false) const;
  // Returns: whether the client has a committed submission that was not withdrawn; false if the round is CANCELLED.
  // `submission_id`: as in Withdraw.
  bool HasSubmission(absl::string_view client_id, absl::string_view submission_id) const;
  // Takes the submission of a client out of the open round, as if it had never been sent, and releases its memory.
  // `submission_id`: that of its first commit or of its latest retry; empty: any. `is_coordinator`: also out of a
  // sealed round of a cluster, whose servers may have more than max_submissions together. Returns: false, without
  // effect, if the client has no such submission. Errors: FAILED_PRECONDITION: the round is not open; or submissions
  // are merged already. RESOURCE_EXHAUSTED: of RoundCertificate::CheckMayWithdraw. Blocks: while a commit adds its
  // submission.
  absl::StatusOr<bool> Withdraw(absl::string_view client_id, absl::string_view submission_id,
                                bool is_coordinator = false);
  // Calls `read` with the committed submissions. It must be short, and must not call the round.
  void ReadCommitted(absl::FunctionRef<void(const SubmissionTable::Map&)> read) const;
  // Returns: the result of `read`, which gets the sum; the sum of a closed round may have no aggregation any more. Used
  // by SealedReader. Blocks: while a commit adds its submission. Commits and the close wait for `read`.
  absl::Status ReadSum(absl::FunctionRef<absl::Status(RoundSum&)> read);

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
  // The same, but only the submissions of `clients` count. All others are withdrawn first, also those that a commit is
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
  // microsecond. Without effect on what is there. Errors, which leave the round as it was: INVALID_ARGUMENT: as of
  // CheckRange, or the range overlaps another one. ALREADY_EXISTS: the range has other rows. FAILED_PRECONDITION: not a
  // cluster's round, not created then, not sealed, or with a list that was put with another `only` or `plan`.
  // RESOURCE_EXHAUSTED: no memory.
  absl::Status PutRange(absl::Time created, RangeRecord range, std::string page);
  // Returns: the page of the range that begins so; of no tensor the list. Errors: NOT_FOUND.
  absl::StatusOr<std::shared_ptr<const std::string>> FindRange(absl::string_view tensor, uint64_t begin) const;
  // Whether a SealedReader can read the submissions.
  bool IsReadable() const {
    MutexLock lock(&mu_);
    return IsReadableLocked();
  }

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
  // Calls `done` once, when the round is sealed or has ended, or on ReleaseWaiters; at once if that has happened. As
  // `done` of Wait otherwise.
  void WhenFrozen(std::function<void()> done) {
    frozen_waits_.Add(absl::InfiniteDuration(), std::move(done), weak_from_this());
  }
  // Ends all waits, because the server stops: calls their `done` on this thread.
  void ReleaseWaiters() {
    waits_.Release();
    frozen_waits_.Release();
  }

 private:
  Round(RoundConfig config, const RoundServices& services, std::function<void()> on_expire,
        std::optional<absl::Time> create_time);

  // Whether the round takes what an earlier run has accepted.
  bool IsRestoring() const { return is_restored_ && !journal_->IsActive(); }

  // round_uploads.cc: uploads, from the first chunk to the last
  // Errors: RESOURCE_EXHAUSTED of RetryLater: the tenant has begun too many uploads in the last second.
  absl::Status CheckRateLocked(absl::string_view client_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::shared_ptr<UploadHandle>> OpenUploadLocked(UploadName name, bool is_named, const std::string& tag,
                                                                 UploadHandle::OnDiscard on_discard)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AppendChunk(UploadHandle& upload, const Chunk& chunk, const ContentHash* hash);
  // Makes the name free for a chunk 0 with `tag`. Returns: the upload that was removed, to be freed after mu_.
  UploadTable::Map::node_type RemoveOtherTagLocked(UploadName name, const std::string& tag)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the upload and hands it to NotifyDiscarded. Allocates nothing: the caller has called PostNotifyDiscarded
  // before.
  void DiscardLocked(UploadHandle& upload, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PostNotifyDiscarded();
  // Counts discarded uploads, calls their callbacks, and frees them and what Cancel has dropped.
  void NotifyDiscarded();
  void StartUploadTimerLocked(const std::shared_ptr<UploadHandle>& upload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnUploadTimer(const std::shared_ptr<UploadHandle>& upload);
  // Errors: RESOURCE_EXHAUSTED: the round has as many submissions as the server allows.
  absl::Status CheckSubmissionLimitLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts a refusal, and lists it in recent_refusals_.
  void CountRefusedLocked(absl::string_view client_id, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // CountRefusedLocked. Returns: `refusal`.
  absl::Status RefuseLocked(absl::string_view client_id, absl::Status refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // round_commit.cc: from the last chunk to the merge
  // Returns: the answer to a CommitNamed that finds no upload with its name and tag.
  absl::StatusOr<Receipt> AnswerCommitWithoutUploadLocked(UploadName name, const std::string& tag)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // CommitComplete and PrepareAndAdd: `upload` is that in `handle`, whose mutex is held.
  absl::StatusOr<Receipt> CommitComplete(UploadHandle& handle, Upload& upload);
  // Makes of a complete upload what Add takes. Errors: of Commit.
  absl::StatusOr<PreparedSubmission> Prepare(const UploadHandle& handle, Upload& upload) const;
  absl::StatusOr<Receipt> PrepareAndAdd(UploadHandle& handle, Upload& upload, const ContentHash& hash);
  // Hands a complete upload of the intake of a stream on.
  absl::StatusOr<Receipt> CommitToStream(UploadHandle& handle, Upload& upload, const ContentHash& hash);
  // Returns: the answer to a commit that must not be added: a duplicate receipt or an error.
  std::optional<absl::StatusOr<Receipt>> AnswerWithoutAddLocked(const UploadHandle& handle, const ContentHash& hash)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Receipt> Add(UploadHandle& handle, Upload& upload, const ContentHash& hash, Receipt receipt,
                              PreparedSubmission prepared, TuplesPerTensor tuples, const std::string& leaf)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(merge_mu_);
  // Ends the round as failed, because an Add has changed some tensors and not others. Returns: the error.
  absl::Status FailAfterPartialAdd(const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(merge_mu_);
  // The aggregation, for Prepare only. Finish, which destroys the aggregation, waits until no commit runs.
  const Aggregation& AggregationForPrepare() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return *sum_.aggregation(); }
  // Returns: the answer to a commit of an upload that has been committed before, and perhaps withdrawn since.
  absl::StatusOr<Receipt> AnswerRepeatLocked(const UploadHandle& handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns: the receipt of the client's committed submission, as a duplicate.
  Receipt CountDuplicate(const CommittedSubmission& submission) const;
  // Records a submission that is in the sum, and closes the round at max_submissions.
  absl::StatusOr<Receipt> RecordLocked(SubmissionTable::Map::node_type record, Receipt receipt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // round_stream.cc
  // Returns: who takes the commits of an intake; null of any other round. Errors: NOT_FOUND: the stream is gone.
  std::shared_ptr<StreamCommits> Commits() const;
  absl::StatusOr<Receipt> AddFromStream(const StreamUpload& upload, const std::string& key, const StreamPlace& place);
  // The config of the uploads of this round.
  const std::shared_ptr<const RoundConfig>& UploadConfig() const {
    return config_->IsVersion() ? config_->stream->uploads : config_;
  }
  // Returns: the submission of this name that counts, or nothing. Of a round: that of the client.
  std::optional<CommittedSubmission> FindCommittedLocked(UploadName name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // SubmissionTable::HasUpload.
  bool HasUploadLocked(UploadName name, absl::string_view tag) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // round_submissions.cc: the committed submissions, listed and taken out
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

  // round_weights.cc: a close with factors
  // Errors: of CloseWithWeights for a round that is closed. `sorted`: by client id.
  absl::Status CheckClosedWithLocked(absl::Span<const ClientWeight* const> sorted) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Multiplies the weights in the sum by the factors of the committed submissions, if an earlier run has stored some.
  void MultiplyStoredWeightsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(merge_mu_, mu_);

  // round_certify.cc
  // Returns: the leaf of the submission in a complete upload; empty if the round has no certificate.
  std::string MakeLeaf(const UploadHandle& handle, const Upload& upload) const;
  // Issues and stores the certificate, before anybody can read the results. Returns: `results`.
  // Errors: DATA_LOSS: an earlier run has certified other submissions or results.
  absl::StatusOr<Results> Certify(absl::StatusOr<Results> results) ABSL_EXCLUSIVE_LOCKS_REQUIRED(merge_mu_);
  // Returns: the proofs of the certificate; null if there is none yet.
  std::shared_ptr<const ProofIndex> FindProofs() const;

  // round_ranges.cc
  // Returns: whether the range is there already. Errors: of PutRange.
  absl::StatusOr<bool> CheckRangeLocked(absl::Time created, const RangeRecord& range, absl::string_view page) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool TakesWithdrawalsLocked(bool is_coordinator) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool is_of_cluster = !config_->homes.servers.empty();
    return life_.is_open() || (is_coordinator && is_of_cluster && life_.state() == RoundState::kSealed);
  }
  bool IsReadableLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return life_.state() == RoundState::kSealed || life_.keeps_sum();
  }
  // Ends the sealed round as DONE, if it has not ended, and drops the ranges that its list does not have.
  absl::Status EndMerged();

  // round.cc: life cycle
  absl::Status Start(Permit permit);
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
  void DiscardUploadsLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the round. The caller calls AnnounceEnd after it has released mu_.
  void EndLocked(RoundState state, absl::Status failure, std::string reason, const Moment& now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes the waiters of a round that has ended, and logs the end.
  void AnnounceEnd();
  void PostFinish();
  // Computes the result or frees the aggregation, once the round is closed and no commit runs. Posted at the close, at
  // the end and after the last commit; the first call that finds both does the work, all others do nothing.
  void FinishIfReady();
  // Returns: true if the round has ended by this call.
  bool Finish();
  // Returns: what the store is to keep of the round's state. Requires: the round is not open.
  StateRecord RecordState() const;
  void OnDeadline();
  // Closes the round as soon as the store takes it, which has just refused with `status`.
  void RetryCloseLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

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
  RoundWaits frozen_waits_;  // of WhenFrozen

  Mutex merge_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  RoundSum sum_ ABSL_GUARDED_BY(merge_mu_);

  mutable Mutex mu_;
  Permit open_permit_ ABSL_GUARDED_BY(mu_);  // of tenant_.open_rounds
  uint64_t num_refused_ ABSL_GUARDED_BY(mu_) = 0;
  RecentRefusals recent_refusals_ ABSL_GUARDED_BY(mu_);
  SubmissionTable committed_ ABSL_GUARDED_BY(mu_);
  UploadTable uploads_ ABSL_GUARDED_BY(mu_);
  uint64_t next_upload_ ABSL_GUARDED_BY(mu_) = 1;       // UploadHandle::id_
  TuplesPerTensor latest_tuples_ ABSL_GUARDED_BY(mu_);  // of the latest commit: the next submission may be like it
  RoundLife life_ ABSL_GUARDED_BY(mu_);
  RoundCertificate certificate_ ABSL_GUARDED_BY(mu_);
  ResultRanges ranges_ ABSL_GUARDED_BY(mu_);
  Timer::Id deadline_timer_ ABSL_GUARDED_BY(mu_) = 0;
  Timer::Id expire_timer_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_H_
