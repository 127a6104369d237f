// RocksDB, opened and configured for the store, with its errors as ours.
#ifndef SPARSEAGG_SERVICE_STORE_DATABASE_H_
#define SPARSEAGG_SERVICE_STORE_DATABASE_H_

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/base/mutex.h"
#include "service/store/database_check.h"
#include "service/store/synced_file.h"

namespace sparseagg::service {

// A key-value database. Owned by Store. Thread-safe.
class Database {
 public:
  // Checks that the database, if there is one, has all that was synced. `path`: the directory of
  // RocksDB's files. `synced`: what is known to be on the disk; nullopt: nothing is known, so that all may be missing.
  // Errors: DATA_LOSS. As CheckDatabase.
  static absl::StatusOr<DatabaseCheck> Check(const std::string& path, const std::optional<LogPosition>& synced);
  // Opens the database that was checked, or makes it. `memory_limit_bytes`: of the process; 0: none.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, const DatabaseCheck& check,
                                                        uint64_t memory_limit_bytes);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Hands the batch to the operating system, whole or not at all.
  absl::Status Write(rocksdb::WriteBatch& batch);
  // Makes all writes so far outlive the machine. Returns: how much that is. After an error, neither this nor Write
  // succeeds any more.
  absl::StatusOr<LogPosition> Sync();
  // Returns: what tables have, all of which is on the disk, when the database was opened.
  LogPosition opened_at() const { return {opened_at_, 0}; }
  // Writes to tables what the log has, so that the log is empty. Blocks: while tables are written. Returns: as Sync.
  absl::StatusOr<LogPosition> Flush();
  // Ends all writes with this error of a sync, as one of Sync does.
  void FailSyncs(const absl::Status& error);
  // Returns: the error of the sync that ended all writes; OK: none has.
  absl::Status failed_sync() const {
    MutexLock lock(&mu_);
    return failed_sync_;
  }
  // Frees the space of what was removed. Returns early when StopReclaim is called. Blocks: while RocksDB merges tables,
  // of which it moves only the keys, and the oldest blobs that are left.
  void Reclaim();
  void StopReclaim();
  // Copies the database to `path`, where nothing must be, with all writes so far: hard links to tables, which never
  // change, where they can be. Blocks: while tables are written, or copied. Errors: of RocksDB.
  absl::Status CopyTo(const std::string& path);
  // An iterator over [begin, end), to be used as RocksDB says.
  class Range;

  uint64_t memory_bytes() const { return memory_bytes_; }
  // Returns: the name that RocksDB gave to the database when it was made.
  std::string Identity() const;

 private:
  Database(std::string path, uint64_t memory_bytes, rocksdb::DB* db)
      : path_(std::move(path)), memory_bytes_(memory_bytes), db_(db) {}
  absl::Status TryResume();
  // Returns: how far writes have come.
  LogPosition Position();
  // Returns: the number of the log file that has the next write; 0: unknown.
  uint64_t CurrentLog() const;
  absl::Status ToStatus(const rocksdb::Status& status, absl::string_view what) const;

  const std::string path_;
  const uint64_t memory_bytes_;
  const std::unique_ptr<rocksdb::DB> db_;
  uint64_t opened_at_ = 0;  // sequence number
  mutable Mutex mu_;
  absl::Status failed_sync_ ABSL_GUARDED_BY(mu_);
  LogPosition seen_ ABSL_GUARDED_BY(mu_);         // the latest write, and the log that was to have the next one
  uint64_t log_number_ ABSL_GUARDED_BY(mu_) = 0;  // of the latest log that is known to have a write; 0: none is
  std::optional<std::chrono::steady_clock::time_point> resumed_at_ ABSL_GUARDED_BY(mu_);
};

// The keys of [begin, end) with their values, in ascending order.
//
//   Database::Range range(database, begin, end);
//   for (; range.Valid(); range.Next()) Use(range.key(), range.value());
//   RETURN_IF_ERROR(range.status());
//
// Not thread-safe. key() and value() are valid until the next change.
class Database::Range {
 public:
  Range(const Database& database, const std::string& begin, std::string end);

  bool Valid() const { return it_->Valid(); }
  void Next() { it_->Next(); }
  void Seek(const std::string& key) { it_->Seek(key); }
  absl::string_view key() const { return {it_->key().data(), it_->key().size()}; }
  absl::string_view value() const { return {it_->value().data(), it_->value().size()}; }
  absl::Status status() const { return database_.ToStatus(it_->status(), "cannot read"); }

 private:
  const Database& database_;
  const std::string end_;
  rocksdb::Slice end_slice_;
  std::unique_ptr<rocksdb::Iterator> it_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_DATABASE_H_
