// The intake of a round or a stream: its uploads, from the first chunk to the commit, and what it has refused.
#ifndef SPARSEAGG_SERVICE_ROUNDS_INTAKE_H_
#define SPARSEAGG_SERVICE_ROUNDS_INTAKE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
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
#include "host/base/content_hash.h"
#include "host/base/mutex.h"
#include "service/admission/count_limit.h"
#include "service/admission/memory_budget.h"
#include "service/admission/tenants.h"
#include "service/base/clock.h"
#include "service/rounds/round_config.h"
#include "service/rounds/round_journal.h"
#include "service/rounds/round_life.h"
#include "service/rounds/round_meter.h"
#include "service/rounds/round_services.h"
#include "service/rounds/submission_table.h"
#include "service/rounds/upload.h"

namespace sparseagg::service {

// A complete upload, for the commit. Borrows all but the numbers.
struct CompleteUpload {
  const std::string& client_id;
  const std::string& submission_id;
  const std::string& tag;
  Upload& content;  // the commit takes it
  ContentHash hash;
  // Calls its argument for each chunk as received, for the store. Null: nothing is stored.
  using TakeChunk = std::function<absl::Status(absl::Span<const absl::string_view>)>;
  std::function<absl::Status(const TakeChunk&)> chunks = nullptr;
  // Of the upload in the intake's journal, which has its chunks. nullopt: the chunks are not stored yet.
  std::optional<uint64_t> number = std::nullopt;
  bool is_kept = false;  // set by the commit: the chunks of `number` are those of a submission
};

// What an intake collects submissions for: a round, or a stream. Thread-safe. Lock order: an upload's mutex, the
// target's, the intake's; so the intake calls its target without its own lock.
class SubmissionTarget {
 public:
  virtual ~SubmissionTarget() = default;

  virtual RoundState state() const = 0;
  // Errors: FAILED_PRECONDITION, NOT_FOUND: the target takes no submissions, and why.
  virtual absl::Status CheckOpen() const = 0;
  // The same for an upload of the client. One with a submission may upload to a closed round, since this may be a
  // retry. Errors: of CheckOpen. RESOURCE_EXHAUSTED: there are as many submissions as the server allows.
  virtual absl::Status CheckTakes(absl::string_view client_id) const = 0;
  // Returns: the submission of this name that counts; of a round, whatever its submission id. `tag`: only if an upload
  // of this submission id and tag was committed, for the first time or as a retry.
  virtual std::optional<CommittedSubmission> FindCommitted(UploadName name, const std::string* tag = nullptr) const = 0;
  // Returns: whether this submission of the client counts. `submission_id`: of its first commit or its latest retry.
  virtual bool HasSubmission(absl::string_view client_id, absl::string_view submission_id) const = 0;
  // Counts a submission, completely or not at all. Errors: as of Intake::Commit.
  virtual absl::StatusOr<Receipt> Commit(CompleteUpload& upload) = 0;
  // Takes a submission out again. Returns: false: there is none. Errors: as of Round::Withdraw and Stream::Withdraw.
  virtual absl::StatusOr<bool> Withdraw(absl::string_view client_id, absl::string_view submission_id,
                                        bool is_coordinator) = 0;
  // Returns: the latest version of a stream that is DONE, 0 if there is none; nullopt of a round.
  virtual std::optional<uint64_t> LatestVersion() const { return std::nullopt; }
  // Returns: an owner of the target and its intake.
  virtual std::shared_ptr<const void> Keep() const = 0;
};

// A list of the latest kMaxRefusals refusals, the oldest first. Not stored: a restart forgets it. Not thread-safe.
class RecentRefusals {
 public:
  static constexpr size_t kMaxRefusals = 20;
  static constexpr size_t kMaxReasonBytes = 256;
  static constexpr size_t kMaxRefusalBytes = 256 + kMaxReasonBytes + 128;  // one entry, with its client id
  static constexpr size_t kListBytes = kMaxRefusals * kMaxRefusalBytes;    // reserved at the first refusal

  // `budget`: of the tenant; must outlive this object.
  explicit RecentRefusals(MemoryBudget* budget) : memory_(budget, /*keeps_submissions=*/false) {}

  // Appends a refusal and drops the oldest if the list is full. Without memory for the list nothing is kept: a refusal
  // must not fail because it cannot be recorded.
  void Add(absl::string_view client_id, const absl::Status& status, absl::Time time);

  const std::vector<Refusal>& list() const { return refusals_; }

 private:
  Reservation memory_;
  std::vector<Refusal> refusals_;
};

// An Upload with the state that its intake needs to find, commit and discard it. Made by Intake, which shares it with
// the call that sends the chunks. Callers pass the handle back to the intake; only the ids are theirs to read.
class UploadHandle {
 public:
  // Called at most once, on the worker pool, if the intake discards a stream upload because it is closed.
  using OnDiscard = std::function<void(absl::Status)>;
  using OnCommit = std::function<void(absl::StatusOr<Receipt>)>;

  UploadHandle(UploadName name, std::string upload_tag, std::shared_ptr<const RoundConfig> config, MemoryBudget* budget,
               Permit permit, std::shared_ptr<RoundJournal> journal)
      : client_id(name.first),
        submission_id(name.second),
        tag(std::move(upload_tag)),
        upload_(std::move(config), budget),
        permit_(std::move(permit)),
        journal_(std::move(journal)) {}
  // Here rather than where the intake removes the upload, which must not wait for a disk. An error leaves chunks
  // behind, which the next restart removes.
  ~UploadHandle() {
    if (has_stored_chunks_ && is_removed_ && !is_submission_) journal_->Write(&Store::DeleteUpload, id_).IgnoreError();
  }
  UploadHandle(const UploadHandle&) = delete;
  UploadHandle& operator=(const UploadHandle&) = delete;

  const std::string client_id;
  const std::string submission_id;
  const std::string tag;  // of a named upload: identifies the content and how it is cut into chunks

 private:
  friend class Intake;

  UploadName name() const { return {client_id, submission_id}; }

  // Held while one chunk is appended or the upload is committed, which may take long.
  Mutex mu_;
  Upload upload_ ABSL_GUARDED_BY(mu_);
  bool has_stored_chunks_ = false;  // guarded by mu_, but for the destructor

  // All members below are guarded by Intake::mu_.
  Permit permit_;
  const std::shared_ptr<RoundJournal> journal_;
  uint64_t id_ = 0;             // key in Intake::uploads_, and number in the store
  bool is_removed_ = false;     // from the intake, rather than destroyed with it
  bool is_submission_ = false;  // the stored chunks are those of a committed submission
  bool is_named_ = false;
  bool is_committing_ = false;             // a commit runs, and decides what becomes of the upload
  bool counts_as_refused_ = false;         // of a discarded upload
  std::optional<ContentHash> hash_;        // of the content, from the commit on
  std::vector<ContentHash> chunk_hashes_;  // the same of the chunks: Upload::chunk_hashes for callers without mu_
  UploadProgress progress_;                // as of the last complete chunk, for callers that do not wait for mu_
  absl::Status discard_status_;  // why the intake removed the upload; OK: it has not, or the upload is committed
  absl::Duration last_chunk_at_ = absl::ZeroDuration();  // Clock::Monotonic of the last new chunk
  OnDiscard on_discard_;
  Timer::Id timer_ = 0;                   // upload_timeout of a named upload
  std::deque<OnCommit> waiting_commits_;  // CommitNamed calls not answered yet; the first one commits and answers all
};

// Collects submissions, in chunks, and hands complete ones to its SubmissionTarget.
//
// There are two kinds of uploads. A stream upload belongs to the call that holds its handle. Dropping the handle does
// not end the upload: the call must Commit, Discard or Refuse it, and watches itself that a message comes within the
// server's upload_timeout. A named upload is found by its ids in every call; the intake discards it if no new chunk
// comes for upload_timeout.
//
//   ASSIGN_OR_RETURN(const auto upload, intake.OpenStreamUpload("client", "submission", on_discard));
//   RETURN_IF_ERROR(intake.Append(*upload, chunk));
//   ASSIGN_OR_RETURN(const Receipt receipt, intake.Commit(*upload));
//
// A part of a Round or a Stream, which owns it.
//
// Thread-safe. Append, PutChunk, Submit, Commit and CommitNamed decode, sort, merge and wait for each other: call them
// on the worker pool unless their input is small. Chunks and commit of one upload run one after another. Other calls
// are short. Decoding and validation take no lock but the upload's, so that many threads do them at once.
//
// Calls allocate first and change the intake afterwards: if an allocation fails, the call throws std::bad_alloc, and
// the intake is as it was. With a data directory a chunk is written to the store before it is acknowledged; if that
// fails, the upload ends.
class Intake {
 public:
  // `config`: of the uploads. Borrows `target`, `tenant` and `meter`, whose owner owns the intake.
  Intake(SubmissionTarget& target, std::shared_ptr<const RoundConfig> config, const RoundServices& services,
         Tenant& tenant, std::shared_ptr<RoundJournal> journal, RoundMeter& meter);

  SubmissionTarget& target() const { return target_; }
  const RoundConfig& config() const { return *config_; }
  const RoundJournal& journal() const { return *journal_; }
  RoundMeter& meter() const { return meter_; }  // for those who bring messages
  // Returns: true if a commit may also merge pending updates of other submissions, so that a small one may take long.
  bool MergesOnArrival() const { return config_->MergesOnArrival(); }
  IntakeSnapshot Snapshot() const;
  size_t num_recent_refusals() const;

  // Submits a whole submission, of one chunk. Errors: as of OpenStreamUpload, Append and Commit; it then counts as
  // refused.
  absl::StatusOr<Receipt> Submit(const std::string& client_id, const std::string& submission_id, const Chunk& chunk);

  // ---- stream uploads ----

  // Opens an upload. `on_discard`, if any, runs once, on the pool, if Close discards the upload; not after Discard,
  // Refuse or an error of Append or Commit. Errors: of SubmissionTarget::CheckTakes. RESOURCE_EXHAUSTED: the server's
  // or the tenant's limit of uploads is reached, or the tenant has begun too many in the last second (RetryLater).
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
  // refused: FAILED_PRECONDITION: the target is not open. ALREADY_EXISTS: the client has committed other content.
  // INVALID_ARGUMENT, OUT_OF_RANGE: wrong keys or values, as of Upload::TakeUpdates and Aggregation::Prepare.
  // RESOURCE_EXHAUSTED: no memory, or too many submissions. INTERNAL: the Add failed half way. Of an upload discarded
  // before: the reason of the discard, and nothing is counted.
  absl::StatusOr<Receipt> Commit(UploadHandle& handle);
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
  // Counts a refusal of a message that PutChunk could not be called with, and ends the upload of these ids and this tag
  // if there is one that is not being committed.
  void RefuseNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                   const absl::Status& status);
  // Commits as Commit does and calls `done` once: before returning or, if another call is already committing the
  // upload, later on that call's thread, for which this call does not wait.
  // Gives `done`, if no upload has these ids and this tag: a duplicate receipt if such an upload has been committed;
  // else an error of SubmissionTarget::CheckOpen; else FAILED_PRECONDITION: the upload has another tag; else NOT_FOUND.
  void CommitNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                   const UploadHandle::OnCommit& done);
  // Returns: the upload's progress, also after its commit. If the ids name an upload with another tag, committed or
  // not: zero, since nothing of this one is here. Errors: NOT_FOUND: no upload.
  absl::StatusOr<UploadProgress> GetProgress(const std::string& client_id, const std::string& submission_id,
                                             const std::string& tag = "");
  // `chunks` calls its argument for each stored chunk. Blocks: while they are decoded.
  using ChunkSource = std::function<absl::Status(const std::function<absl::Status(const Chunk&)>&)>;
  // For a restart. `number`: of the upload, in the store. Adds the number of chunks that the upload took to
  // `*num_chunks`. Errors: ABORTED, of `chunks`; the upload keeps the chunks that it has, and is dropped if it has
  // none. Any other error of `chunks`, or of Append, drops it.
  absl::Status Restore(uint64_t number, const UploadRecord& record, const ChunkSource& chunks, uint64_t* num_chunks);

  // ---- for the target ----

  // Closing takes two steps, so that all allocations come first. Requires: the caller holds the lock that the target's
  // state() takes, from the first step to the second.
  void PrepareToClose() { PostNotifyDiscarded(); }
  // Discards all uploads but those being committed and those of clients that `may_retry`, and has those that are just
  // being opened ask the target again. Allocates nothing.
  void Close(const absl::Status& status, absl::FunctionRef<bool(const std::string&)> may_retry);
  // Calls `done` once, when AnnounceClosed or ReleaseWaiters is called; at once after AnnounceClosed. As `done` of
  // Round::Wait otherwise.
  void WhenClosed(std::function<void()> done) {
    closed_waits_.Add(absl::InfiniteDuration(), std::move(done), target_.Keep());
  }
  void AnnounceClosed() { closed_waits_.End(); }
  void ReleaseWaiters() { closed_waits_.Release(); }

 private:
  using Uploads = std::map<uint64_t, std::shared_ptr<UploadHandle>>;  // by UploadHandle::id_

  absl::StatusOr<std::shared_ptr<UploadHandle>> Open(UploadName name, bool is_named, const std::string& tag,
                                                     UploadHandle::OnDiscard on_discard, uint64_t number);
  // Errors: of OpenStreamUpload. Returns: the permit of an upload.
  absl::StatusOr<Permit> Admit(absl::string_view client_id);
  // Errors: RESOURCE_EXHAUSTED of RetryLater: the tenant has begun too many uploads in the last second.
  absl::Status CheckRate(absl::string_view client_id);
  absl::Status AppendChunk(UploadHandle& handle, const Chunk& chunk, const ContentHash* hash, bool is_restored = false);
  absl::StatusOr<Receipt> CommitComplete(UploadHandle& handle, Upload& upload);
  absl::StatusOr<Receipt> AnswerRepeat(const UploadHandle& handle, const std::optional<ContentHash>& hash) const;
  // Returns: the receipt of the committed submission, as a duplicate.
  Receipt CountDuplicate(const CommittedSubmission& submission) const;

  std::shared_ptr<UploadHandle> FindNamedLocked(UploadName name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the upload, if it is still there, with `status` as the reason. Allocates nothing. Returns: the map's entry,
  // to be freed after mu_ is released; empty if the upload had ended.
  Uploads::node_type RemoveLocked(UploadHandle& upload, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the name free for a chunk 0 with another tag. Returns: the upload that was removed, to be freed after mu_.
  Uploads::node_type ReplaceLocked(UploadHandle& upload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the upload and hands it to NotifyDiscarded. Allocates nothing: the caller has called PostNotifyDiscarded
  // before.
  void DiscardLocked(UploadHandle& upload, const absl::Status& status, bool counts_as_refused)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PostNotifyDiscarded();
  // Counts discarded uploads, calls their callbacks, and frees them.
  void NotifyDiscarded();
  void StartTimerLocked(const std::shared_ptr<UploadHandle>& upload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnTimer(const std::shared_ptr<UploadHandle>& upload);
  // Counts a refusal, and lists it. Returns: `refusal`.
  absl::Status CountRefused(absl::string_view client_id, absl::Status refusal);
  absl::Status CountRefusedLocked(absl::string_view client_id, absl::Status refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  SubmissionTarget& target_;
  const std::shared_ptr<const RoundConfig> config_;
  const RoundServices services_;
  Tenant& tenant_;
  const std::shared_ptr<RoundJournal> journal_;
  RoundMeter& meter_;
  RoundWaits closed_waits_;

  mutable Mutex mu_;
  uint64_t num_closes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_refused_ ABSL_GUARDED_BY(mu_) = 0;
  RecentRefusals recent_refusals_ ABSL_GUARDED_BY(mu_);
  TuplesPerTensor latest_tuples_ ABSL_GUARDED_BY(mu_);  // of the latest commit: the next submission may be like it
  Uploads uploads_ ABSL_GUARDED_BY(mu_);
  Uploads discarded_ ABSL_GUARDED_BY(mu_);
  // The keys are views of the ids in the handles.
  std::map<UploadName, std::shared_ptr<UploadHandle>> by_name_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_INTAKE_H_
