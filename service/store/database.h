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

namespace sparseagg::service {

// A key-value database. Owned by Store. Thread-safe.
class Database {
 public:
  // `path`: the directory of RocksDB's files. `memory_limit_bytes`: of the process; 0: none.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, uint64_t memory_limit_bytes);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Hands the batch to the operating system, whole or not at all.
  absl::Status Write(rocksdb::WriteBatch& batch);
  // Makes all writes so far outlive the machine. After an error, neither this nor Write succeeds any more.
  absl::Status Sync();
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
  // An iterator over [begin, end), to be used as RocksDB says.
  class Range;

  uint64_t memory_bytes() const { return memory_bytes_; }

 private:
  Database(std::string path, uint64_t memory_bytes, rocksdb::DB* db)
      : path_(std::move(path)), memory_bytes_(memory_bytes), db_(db) {}
  absl::Status TryResume();
  absl::Status ToStatus(const rocksdb::Status& status, absl::string_view what) const;

  const std::string path_;
  const uint64_t memory_bytes_;
  const std::unique_ptr<rocksdb::DB> db_;
  mutable Mutex mu_;
  absl::Status failed_sync_ ABSL_GUARDED_BY(mu_);
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
