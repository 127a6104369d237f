// RocksDB's logs, looked through for damage that RocksDB passes over.
#ifndef SPARSEAGG_SERVICE_STORE_LOG_SCAN_H_
#define SPARSEAGG_SERVICE_STORE_LOG_SCAN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace sparseagg::service {

// What a log has. A crash leaves a torn end: no whole record follows the damage. If one does, the disk has changed or
// lost bytes that it had.
struct LogScan {
  uint64_t num_bytes = 0;                  // of the file
  uint64_t num_valid_bytes = 0;            // of whole records from the begin, up to the first damage
  std::optional<uint64_t> valid_again_at;  // where a whole record begins behind the damage
};

// Reads a file of records in RocksDB's log format, which its write-ahead logs and manifests have:
// https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format. RocksDB itself takes a block that begins with
// zeros for the end of a log of an earlier run and goes on behind it, and drops all records behind a bad checksum.
// Errors: UNAVAILABLE: the file cannot be read.
// Cost: one pass; behind the first damage, a search at each byte.
absl::StatusOr<LogScan> ScanLog(const std::string& path);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_LOG_SCAN_H_
