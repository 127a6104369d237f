// One aggregation round: its life, its uploads, its result.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "host/aggregation.h"
#include "host/result.h"
#include "service/admission/count_limit.h"
#include "service/base/round_stage.h"
#include "service/base/run_after_unlock.h"
#include "service/base/timer.h"
#include "service/rounds/round_config.h"
#include "service/rounds/upload.h"
#include "service/server_context.h"  // allow(inner-include): to be narrowed

namespace sparseagg::service {

enum class RoundState { kOpen, kFinalizing, kDone, kFailed, kCancelled };

inline constexpr size_t kNumRoundStates = 5;

absl::string_view Name(RoundState state);
constexpr bool HasEnded(RoundState state) {
  return state == RoundState::kDone || state == RoundState::kFailed || state == RoundState::kCancelled;
}

using Results = std::shared_ptr<const std::vector<Result>>;

// A committed submission.
struct Receipt {
  std::string client_id;
  std::string submission_id;  // of the submission that stands
  bool duplicate = false;     // it stood before
  uint64_t num_tuples = 0;
  uint64_t num_bytes = 0;
};

struct UploadProgress {
  uint64_t next_sequence = 0;
  uint64_t received_tuples = 0;
  bool complete = false;
  bool committed = false;
};

// Where the time went. Busy times are summed over threads.
struct Timeline {
  StageTimes stages;
  absl::Duration decode;  // chunks to columns, with validation
  absl::Duration prepare;
  absl::Duration add;
  absl::Duration finish;  // wall time from the close to the end
  absl::Duration open;    // wall time from the creation to the close
};

struct RoundSnapshot {
  RoundState state = RoundState::kOpen;
  std::string reason;    // of kFailed and kCancelled
  absl::Status failure;  // of kFailed and kCancelled
  uint64_t num_submissions = 0;
  uint64_t num_tuples = 0;
  uint64_t num_bytes = 0;
  uint64_t num_refused = 0;
  uint64_t num_uploads = 0;
  absl::Time create_time;
  absl::Time close_time = absl::InfinitePast();  // infinite: not yet
  absl::Time end_time = absl::InfinitePast();
  absl::Time expire_time = absl::InfinitePast();
  Timeline timeline;
  Results results;  // when kDone
};

// An upload that a round knows.
class UploadHandle {
 public:
  // Called once, from the worker pool, if the round discards the upload by itself: it has closed.
  using OnDiscard = std::function<void(absl::Status)>;
  using OnCommit = std::function<void(absl::StatusOr<Receipt>)>;

  UploadHandle(std::string client, std::string submission, std::string upload_tag,
               std::shared_ptr<const RoundConfig> config, ServerContext& server, Permit permit)
      : client_id(std::move(client)),
        submission_id(std::move(submission)),
        tag(std::move(upload_tag)),
        upload_(std::move(config), &server.budget),
        permit_(std::move(permit)) {}

  const std::string client_id;
  const std::string submission_id;
  const std::string tag;  // of a unary upload: what is uploaded, and how it is cut

 private:
  friend class Round;
  std::mutex mu_;  // one chunk, or the commit, at a time; who holds it may be at it for long
  Upload upload_;  // guarded by mu_
  Permit permit_;
  // Guarded by Round::mu_.
  uint64_t id_ = 0;
  bool by_name_ = false;                              // found by client and submission id: unary
  bool committing_ = false;                           // the commit decides what becomes of it
  UploadProgress progress_;                           // after the last chunk, for who does not wait for mu_
  absl::Status verdict_;                              // why the round let go of it; OK while it has not
  absl::Duration last_chunk_ = absl::ZeroDuration();  // that was new: Clock::Monotonic
  OnDiscard on_discard_;
  Timer::Id timer_ = 0;
  std::deque<OnCommit> commits_;  // asked for by name and not answered: who asked first answers them
};

// Thread-safe. Calls that may work for long (Open, PutChunk, Append, Commit…) belong on the worker pool, unless what
// they are given is small; the others are short.
//
// Decoding, validation and Prepare run outside of the round's locks, on as many threads as there are. Two locks:
// merge_mu_ is held while the engine adds or finishes, mu_ for the state, never for long. Order: an upload's lock,
// merge_mu_, mu_.
class Round : public std::enable_shared_from_this<Round> {
 public:
  // `on_expire` is called on the timer's thread when the ended round has been kept for result_ttl; the deadline has no
  // effect before StartDeadline, so that nothing ends the round before it is known. INVALID_ARGUMENT: a bad spec.
  // RESOURCE_EXHAUSTED: too many open rounds, or a dense result that does not fit the memory limit.
  static absl::StatusOr<std::shared_ptr<Round>> Open(RoundConfig config, ServerContext* server,
                                                     std::function<void()> on_expire);
  ~Round();
  // The round closes when the deadline of its spec, measured from its creation, has passed.
  void StartDeadline();

  const RoundConfig& config() const { return *config_; }
  const Clock& clock() const { return server_.clock; }
  RoundSnapshot Snapshot() const;
  RoundState state() const;
  absl::Time create_time() const;
  // FAILED_PRECONDITION unless kDone.
  absl::StatusOr<Results> GetResults() const;

  // ---- uploads of one caller, who holds the handle, and discards it if no chunk comes for too long ----

  // FAILED_PRECONDITION: the round is not open, and the client has no submission that this could be a retry of.
  absl::StatusOr<std::shared_ptr<UploadHandle>> OpenUpload(const std::string& client_id,
                                                           const std::string& submission_id,
                                                           UploadHandle::OnDiscard on_discard);
  // An error discards the upload, except FAILED_PRECONDITION under Repeats::kIgnore.
  absl::Status Append(UploadHandle& upload, const Chunk& chunk, Repeats repeats);
  // Counts the upload, completely or not at all; either way it is gone, unless it is not complete yet, which is
  // FAILED_PRECONDITION.
  absl::StatusOr<Receipt> Commit(UploadHandle& upload);
  // Whether a commit may merge what others have sent, which takes much longer than what is committed tells.
  bool MergesOnArrival() const;
  // Both let go of the upload, if it is still there: its client has given it up, or it counts as refused.
  void Forget(UploadHandle& upload);
  void Refuse(UploadHandle& upload, const absl::Status& status);
  // For the timeline: what became of a message before Append. `waited`: for the client to send it; `queued`: for a
  // thread; `parsing`: to take it apart.
  void NoteMessage(uint64_t bytes, absl::Duration waited, absl::Duration queued, absl::Duration parsing);
  // For the timeline: a page of the result was made.
  void NotePage(uint64_t bytes, absl::Duration encoding) const { Note(RoundStage::kEncode, encoding, {}, bytes); }
  // … and was taken by its reader.
  void NotePageTaken(absl::Duration waited) const { stages_.Add(RoundStage::kEncode, {}, waited, 0); }

  // ---- uploads by name, over many calls; discarded if no chunk comes for upload_timeout ----
  //
  // Under one name there is one upload at a time, which has a tag. All but a chunk 0 leave one with another tag alone.

  // A chunk 0 discards an upload with another tag, of which later chunks are FAILED_PRECONDITION. One that is being
  // committed keeps nobody waiting: it only loses the name.
  absl::StatusOr<UploadProgress> PutChunk(const std::string& client_id, const std::string& submission_id,
                                          const Chunk& chunk, const std::string& tag = "");
  // Discards the upload, if it is there, and counts it as refused: of chunks that are refused before they get here.
  void RefuseNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                   const absl::Status& status);
  // Calls `done` once, before returning or, if the upload is being committed already, from the thread that does it: a
  // client that asks again keeps no thread waiting. FAILED_PRECONDITION: as of Commit, and where an upload with another
  // tag is.
  void CommitNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                   const UploadHandle::OnCommit& done);
  // NOT_FOUND: no upload. No progress: one with another tag.
  absl::StatusOr<UploadProgress> GetProgress(const std::string& client_id, const std::string& submission_id,
                                             const std::string& tag = "");

  // ---- life cycle ----

  // Stops taking submissions and starts the merge. No effect unless open.
  void Close();
  // FAILED_PRECONDITION on a round that is DONE or FAILED. A merge that is running is let run, and its result dropped.
  absl::Status Cancel(absl::string_view reason);

  using WaitId = uint64_t;
  // Calls `done` once, from any thread and maybe before returning: when the round has ended, after `timeout`, or on
  // ReleaseWaiters.
  WaitId Wait(absl::Duration timeout, std::function<void()> done);
  // True: `done` will not be called.
  bool StopWaiting(WaitId id);
  void ReleaseWaiters();

 private:
  // A committed client. Under another submission id the same content may come again.
  struct Committed {
    ContentHash hash;
    Receipt receipt;
    uint64_t num_chunks = 0;
    std::string tag;
    std::string retry_id;  // the latest such id, and its tag
    std::string retry_tag;
  };
  struct Waiter {
    std::function<void()> done;
    Timer::Id timer = 0;
  };
  using UploadName = std::pair<std::string, std::string>;  // client id, submission id

  Round(RoundConfig config, ServerContext* server, std::function<void()> on_expire);

  // round_uploads.cc: uploads, from the first chunk to the last
  std::shared_ptr<UploadHandle> FindNamedLocked(const UploadName& name) const;
  absl::StatusOr<std::shared_ptr<UploadHandle>> OpenUploadLocked(const std::string& client_id,
                                                                 const std::string& submission_id, bool by_name,
                                                                 const std::string& tag,
                                                                 UploadHandle::OnDiscard on_discard);
  static absl::Status Replaced(const UploadName& name);
  std::shared_ptr<UploadHandle> MakeWayLocked(const UploadName& name, const std::string& tag);
  std::shared_ptr<UploadHandle> RemoveLocked(UploadHandle& upload, absl::Status verdict);
  void DiscardLocked(UploadHandle& upload, absl::Status verdict);
  bool IsRetryLocked(const UploadName& name, const std::string& tag) const;
  UploadProgress CommittedProgressLocked(const UploadName& name) const;
  void ScheduleUploadTimerLocked(const std::shared_ptr<UploadHandle>& upload);
  void OnUploadTimer(const std::shared_ptr<UploadHandle>& upload);

  // round_commit.cc: from the last chunk to the merge
  absl::StatusOr<Receipt> AnswerForgottenLocked(const UploadName& name, const std::string& tag);
  absl::StatusOr<Receipt> CommitComplete(UploadHandle& upload);
  std::optional<absl::StatusOr<Receipt>> AnswerLocked(const UploadHandle& upload, const ContentHash& hash);
  absl::StatusOr<Receipt> PrepareAndAdd(UploadHandle& upload, const ContentHash& hash);
  absl::StatusOr<Receipt> Add(UploadHandle& upload, const ContentHash& hash, Receipt receipt,
                              PreparedSubmission prepared, TuplesPerTensor tuples);
  void SetHeld();
  absl::Status MergePending();
  // Counts it.
  Receipt AnswerDuplicateLocked(const std::string& client_id);
  absl::StatusOr<Receipt> RecordLocked(std::pair<std::string, Committed> record, Receipt receipt);

  // A stage's operation, for the round's timeline and for the metrics.
  void Note(RoundStage stage, absl::Duration busy, absl::Duration wait, uint64_t bytes) const {
    stages_.Add(stage, busy, wait, bytes);
    server_.metrics.ObserveStage(stage, busy);
  }
  void CountRefusedLocked(const absl::Status& status);
  // Counts it, and returns it.
  absl::Status RefuseLocked(absl::Status refusal);

  // round.cc: life cycle
  // What a submission is told that comes too late.
  absl::Status NotOpenLocked() const;
  // What others are, whom the state does not suit.
  absl::Status IsInStateLocked() const;
  void FinalizeLocked();
  void DropUploadsLocked();
  void EndLocked(RoundState state, absl::Status failure, std::string reason, RunAfterUnlock& after);
  void PostFinishLocked();
  void Finish();
  void LogEnd(const RoundSnapshot& snapshot) const;
  RoundSnapshot SnapshotLocked() const;

  const std::shared_ptr<const RoundConfig> config_;
  ServerContext& server_;
  const std::function<void()> on_expire_;
  const absl::Duration created_;  // Clock::Monotonic
  Permit open_permit_;            // guarded by mu_

  std::mutex merge_mu_;
  std::unique_ptr<Aggregation> aggregation_;  // guarded by merge_mu_, except Prepare while preparing_ > 0
  Reservation held_;                          // guarded by merge_mu_: submissions, and room for the result
  uint64_t fixed_bytes_ = 0;                  // guarded by merge_mu_, as the next two: the round and its spec
  uint64_t merged_bytes_ = 0;                 // what aggregation_ held after MergePending
  uint64_t committed_bytes_ = 0;              // what committed_ takes

  mutable StageTotals stages_;
  std::atomic<int64_t> add_ns_{0};

  mutable std::mutex mu_;
  // All guarded by mu_.
  RoundSnapshot now_;  // but for what SnapshotLocked fills in
  absl::Duration closed_ = absl::ZeroDuration();
  uint64_t preparing_ = 0;  // commits between the look at the state and the end of Add: Finish waits for them
  bool finish_posted_ = false;
  absl::flat_hash_map<std::string, Committed> committed_;
  TuplesPerTensor latest_tuples_;  // of the last committed submission, by tensor: the next may be like it
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::shared_ptr<UploadHandle>> uploads_;
  absl::flat_hash_map<UploadName, uint64_t> uploads_by_name_;
  std::map<WaitId, Waiter> waiters_;
  Timer::Id deadline_timer_ = 0;
  Timer::Id expire_timer_ = 0;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_H_
