// The uploads of a round as it keeps them, until they are committed or discarded.
#ifndef SPARSEAGG_SERVICE_ROUNDS_UPLOAD_TABLE_H_
#define SPARSEAGG_SERVICE_ROUNDS_UPLOAD_TABLE_H_

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
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/content_hash.h"
#include "host/base/mutex.h"
#include "service/admission/count_limit.h"
#include "service/admission/memory_budget.h"
#include "service/base/clock.h"
#include "service/rounds/receipt.h"
#include "service/rounds/round_config.h"
#include "service/rounds/round_journal.h"
#include "service/rounds/upload.h"

namespace sparseagg::service {

// Client id and submission id.
using UploadName = std::pair<absl::string_view, absl::string_view>;

// How far an upload has come.
struct UploadProgress {
  uint64_t next_sequence = 0;  // the chunk expected next
  uint64_t received_tuples = 0;
  bool complete = false;   // the last chunk has been received
  bool committed = false;  // the submission counts
};

// An Upload with the state that its round needs to find, commit and discard it. Made by Round, which shares it with
// the call that sends the chunks. Callers pass the handle back to the round; only the ids are theirs to read.
class UploadHandle {
 public:
  // Called at most once, on the worker pool, if the round discards a stream upload because the round has closed.
  using OnDiscard = std::function<void(absl::Status)>;
  using OnCommit = std::function<void(absl::StatusOr<Receipt>)>;

  UploadHandle(std::string client, std::string submission, std::string upload_tag,
               std::shared_ptr<const RoundConfig> config, MemoryBudget* budget, Permit permit,
               std::shared_ptr<RoundJournal> journal)
      : client_id(std::move(client)),
        submission_id(std::move(submission)),
        tag(std::move(upload_tag)),
        upload_(std::move(config), budget),
        permit_(std::move(permit)),
        journal_(std::move(journal)) {}
  // Here rather than where the round removes the upload, which must not wait for a disk. An error leaves chunks behind,
  // which the next restart removes.
  ~UploadHandle() {
    if (has_stored_chunks_ && is_removed_ && !is_submission_) journal_->Write(&Store::DeleteUpload, id_).IgnoreError();
  }
  UploadHandle(const UploadHandle&) = delete;
  UploadHandle& operator=(const UploadHandle&) = delete;

  const std::string client_id;
  const std::string submission_id;
  const std::string tag;  // of a named upload: identifies the content and how it is cut into chunks

 private:
  friend class Round;
  friend class UploadTable;

  // Held while one chunk is appended or the upload is committed, which may take long.
  Mutex mu_;
  Upload upload_ ABSL_GUARDED_BY(mu_);
  bool has_stored_chunks_ = false;  // guarded by mu_, but for the destructor

  // All members below are guarded by Round::mu_.
  Permit permit_;
  const std::shared_ptr<RoundJournal> journal_;
  uint64_t id_ = 0;             // key in the UploadTable, and number in the store
  bool is_removed_ = false;     // from the round, rather than destroyed with it
  bool is_submission_ = false;  // the stored chunks are those of a committed submission
  bool is_named_ = false;
  bool is_committing_ = false;             // a commit runs, and decides what becomes of the upload
  bool counts_as_refused_ = false;         // of a discarded upload
  std::optional<StreamPlace> stream_;      // of a commit to a stream, whose client_id is the key in the version
  std::string client_of_key_;              // of a commit to a stream: the client's id
  std::optional<ContentHash> hash_;        // of the content, from the commit on
  std::vector<ContentHash> chunk_hashes_;  // the same of the chunks: Upload::chunk_hashes for callers without mu_
  UploadProgress progress_;                // as of the last complete chunk, for callers that do not wait for mu_
  absl::Status discard_status_;  // the reason why the round removed the upload; OK: it has not, or it is committed
  absl::Duration last_chunk_at_ = absl::ZeroDuration();  // Clock::Monotonic of the last new chunk
  OnDiscard on_discard_;
  Timer::Id timer_ = 0;                   // upload_timeout of a named upload
  std::deque<OnCommit> waiting_commits_;  // CommitNamed calls not answered yet; the first one commits and answers all
};

// Finds uploads, named ones also by their ids. Not thread-safe: Round guards it, and the members of the handles that it
// reads and sets.
class UploadTable {
 public:
  using Map = std::map<uint64_t, std::shared_ptr<UploadHandle>>;  // by UploadHandle::id_

  // `timer`: borrowed; it has the timeouts of named uploads.
  explicit UploadTable(Timer& timer) : timer_(timer) {}

  // FAILED_PRECONDITION: an upload with another tag has taken the name. NOT_FOUND: no upload has it.
  static absl::Status ReplacedError(UploadName name);
  static absl::Status NoUploadError(UploadName name);

  size_t size() const { return uploads_.size(); }
  bool Contains(const UploadHandle& upload) const { return uploads_.contains(upload.id_); }
  // Returns: the upload, or null.
  std::shared_ptr<UploadHandle> FindNamed(UploadName name) const;
  // Returns: the upload with the smallest id above `id`, or null.
  UploadHandle* Next(uint64_t id) const;

  // Adds the upload; if it is named, its name must be free. If an allocation fails, the table is as it was.
  void Insert(const std::shared_ptr<UploadHandle>& upload);
  // Removes the upload, if it is still there, with `status` as the reason. Allocates nothing. Returns: the map's entry,
  // to be freed after the round's lock; empty if the upload had ended.
  Map::node_type Remove(UploadHandle& upload, absl::Status status);
  // Makes the name of a named upload free. The upload goes on.
  void RemoveName(UploadHandle& upload);
  // As Remove, but keeps the upload for TakeDiscarded. Returns: false if the upload had ended.
  bool Discard(UploadHandle& upload, absl::Status status);
  Map TakeDiscarded() { return std::exchange(discarded_, {}); }

 private:
  Timer& timer_;
  Map uploads_;
  Map discarded_;
  std::map<UploadName, std::shared_ptr<UploadHandle>> by_name_;  // the keys are views of the ids in the handles
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_UPLOAD_TABLE_H_
