// How much of RocksDB's log is on the disk.
#ifndef SPARSEAGG_SERVICE_STORE_LOG_POSITION_H_
#define SPARSEAGG_SERVICE_STORE_LOG_POSITION_H_

#include <cstdint>

namespace sparseagg::service {

// What has outlived the end of the machine, at least. RocksDB numbers writes, and its log files.
struct LogPosition {
  uint64_t sequence = 0;    // of the latest write
  uint64_t log_number = 0;  // of the latest log file with such a write; 0: tables have them all

  friend bool operator==(const LogPosition& a, const LogPosition& b) {
    return a.sequence == b.sequence && a.log_number == b.log_number;
  }
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_LOG_POSITION_H_
