// What survives a restart of the server: rounds, uploads, committed submissions and tasks, on disk.
#ifndef SPARSEAGG_SERVICE_STORE_STORE_H_
#define SPARSEAGG_SERVICE_STORE_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/base/mutex.h"
#include "service/base/worker_pool.h"
#include "service/store/data_directory.h"
#include "service/store/records.h"

namespace rocksdb {
class WriteBatch;
}

namespace sparseagg::service {

class ChunkFiles;
class Database;
class SyncedFile;

// What a restart keeps of what the server has acknowledged.
enum class Durability {
  kMemory,  // nothing
  kAsync,   // all, after the end of the process; after the end of the machine, what its kernel has written by then
  kSync,    // all: calls that change something are answered after their writes have reached the disk
};

struct StoreOptions {
  std::string data_dir;
  Durability durability = Durability::kSync;  // not kMemory
  uint64_t memory_limit_bytes = 0;            // of the process; 0: none
  // Takes the store's background jobs, and runs them one at a time, or never. Null: two threads of the store. For tests
  // that choose the order in which things happen.
  std::function<void(std::function<void()>)> post = nullptr;
};

// The store of one server, on RocksDB, with large chunks in files beside it. Rounds have numbers, which the registry
// gives out; uploads have numbers in their round. A write is in the operating system's hands when it returns, and so
// outlives the process. WhenDurable tells when a write outlives the machine, too: one sync covers all writes before it,
// whichever threads made them.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Store> store, Store::Open({"/var/lib/sparseagg"}));
//   ASSIGN_OR_RETURN(const Store::Ticket ticket, store->PutRound(1, record));
//   store->WhenDurable(ticket, [](const absl::Status& status) { … });
//
// Errors of all writes: RESOURCE_EXHAUSTED: the disk is full. UNAVAILABLE: any other error of the disk; the message has
// the path and the system's text. A write that fails changes nothing. Writes are tried again after a full disk; after
// a failed sync no write succeeds until a restart, since nobody knows what the disk has.
//
// Owned by Server. Thread-safe.
class Store {
 public:
  // Names a write. A later write has a larger ticket.
  using Ticket = uint64_t;
  using OnDurable = std::function<void(const absl::Status&)>;

  // Errors: as DataDirectory::Open. DATA_LOSS: RocksDB finds the files damaged.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const StoreOptions& options);
  // Calls Stop, and then empties the log, if FinishRestore was called. Blocks: for some syncs.
  ~Store();
  // Answers the calls that wait, and ends the store's threads. Writes and reads go on, but no later write becomes
  // durable. What `done` of WhenDurable owns is destroyed on the store's thread: call this while the owners of all that
  // still exist.
  // Blocks: until the latest sync has ended, and what it has answered is destroyed.
  void Stop();

  // ---- writes ----

  absl::StatusOr<Ticket> PutRound(uint64_t round, const RoundRecord& record);
  // Removes the round and all that belongs to it.
  absl::StatusOr<Ticket> DeleteRound(uint64_t round);
  // Also removes the submissions of `withdrawn`, but keeps their leaves, and replaces the records of `kept`, in the
  // same step; of a cancelled round removes all uploads and submissions.
  absl::StatusOr<Ticket> PutState(uint64_t round, const StateRecord& record,
                                  absl::Span<const WithdrawnSubmission> withdrawn = {},
                                  absl::Span<const std::pair<std::string, SubmissionRecord>> kept = {});
  // Adds a chunk to an upload. `bytes`: the message, in several spans. `opened`: of chunk 0 of a named upload, else
  // null; an upload without this record is not found after a restart, unless it is committed.
  absl::StatusOr<Ticket> PutChunk(uint64_t round, uint64_t upload, uint64_t sequence,
                                  absl::Span<const absl::string_view> bytes, const UploadRecord* opened);
  // Removes an upload that was not committed.
  absl::StatusOr<Ticket> DeleteUpload(uint64_t round, uint64_t upload);
  // Makes an upload the client's submission.
  absl::StatusOr<Ticket> PutSubmission(uint64_t round, absl::string_view client_id, const SubmissionRecord& record);
  // Removes a submission and its chunks.
  absl::StatusOr<Ticket> DeleteSubmission(uint64_t round, absl::string_view client_id, uint64_t upload);
  // The same for a submission that somebody withdraws: keeps its leaf.
  absl::StatusOr<Ticket> WithdrawSubmission(uint64_t round, const WithdrawnSubmission& withdrawn);

  // Writes the cut of a version of the stream `round`, and forgets those of the versions before `oldest`.
  absl::StatusOr<Ticket> PutCut(uint64_t round, uint64_t version, const CutRecord& record, uint64_t oldest);

  // Models have numbers of rounds. PutRound writes their specs, last of all: what else a number has without it, a
  // restart removes. The merged rows of a version, and a snapshot, are the chunks of an upload, which counts with the
  // version's record.
  absl::StatusOr<Ticket> PutModelVersion(uint64_t model, uint64_t version, const ModelVersionRecord& record);
  // The same for a snapshot, after a sync of its chunks, whatever the durability. In the same step removes all records
  // and uploads of before. Blocks: for the sync.
  absl::StatusOr<Ticket> PutModelSnapshot(uint64_t model, uint64_t version, const ModelVersionRecord& record);

  // Tasks have numbers, too, which the task registry gives out. Both calls write all or none.
  using NumberedTask = std::pair<uint64_t, const TaskRecord*>;
  absl::StatusOr<Ticket> PutTasks(absl::Span<const NumberedTask> tasks);
  using NumberedTaskState = std::pair<uint64_t, const TaskStateRecord*>;
  absl::StatusOr<Ticket> PutTaskStates(absl::Span<const NumberedTaskState> states);
  absl::StatusOr<Ticket> DeleteTask(uint64_t number);

  // Writes the time of day, at the start and the stop, and now and then.
  absl::StatusOr<Ticket> PutSeen(absl::Time time);
  // Returns: the latest time of PutSeen of the runs before, InfiniteFuture if there is none. Until then stored results
  // count as older: the time since may be the error of a clock that is ahead at this start, and what expires is gone
  // for good.
  absl::Time last_seen() const { return last_seen_; }

  // Calls `done` once: before the return if the write is durable as far as options.durability asks, or no sync can
  // succeed any more; else later, on the store's thread, for which `done` must be short. Errors, given to `done`: those
  // of writes. UNAVAILABLE: after Stop.
  void WhenDurable(Ticket ticket, OnDurable done);
  // The same, but waits. Blocks: for about two syncs.
  absl::Status AwaitDurable(Ticket ticket);

  // ---- reads, for the restart; ReadChunk also for exports ----

  // Returns: the rounds in ascending order of their numbers, with their states; of several of one name, the latest.
  // A model and a round may have one name. Also removes what belongs to no such round. Call it before the first write.
  struct StoredRound {
    uint64_t number = 0;
    RoundRecord record;
    StateRecord state;
  };
  absl::StatusOr<std::vector<StoredRound>> ReadRounds();
  // Calls `take` for each submission of the round, in ascending order of client ids.
  absl::Status ForEachSubmission(
      uint64_t round, const std::function<absl::Status(const std::string&, const SubmissionRecord&)>& take) const;
  // Returns: the named uploads that are not committed, by number.
  absl::StatusOr<std::vector<std::pair<uint64_t, UploadRecord>>> ReadUploads(uint64_t round) const;
  // Calls `take` for each chunk of the upload: 0, 1, … up to the first one that is missing.
  // Errors: ABORTED: the machine ended before this chunk reached the disk, so that the upload is not whole and was not
  // acknowledged by --durability=sync. DATA_LOSS: a chunk that was on the disk is damaged.
  absl::Status ForEachChunk(uint64_t round, uint64_t upload,
                            const std::function<absl::Status(absl::string_view)>& take) const;
  // Returns: the leaves of withdrawn submissions.
  absl::StatusOr<std::vector<std::string>> ReadWithdrawn(uint64_t round) const;
  // Returns: the cuts of the stream `round`, by version.
  absl::StatusOr<std::map<uint64_t, CutRecord>> ReadCuts(uint64_t round) const;
  // Returns: the versions of a model, without gaps: the first one is the snapshot. Errors: DATA_LOSS: there is none, or
  // there is a gap.
  absl::StatusOr<std::map<uint64_t, ModelVersionRecord>> ReadModel(uint64_t model) const;
  // Returns: one chunk of an upload. Errors: NOT_FOUND. DATA_LOSS or ABORTED: as of ForEachChunk.
  absl::StatusOr<std::string> ReadChunk(uint64_t round, uint64_t upload, uint64_t sequence) const;
  // Removes the upload's chunks from `sequence` on.
  absl::Status DeleteChunksFrom(uint64_t round, uint64_t upload, uint64_t sequence);
  // Removes the chunks of all uploads of the round but those in `kept`, which is sorted.
  // Returns: the largest number of an upload that the round has, 0 if it has none.
  absl::StatusOr<uint64_t> DeleteOtherUploads(uint64_t round, absl::Span<const uint64_t> kept);

  // Makes durable what the reads above have found, as far as options.durability asks. Call it before anybody is told.
  absl::Status FinishRestore();

  // Calls `take` for each task, in ascending order of numbers. A task without a state is OPEN and was never leased.
  absl::Status ForEachTask(const std::function<absl::Status(uint64_t, TaskRecord, TaskStateRecord)>& take) const;

  // Writes a copy of the data directory, with all writes so far, to the folder `name` of the directory `parent`. A
  // start takes the copy for a data directory only when the disk has all of it. The space of
  // what is removed meanwhile is freed at the end.
  // `is_cancelled`: asked again and again; the copy ends with CANCELLED, and leaves nothing.
  // Returns: the bytes that the copy's files take. Errors: ALREADY_EXISTS: there is such a folder. RESOURCE_EXHAUSTED:
  // the file system of `parent` has no room for a copy. DATA_LOSS: what is to be copied is damaged. Of the file system.
  // Blocks: while all data is read and written. Calls run one at a time.
  absl::StatusOr<uint64_t> Backup(const std::string& parent, const std::string& name,
                                  const std::function<bool()>& is_cancelled);

  // Returns: a name of the data directory, which no other one has.
  std::string Identity() const;
  // Whether calls are answered after their writes have reached the disk.
  bool syncs() const { return syncs_; }
  // As MeasureSpace.
  DiskSpace MeasureDisk() const;
  // Writes refused because the disk was full, since the start.
  uint64_t num_refused_writes() const { return refused_writes_; }

  // The memory that the store may take, which is part of the process's memory limit.
  uint64_t memory_bytes() const;

 private:
  // Space of a round's file that is to be given back: a chunk's, or with size 0 the whole file.
  struct Freed {
    uint64_t round = 0;
    ChunkReference chunk;
  };

  absl::Status ReadSeen();
  Store(const StoreOptions& options, std::unique_ptr<DataDirectory> directory, std::unique_ptr<Database> database,
        std::unique_ptr<ChunkFiles> files, std::unique_ptr<SyncedFile> synced_file);
  // Runs `job`, which is RunSync or RunReclaim, in the background.
  void Post(WorkerPool* thread, void (Store::*job)());
  absl::StatusOr<Ticket> Write(rocksdb::WriteBatch& batch);
  // Returns: the error with paths inside of the data directory in the place of whole ones. Clients may see it.
  absl::Status WithoutRoot(const absl::Status& status) const;
  // Counts an error of a full disk. Returns: WithoutRoot.
  absl::Status Refused(const absl::Status& status);
  // Writes what is in `batch`, which removes the chunks in `freed`, and later gives their space back.
  absl::StatusOr<Ticket> WriteRemoval(rocksdb::WriteBatch& batch, std::vector<Freed> freed);
  std::vector<Freed> WholeFileOf(uint64_t round) const;
  // Writes the removal of a submission to `batch`, and appends its large chunks to `freed`.
  absl::Status RemoveSubmission(uint64_t round, const WithdrawnSubmission& submission, rocksdb::WriteBatch& batch,
                                std::vector<Freed>* freed) const;
  // Returns: the reference that a chunk's value is. From now on the range is the chunk's, though the file may lack it.
  absl::StatusOr<ChunkReference> ReserveLargeChunk(uint64_t round, absl::string_view value) const;
  // Writes the removal of chunks, those with keys from `begin` to `end`, to `batch`, and appends the large ones to
  // `freed`.
  absl::Status RemoveChunks(uint64_t round, const std::string& begin, const std::string& end,
                            rocksdb::WriteBatch& batch, std::vector<Freed>* freed) const;
  // Returns: the error for a chunk that its file does not have.
  absl::Status MissingChunkError(uint64_t round, uint64_t sequence, const ChunkReference& chunk) const;
  // Errors: RESOURCE_EXHAUSTED: the next one may succeed. Any other: none will.
  absl::Status SyncAll();
  // Makes all writes outlive the machine, in tables, so that no damage to the log can undo them.
  absl::Status EmptyLog();
  // Serves all calls that wait for a sync.
  void RunSync();
  // Frees the space of what is gone.
  void RunReclaim();
  // As Backup, with whole paths in errors.
  absl::StatusOr<uint64_t> WriteBackup(const std::string& parent, const std::string& name,
                                       const std::function<bool()>& is_cancelled);
  // Writes all but FORMAT of a copy of the data directory to `directory`.
  absl::Status CopyTo(const std::string& directory, const std::function<bool()>& is_cancelled);
  void PostReclaimLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::unique_ptr<DataDirectory> directory_;
  const std::unique_ptr<Database> database_;
  const std::unique_ptr<ChunkFiles> files_;
  const std::unique_ptr<SyncedFile> synced_file_;
  const bool syncs_;
  absl::Time last_seen_ = absl::InfiniteFuture();          // set by Open
  const std::function<void(std::function<void()>)> post_;  // null: jobs run on the threads
  bool is_restored_ = false;                               // set by FinishRestore
  std::atomic<uint64_t> refused_writes_ = 0;
  Mutex copy_mu_;                                                      // held by Backup, and while space is freed
  Mutex sync_mu_;                                                      // held by SyncAll
  std::map<uint64_t, uint64_t> unrecorded_ ABSL_GUARDED_BY(sync_mu_);  // by round: synced bytes that no record has
  std::atomic<Ticket> written_{0};                                     // the latest write that RocksDB has in its log
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  Ticket synced_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status failed_ ABSL_GUARDED_BY(mu_);           // no sync succeeds any more
  std::vector<OnDurable> waits_ ABSL_GUARDED_BY(mu_);  // if there are some, a sync is posted
  // Bytes of chunks written since the latest reclaim began: an upper bound of what a removal may have freed. After a
  // start, as if much had been written.
  std::atomic<uint64_t> unreclaimed_bytes_;
  bool is_reclaim_posted_ ABSL_GUARDED_BY(mu_) = false;
  bool wants_reclaim_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Freed> freed_ ABSL_GUARDED_BY(mu_);
  // The last members: their jobs use all others.
  WorkerPool sync_thread_{1};
  WorkerPool reclaim_thread_{1};
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_STORE_H_
