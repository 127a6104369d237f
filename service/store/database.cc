#include "service/store/database.h"

#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/transaction_log.h>
#include <rocksdb/utilities/checkpoint.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/base/log.h"
#include "service/store/database_check.h"

namespace sparseagg::service {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int kMaxWriteBuffers = 4;
constexpr uint64_t kBlockCacheBytes = 4 * kMiB;
constexpr std::chrono::seconds kResumeInterval(1);

// The size of one buffer of writes that are in the log and not in a table yet. A 64th of the memory limit: with four of
// them, a sixteenth is the store's.
uint64_t WriteBufferBytes(uint64_t memory_limit_bytes) {
  return memory_limit_bytes == 0 ? 32 * kMiB : std::clamp(memory_limit_bytes / 64, 4 * kMiB, 32 * kMiB);
}

// RocksDB's messages, as events of the server's log.
// Workaround: RocksDB 7.8 ends the process by an assertion, which Debian's build has, at its second message after a
// full disk has taken none for its own log file. Remove with: a version, or a build, without it.
class InfoLog final : public rocksdb::Logger {
 public:
  InfoLog() : Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}
  using Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    // At most one a second: a full disk gives one for each write.
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::seconds(1);
    if (logged_.exchange(now) == now) return;
    std::array<char, 1024> text{};
    std::vsnprintf(text.data(), text.size(), format, arguments);
    Log(LogLevel::kWarning, "rocksdb", {{"message", text.data()}});
  }

 private:
  std::atomic<int64_t> logged_ = 0;  // second of the steady clock
};

rocksdb::Options MakeOptions(uint64_t write_buffer_bytes) {
  rocksdb::Options options;
  options.create_if_missing = true;
  // A torn end of the log is what a crash leaves: everything before it is kept. Check has found the synced writes
  // there.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.track_and_verify_wals_in_manifest = true;  // a log that is missing is an error, not an empty log
  // Chunks are packed numbers, which do not compress, and are dropped as one range with their round. So they go to blob
  // files, and compactions move only keys.
  options.compression = rocksdb::kNoCompression;
  options.enable_blob_files = true;
  options.min_blob_size = 1024;
  options.blob_file_size = 64 * kMiB;
  options.enable_blob_garbage_collection = true;
  options.write_buffer_size = write_buffer_bytes;
  options.max_write_buffer_number = kMaxWriteBuffers;
  // Off, as by default: a pipelined write that fails takes a sequence number, and the next Check would miss a write.
  options.enable_pipelined_write = false;
  // The kernel writes while chunks come, so that the sync of a commit has little left to do.
  options.wal_bytes_per_sync = kMiB;
  options.bytes_per_sync = kMiB;
  options.max_open_files = 64;
  options.max_background_jobs = 2;
  options.avoid_flush_during_shutdown = true;  // Flush comes before, and else the log has everything
  // Write resumes after other errors than a full disk, for which RocksDB looks itself, every five seconds.
  options.max_bgerror_resume_count = 0;
  options.info_log = std::make_shared<InfoLog>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace

absl::Status Database::ToStatus(const rocksdb::Status& status, absl::string_view what) const {
  return ToAbslStatus(status, absl::StrCat(what, " the data directory's ", path_));
}

absl::StatusOr<DatabaseCheck> Database::Check(const std::string& path, const std::optional<LogPosition>& synced) {
  std::error_code ignored;
  if (std::filesystem::exists(path + "/CURRENT", ignored)) {
    return CheckDatabase(MakeOptions(WriteBufferBytes(0)), path, synced);
  }
  if (!synced.has_value()) return DatabaseCheck();
  return absl::DataLossError(absl::StrCat("the data directory's ", path, " has no CURRENT: a part of it is missing"));
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path, const DatabaseCheck& check,
                                                         uint64_t memory_limit_bytes) {
  const uint64_t write_buffer_bytes = WriteBufferBytes(memory_limit_bytes);
  std::error_code ignored;
  std::filesystem::create_directory(path, ignored);  // RocksDB complains about a missing one, and then makes it
  for (const std::string& log : check.orphaned_logs) {
    Log(LogLevel::kWarning, "log_dropped", {{"file", log}, {"reason", "the end of the log before it is torn"}});
    std::filesystem::remove(log, ignored);
  }
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened = rocksdb::DB::Open(MakeOptions(write_buffer_bytes), path, &db);
  auto database =
      std::unique_ptr<Database>(new Database(path, kMaxWriteBuffers * write_buffer_bytes + kBlockCacheBytes, db));
  RETURN_IF_ERROR(database->ToStatus(opened, "cannot open"));
  database->opened_at_ = db->GetLatestSequenceNumber();
  MutexLock lock(&database->mu_);
  database->seen_ = {database->opened_at_, database->CurrentLog()};
  return database;
}

Database::~Database() {
  if (db_ == nullptr) return;
  const rocksdb::Status closed = db_->Close();
  if (!closed.ok()) Log(LogLevel::kWarning, "store_close_failed", {{"reason", closed.ToString()}});
}

std::string Database::Identity() const {
  std::string identity;
  db_->GetDbIdentity(identity).PermitUncheckedError();  // read when the database was opened
  return identity;
}

absl::Status Database::Write(rocksdb::WriteBatch& batch) {
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(failed_sync_);
  }
  const rocksdb::WriteOptions options;  // without sync
  rocksdb::Status written = db_->Write(options, &batch);
  // A failed write stops RocksDB until it is told that the disk may be well again.
  if (!written.ok() && TryResume().ok()) written = db_->Write(options, &batch);
  return ToStatus(written, "cannot write to");
}

absl::Status Database::TryResume() {
  MutexLock lock(&mu_);
  const auto now = std::chrono::steady_clock::now();
  if (resumed_at_.has_value() && now - *resumed_at_ < kResumeInterval) return absl::UnavailableError("tried just now");
  resumed_at_ = now;
  const rocksdb::Status resumed = db_->Resume();
  Log(LogLevel::kWarning, "store_resume", {{"result", resumed.ToString()}});
  return ToStatus(resumed, "cannot resume");
}

uint64_t Database::CurrentLog() const {
  std::unique_ptr<rocksdb::LogFile> log;
  return db_->GetCurrentWalFile(&log).ok() ? log->LogNumber() : 0;
}

LogPosition Database::Position() {
  MutexLock lock(&mu_);
  const uint64_t log = CurrentLog();
  const LogPosition seen{db_->GetLatestSequenceNumber(), log};
  if (CurrentLog() == log) {
    // Between the two looks no other log had writes. A file with bytes may have nothing but a write that failed.
    if (log == seen_.log_number && seen.sequence > seen_.sequence) log_number_ = log;
    seen_ = seen;
  }
  return {seen.sequence, log_number_};
}

absl::StatusOr<LogPosition> Database::Sync() {
  RETURN_IF_ERROR(failed_sync());
  FailPoint("sync_begins");
  const LogPosition position = Position();  // what is written from now on may be synced, too, or not
  const absl::Status synced = ToStatus(db_->SyncWAL(), "cannot sync");
  FailPoint("sync_ended");
  if (!synced.ok()) FailSyncs(synced);
  RETURN_IF_ERROR(synced);
  return position;
}

absl::StatusOr<LogPosition> Database::Flush() {
  RETURN_IF_ERROR(failed_sync());
  const uint64_t sequence = db_->GetLatestSequenceNumber();
  rocksdb::FlushOptions options;
  options.allow_write_stall = true;  // else the call may wait for others to end
  RETURN_IF_ERROR(ToStatus(db_->Flush(options), "cannot write tables of"));
  return LogPosition{sequence, 0};
}

void Database::FailSyncs(const absl::Status& error) {
  Log(LogLevel::kError, "store_sync_failed", {{"reason", error.message()}});
  MutexLock lock(&mu_);
  // The kernel drops the pages that it could not write, so that a second sync would succeed and say nothing.
  failed_sync_ = absl::Status(error.code(), absl::StrCat(error.message(), "; nothing is written until a restart"));
}

void Database::Reclaim() {
  rocksdb::CompactRangeOptions options;
  options.exclusive_manual_compaction = false;
  const rocksdb::Status compacted = db_->CompactRange(options, nullptr, nullptr);
  if (!compacted.ok() && !compacted.IsIncomplete()) {
    Log(LogLevel::kWarning, "store_not_reclaimed", {{"reason", compacted.ToString()}});
  }
}

void Database::StopReclaim() { db_->DisableManualCompaction(); }

absl::Status Database::CopyTo(const std::string& path) {
  rocksdb::Checkpoint* made = nullptr;
  rocksdb::Status copied = rocksdb::Checkpoint::Create(db_.get(), &made);
  const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
  if (copied.ok()) copied = checkpoint->CreateCheckpoint(path);
  return ToStatus(copied, "cannot copy");
}

Database::Range::Range(const Database& database, const std::string& begin, std::string end)
    : database_(database), end_(std::move(end)), end_slice_(end_) {
  rocksdb::ReadOptions options;
  options.iterate_upper_bound = &end_slice_;
  options.fill_cache = false;
  it_.reset(database.db_->NewIterator(options));
  it_->Seek(begin);
}

}  // namespace sparseagg::service
