// The check of a database before it is opened.
#ifndef SPARSEAGG_SERVICE_STORE_DATABASE_CHECK_H_
#define SPARSEAGG_SERVICE_STORE_DATABASE_CHECK_H_

#include <rocksdb/options.h>
#include <rocksdb/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "service/store/synced_file.h"

namespace sparseagg::service {

// Returns: `status` with `what` before its text. DATA_LOSS: files are damaged, or missing.
inline absl::Status ToAbslStatus(const rocksdb::Status& status, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  if (status.IsNoSpace() || status.IsMemoryLimit()) code = absl::StatusCode::kResourceExhausted;
  if (status.IsCorruption() || status.IsPathNotFound()) code = absl::StatusCode::kDataLoss;
  if (status.IsInvalidArgument() || status.IsNotSupported()) code = absl::StatusCode::kInternal;
  return absl::Status(code, absl::StrCat(what, ": ", status.ToString()));
}

// What ScanLog finds in a log. A crash leaves a torn end, where no whole record follows the damage. If one does follow,
// the disk has changed or lost bytes that had been written.
struct LogScan {
  uint64_t num_bytes = 0;                  // of the file
  uint64_t num_valid_bytes = 0;            // of whole records, from the beginning up to the first damage
  std::optional<uint64_t> valid_again_at;  // where a whole record begins behind the damage
};

// Reads a file of records in RocksDB's log format, which its write-ahead logs and manifests have:
// https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format. RocksDB itself overlooks damage: it takes
// a block that begins with zeros for the end of an earlier run's log, and reads on after it; and it drops all records
// after a bad checksum.
// Errors: UNAVAILABLE: the file cannot be read.
// Cost: one pass; behind the first damage, a search at each byte.
absl::StatusOr<LogScan> ScanLog(const std::string& path);

struct DatabaseCheck {
  uint64_t num_writes = 0;  // the sequence number of the last one; writes of keys that are deleted by now count
  // Logs that begin behind the torn end of another one. RocksDB may apply their writes without those before.
  std::vector<std::string> orphaned_logs;
};

// Checks that a database has all writes that were synced. Call it before RocksDB opens the database for writing, which
// removes the logs, also what it could not read of them; a database that is refused here is left as it was. A log that
// is torn after what was synced is what a crash leaves: no error, but a warning in the server's log.
//
// `options`: with which the database will be opened. `path`: of the directory that has the database.
// `synced`: nullopt: the first start has not ended, or an earlier version of the server has written the database.
// Errors: DATA_LOSS, which names the file. UNAVAILABLE: a file cannot be read. Otherwise of RocksDB.
// Cost: two passes over the logs, which are empty after a stop in order.
absl::StatusOr<DatabaseCheck> CheckDatabase(rocksdb::Options options, const std::string& path,
                                            const std::optional<LogPosition>& synced);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_DATABASE_CHECK_H_
