#include "service/store/store.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "host/base/mutex.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/store/data_directory.h"
#include "service/store/database.h"
#include "service/store/keys.h"

namespace sparseagg::service {
namespace {

using keys::Kind;

// Bytes of a batch besides keys and values.
constexpr size_t kBatchOverhead = 64;

rocksdb::Slice ToSlice(absl::string_view bytes) { return {bytes.data(), bytes.size()}; }

void DeleteChunks(uint64_t round, uint64_t upload, rocksdb::WriteBatch& batch) {
  batch.DeleteRange(keys::Chunks(round, upload), keys::Chunks(round, upload + 1));
}

}  // namespace

Store::Store(std::unique_ptr<DataDirectory> directory, std::unique_ptr<Database> database, bool syncs)
    : directory_(std::move(directory)),
      database_(std::move(database)),
      syncs_(syncs),
      unreclaimed_bytes_(database_->memory_bytes() + 1),
      sync_thread_([this] { RunSyncs(); }),
      reclaim_thread_([this] { RunReclaims(); }) {}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<DataDirectory> directory, DataDirectory::Open(options.data_dir));
  ASSIGN_OR_RETURN(std::unique_ptr<Database> database,
                   Database::Open(directory->db_path(), options.memory_limit_bytes));
  return std::unique_ptr<Store>(
      new Store(std::move(directory), std::move(database), options.durability == Durability::kSync));
}

Store::~Store() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.Signal();
    reclaim_.Signal();
  }
  database_->StopReclaim();
  reclaim_thread_.join();
  sync_thread_.join();
}

uint64_t Store::memory_bytes() const { return database_->memory_bytes(); }

absl::StatusOr<Store::Ticket> Store::Write(rocksdb::WriteBatch& batch) {
  RETURN_IF_ERROR(database_->Write(batch));
  return ++written_;
}

void Store::WhenDurable(Ticket ticket, OnDurable done) {
  if (!syncs_) return done(absl::OkStatus());
  absl::Status status;
  {
    MutexLock lock(&mu_);
    if (ticket > synced_ && failed_.ok()) {
      waits_.push_back(std::move(done));
      changed_.Signal();
      return;
    }
    if (ticket > synced_) status = failed_;
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

void Store::RunSyncs() {
  while (true) {
    std::vector<OnDurable> served;
    {
      MutexLock lock(&mu_);
      while (waits_.empty() && !stopped_) changed_.Wait(&mu_);
      if (waits_.empty()) return;
      served.swap(waits_);
    }
    const Ticket written = written_;
    const absl::Status status = database_->Sync();
    {
      MutexLock lock(&mu_);
      if (status.ok()) synced_ = written;
      failed_ = status;
    }
    for (const OnDurable& done : served) done(status);
  }
}

void Store::RunReclaims() {
  while (true) {
    {
      MutexLock lock(&mu_);
      while (!wants_reclaim_ && !stopped_) reclaim_.Wait(&mu_);
      if (stopped_) return;
      wants_reclaim_ = false;
    }
    unreclaimed_bytes_ = 0;
    database_->Reclaim();
  }
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
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_delete");
  // What fits the buffers has reached no table, or will be dropped on its way there.
  if (unreclaimed_bytes_ > database_->memory_bytes()) {
    MutexLock lock(&mu_);
    wants_reclaim_ = true;
    reclaim_.Signal();
  }
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::PutState(uint64_t round, const StateRecord& record,
                                              absl::Span<const std::pair<std::string, uint64_t>> withdrawn) {
  rocksdb::WriteBatch batch;
  for (const auto& [client, upload] : withdrawn) {
    batch.Delete(keys::Submission(round, client));
    DeleteChunks(round, upload, batch);
  }
  if (record.name == StateRecord::Name::kCancelled) {
    batch.DeleteRange(keys::Make(round, Kind::kSubmission), keys::Make(round, Kind::kEnd));
  }
  batch.Put(keys::Make(round, Kind::kState), EncodeRecord(record));
  FailPoint("before_state");
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_state");
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::PutChunk(uint64_t round, uint64_t upload, uint64_t sequence,
                                              absl::Span<const absl::string_view> bytes, const UploadRecord* opened) {
  const std::string key = keys::Chunk(round, upload, sequence);
  const rocksdb::Slice key_slice(key);
  size_t size = 0;
  std::vector<rocksdb::Slice> value;
  value.reserve(bytes.size());
  for (const absl::string_view span : bytes) {
    value.push_back(ToSlice(span));
    size += span.size();
  }
  rocksdb::WriteBatch batch(size + key.size() + kBatchOverhead);
  batch.Put(rocksdb::SliceParts(&key_slice, 1), rocksdb::SliceParts(value.data(), static_cast<int>(value.size())));
  if (opened != nullptr) batch.Put(keys::Upload(round, upload), EncodeRecord(*opened));
  FailPoint("before_chunk");
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_chunk");
  unreclaimed_bytes_ += size;
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::DeleteUpload(uint64_t round, uint64_t upload) {
  rocksdb::WriteBatch batch;
  batch.Delete(keys::Upload(round, upload));
  DeleteChunks(round, upload, batch);
  FailPoint("before_delete_upload");
  return Write(batch);
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

absl::StatusOr<Store::Ticket> Store::DeleteSubmission(uint64_t round, absl::string_view client_id, uint64_t upload) {
  rocksdb::WriteBatch batch;
  batch.Delete(keys::Submission(round, client_id));
  DeleteChunks(round, upload, batch);
  FailPoint("before_withdrawal");
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_withdrawal");
  return ticket;
}

}  // namespace sparseagg::service
