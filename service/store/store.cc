#include "service/store/store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/base/log.h"
#include "service/store/chunk_files.h"
#include "service/store/database.h"
#include "service/store/keys.h"
#include "service/store/synced_file.h"

namespace sparseagg::service {
namespace {

using keys::Kind;

// Chunks of this size and more go to files. A smaller one costs less in the log, where one sync covers many.
constexpr size_t kMinFileChunkBytes = 64 * 1024;

// Bytes of a batch besides keys and values.
constexpr size_t kBatchOverhead = 64;

rocksdb::Slice ToSlice(absl::string_view bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace

Store::Store(const StoreOptions& options, std::unique_ptr<DataDirectory> directory, std::unique_ptr<Database> database,
             std::unique_ptr<ChunkFiles> files, std::unique_ptr<SyncedFile> synced_file)
    : directory_(std::move(directory)),
      database_(std::move(database)),
      files_(std::move(files)),
      synced_file_(std::move(synced_file)),
      syncs_(options.durability == Durability::kSync),
      post_(options.post),
      unreclaimed_bytes_(database_->memory_bytes() + 1) {}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<DataDirectory> directory, DataDirectory::Open(options.data_dir));
  ASSIGN_OR_RETURN(const std::optional<LogPosition> synced, SyncedFile::Read(directory->synced_path()));
  ASSIGN_OR_RETURN(const DatabaseCheck check, Database::Check(directory->db_path(), synced));
  const bool syncs = options.durability == Durability::kSync;
  ASSIGN_OR_RETURN(std::unique_ptr<ChunkFiles> files, ChunkFiles::Open(directory->chunks_path(), syncs));
  // A database that has no write yet comes before the first chunk.
  const bool lacks_database = check.num_writes == 0 && !files->Rounds().empty();
  const bool lacks_synced = check.num_writes > 0;
  if (!synced.has_value() && (lacks_database || lacks_synced)) {
    return absl::DataLossError(absl::StrCat("the data directory ", directory->path(), " has data but no '",
                                            lacks_database ? "db" : "SYNCED",
                                            "', expected both: it was not copied whole"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Database> database,
                   Database::Open(directory->db_path(), check, options.memory_limit_bytes));
  ASSIGN_OR_RETURN(std::unique_ptr<SyncedFile> synced_file, SyncedFile::Open(directory->synced_path()));
  synced_file->Write(database->opened_at());
  auto store = std::unique_ptr<Store>(
      new Store(options, std::move(directory), std::move(database), std::move(files), std::move(synced_file)));
  RETURN_IF_ERROR(store->ReadSeen());
  return store;
}

Store::~Store() {
  Stop();
  // Else the files of chunks may lack some that have a reference, and a sync would say that it has them all.
  if (!is_restored_) return;
  if (const absl::Status status = EmptyLog(); !status.ok()) {
    Log(LogLevel::kWarning, "log_not_emptied", {{"reason", status.message()}});
  }
}

void Store::Stop() {
  {
    MutexLock lock(&mu_);
    if (std::exchange(stopped_, true)) return;
  }
  database_->StopReclaim();
  reclaim_thread_.Stop();
  sync_thread_.Stop();
}

void Store::Post(WorkerPool* thread, void (Store::*job)()) {
  std::function<void()> run = [this, job] { (this->*job)(); };
  post_ == nullptr ? thread->Post(std::move(run)) : post_(std::move(run));
}

std::vector<Store::Freed> Store::WholeFileOf(uint64_t round) const {
  if (!files_->Has(round)) return {};
  return {{round, {}}};
}

DiskSpace Store::MeasureDisk() const { return MeasureSpace(directory_->path()); }

std::string Store::Identity() const { return database_->Identity(); }

uint64_t Store::memory_bytes() const { return database_->memory_bytes(); }

absl::StatusOr<Store::Ticket> Store::Write(rocksdb::WriteBatch& batch) {
  RETURN_IF_ERROR(Refused(database_->Write(batch)));
  return ++written_;
}

absl::Status Store::WithoutRoot(const absl::Status& status) const { return WithoutPath(status, directory_->path()); }

absl::Status Store::Refused(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) ++refused_writes_;
  return WithoutRoot(status);
}

absl::StatusOr<Store::Ticket> Store::WriteRemoval(rocksdb::WriteBatch& batch, std::vector<Freed> freed) {
  absl::StatusOr<Ticket> ticket = Write(batch);
  if (!ticket.ok() || freed.empty()) return ticket;
  MutexLock lock(&mu_);
  freed_.insert(freed_.end(), freed.begin(), freed.end());
  PostReclaimLocked();
  return ticket;
}

void Store::WhenDurable(Ticket ticket, OnDurable done) {
  if (!syncs_) return done(absl::OkStatus());
  absl::Status status;
  {
    MutexLock lock(&mu_);
    if (ticket > synced_ && failed_.ok() && !stopped_) {
      waits_.push_back(std::move(done));
      if (waits_.size() == 1) Post(&sync_thread_, &Store::RunSync);
      return;
    }
    if (ticket > synced_) status = failed_.ok() ? absl::UnavailableError("the store is stopped") : failed_;
  }
  done(status);
}

absl::Status Store::AwaitDurable(Ticket ticket) {
  absl::Notification ended;
  absl::Status result;
  WhenDurable(ticket, [&](const absl::Status& status) {
    result = status;
    ended.Notify();
  });
  ended.WaitForNotification();
  return result;
}

void Store::RunSync() {
  std::vector<OnDurable> served;
  {
    MutexLock lock(&mu_);
    served.swap(waits_);
  }
  const Ticket written = written_;
  const absl::Status status = WithoutRoot(SyncAll());
  {
    MutexLock lock(&mu_);
    if (status.ok()) synced_ = written;
    failed_ = WithoutRoot(database_->failed_sync());
  }
  for (OnDurable& done : served) std::exchange(done, nullptr)(status);  // one by one: each owns a call
}

absl::Status Store::SyncAll() {
  MutexLock lock(&sync_mu_);
  // Sync chunk files before the records that reference them: a record is never ahead of the disk. A call that is
  // answered after the second sync has both.
  const absl::StatusOr<std::vector<ChunkFiles::Extent>> synced = files_->Sync();
  if (!synced.ok()) {
    database_->FailSyncs(synced.status());
    return synced.status();
  }
  for (const ChunkFiles::Extent& extent : *synced) unrecorded_[extent.round] = extent.bytes;
  if (!unrecorded_.empty()) {
    rocksdb::WriteBatch batch;
    for (const auto& [round, bytes] : unrecorded_) {
      batch.Put(keys::Make(round, Kind::kSynced), EncodeRecord(SyncedRecord{bytes}));
    }
    RETURN_IF_ERROR(Write(batch).status());
    unrecorded_.clear();
  }
  ASSIGN_OR_RETURN(const LogPosition position, database_->Sync());
  synced_file_->Write(position);
  return absl::OkStatus();
}

absl::Status Store::EmptyLog() {
  RETURN_IF_ERROR(SyncAll());
  ASSIGN_OR_RETURN(const LogPosition position, database_->Flush());
  synced_file_->Write(position);
  return absl::OkStatus();
}

absl::Status Store::FinishRestore() {
  is_restored_ = true;
  return syncs_ ? SyncAll() : absl::OkStatus();
}

void Store::PostReclaimLocked() {
  if (!std::exchange(is_reclaim_posted_, true)) Post(&reclaim_thread_, &Store::RunReclaim);
}

void Store::RunReclaim() {
  std::vector<Freed> freed;
  bool wants_reclaim = false;
  {
    MutexLock lock(&mu_);
    is_reclaim_posted_ = false;
    if (stopped_) return;
    std::swap(wants_reclaim, wants_reclaim_);
    freed.swap(freed_);
  }
  // The removal first: a power failure must not bring back a reference without its chunk. The next start removes the
  // files of rounds that are gone.
  MutexLock copy_lock(&copy_mu_);
  if (!freed.empty() && !database_->Sync().ok()) freed.clear();
  for (const Freed& each : freed) {
    if (each.chunk.size == 0) {
      files_->Delete(each.round);
    } else {
      files_->Free(each.round, each.chunk);
    }
  }
  if (!wants_reclaim) return;
  unreclaimed_bytes_ = 0;
  database_->Reclaim();
}

absl::StatusOr<Store::Ticket> Store::PutRound(uint64_t round, const RoundRecord& record) {
  rocksdb::WriteBatch batch;
  batch.Put(keys::Make(round, Kind::kRound), EncodeRecord(record));
  FailPoint("before_round");
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_round");
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::DeleteRound(uint64_t round) {
  rocksdb::WriteBatch batch;
  batch.DeleteRange(keys::Make(round, Kind::kRound), keys::Make(round, Kind::kEnd));
  FailPoint("before_delete");
  absl::StatusOr<Ticket> ticket = WriteRemoval(batch, WholeFileOf(round));
  FailPoint("after_delete");
  // What fits the buffers has reached no table, or will be dropped on its way there.
  if (unreclaimed_bytes_ > database_->memory_bytes()) {
    MutexLock lock(&mu_);
    wants_reclaim_ = true;
    PostReclaimLocked();
  }
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::PutState(uint64_t round, const StateRecord& record,
                                              absl::Span<const WithdrawnSubmission> withdrawn,
                                              absl::Span<const std::pair<std::string, SubmissionRecord>> kept) {
  rocksdb::WriteBatch batch;
  std::vector<Freed> freed;
  for (const WithdrawnSubmission& each : withdrawn) RETURN_IF_ERROR(RemoveSubmission(round, each, batch, &freed));
  for (const auto& [client, submission] : kept) batch.Put(keys::Submission(round, client), EncodeRecord(submission));
  if (record.name == StateRecord::Name::kCancelled) {
    batch.DeleteRange(keys::Make(round, Kind::kSubmission), keys::Make(round, Kind::kEnd));
    freed = WholeFileOf(round);
  }
  batch.Put(keys::Make(round, Kind::kState), EncodeRecord(record));
  FailPoint("before_state");
  absl::StatusOr<Ticket> ticket = WriteRemoval(batch, std::move(freed));
  FailPoint("after_state");
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::PutChunk(uint64_t round, uint64_t upload, uint64_t sequence,
                                              absl::Span<const absl::string_view> bytes, const UploadRecord* opened) {
  const std::string key = keys::Chunk(round, upload, sequence);
  const rocksdb::Slice key_slice(key);
  size_t size = 0;
  for (const absl::string_view span : bytes) size += span.size();
  const bool is_large = size >= kMinFileChunkBytes;
  rocksdb::WriteBatch batch((is_large ? 0 : size) + key.size() + kBatchOverhead);
  FailPoint("before_chunk");
  ChunkReference reference;
  if (is_large) {
    absl::StatusOr<ChunkReference> appended = files_->Append(round, bytes);
    RETURN_IF_ERROR(Refused(appended.status()));
    reference = *appended;
    batch.Put(key, keys::kReferenceMark + EncodeRecord(reference));
  } else {
    std::vector<rocksdb::Slice> value;
    value.reserve(bytes.size());
    for (const absl::string_view span : bytes) value.push_back(ToSlice(span));
    batch.Put(rocksdb::SliceParts(&key_slice, 1), rocksdb::SliceParts(value.data(), static_cast<int>(value.size())));
    unreclaimed_bytes_ += size;
  }
  if (opened != nullptr) batch.Put(keys::Upload(round, upload), EncodeRecord(*opened));
  absl::StatusOr<Ticket> ticket = Write(batch);
  if (!ticket.ok() && is_large) files_->Free(round, reference);
  FailPoint("after_chunk");
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::DeleteUpload(uint64_t round, uint64_t upload) {
  rocksdb::WriteBatch batch;
  std::vector<Freed> freed;
  batch.Delete(keys::Upload(round, upload));
  RETURN_IF_ERROR(RemoveChunks(round, keys::Chunks(round, upload), keys::Chunks(round, upload + 1), batch, &freed));
  FailPoint("before_delete_upload");
  return WriteRemoval(batch, std::move(freed));
}

absl::StatusOr<Store::Ticket> Store::PutSubmission(uint64_t round, absl::string_view client_id,
                                                   const SubmissionRecord& record) {
  rocksdb::WriteBatch batch;
  batch.Put(keys::Submission(round, client_id), EncodeRecord(record));
  batch.Delete(keys::Upload(round, record.upload));
  FailPoint("before_submission");
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_submission");
  return ticket;
}

absl::Status Store::RemoveSubmission(uint64_t round, const WithdrawnSubmission& submission, rocksdb::WriteBatch& batch,
                                     std::vector<Freed>* freed) const {
  const uint64_t upload = submission.upload;
  batch.Delete(keys::Submission(round, submission.client_id));
  RETURN_IF_ERROR(RemoveChunks(round, keys::Chunks(round, upload), keys::Chunks(round, upload + 1), batch, freed));
  if (!submission.leaf.empty()) batch.Put(keys::Withdrawn(round, submission.upload), submission.leaf);
  return absl::OkStatus();
}

absl::StatusOr<Store::Ticket> Store::DeleteSubmission(uint64_t round, absl::string_view client_id, uint64_t upload) {
  return WithdrawSubmission(round, {std::string(client_id), upload, ""});
}

absl::StatusOr<Store::Ticket> Store::WithdrawSubmission(uint64_t round, const WithdrawnSubmission& withdrawn) {
  rocksdb::WriteBatch batch;
  std::vector<Freed> freed;
  RETURN_IF_ERROR(RemoveSubmission(round, withdrawn, batch, &freed));
  FailPoint("before_withdrawal");
  absl::StatusOr<Ticket> ticket = WriteRemoval(batch, std::move(freed));
  FailPoint("after_withdrawal");
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::PutCut(uint64_t round, uint64_t version, const CutRecord& record,
                                            uint64_t oldest) {
  rocksdb::WriteBatch batch;
  batch.DeleteRange(keys::Cut(round, 0), keys::Cut(round, oldest));
  batch.Put(keys::Cut(round, version), EncodeRecord(record));
  FailPoint("before_cut");
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_cut");
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::PutModelVersion(uint64_t model, uint64_t version,
                                                     const ModelVersionRecord& record) {
  rocksdb::WriteBatch batch;
  batch.Put(keys::ModelVersion(model, version), EncodeRecord(record));
  FailPoint("before_model_version");
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_model_version");
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::PutModelSnapshot(uint64_t model, uint64_t version,
                                                      const ModelVersionRecord& record) {
  // A power failure must not leave the record without its chunks: what it replaces is gone.
  RETURN_IF_ERROR(WithoutRoot(SyncAll()));
  rocksdb::WriteBatch batch;
  std::vector<Freed> freed;
  RETURN_IF_ERROR(RemoveChunks(model, keys::Chunks(model, 0), keys::Chunks(model, record.upload), batch, &freed));
  batch.DeleteRange(keys::ModelVersion(model, 0), keys::Make(model, Kind::kEnd));
  batch.Put(keys::ModelVersion(model, version), EncodeRecord(record));
  FailPoint("before_model_snapshot");
  absl::StatusOr<Ticket> ticket = WriteRemoval(batch, std::move(freed));
  FailPoint("after_model_snapshot");
  return ticket;
}

}  // namespace sparseagg::service
