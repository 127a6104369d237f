// The check of a database before it is opened.
#ifndef SPARSEAGG_SERVICE_STORE_DATABASE_CHECK_H_
#define SPARSEAGG_SERVICE_STORE_DATABASE_CHECK_H_

#include <rocksdb/options.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "service/store/log_position.h"

namespace sparseagg::service {

struct DatabaseCheck {
  uint64_t num_writes = 0;  // that the database has, removed ones included
  // Logs that begin behind the torn end of another one. RocksDB may apply their writes without those before.
  std::vector<std::string> orphaned_logs;
};

// Checks that a database has all that was synced. A database that is refused is left as it was: RocksDB, once it has
// opened one, has removed the logs, with what it could not read of them. A torn end of a log, behind what was synced,
// is what a crash leaves, and is no error; the server's log tells of it.
//
// `options`: with which the database will be opened. `path`: of the directory that has the database.
// `synced`: nullopt: the first start has not ended, or an earlier version of the server has written the database.
// Errors: DATA_LOSS, which names the file. UNAVAILABLE: a file cannot be read. Otherwise of RocksDB.
// Cost: two passes over the logs, which are empty after a stop in order.
absl::StatusOr<DatabaseCheck> CheckDatabase(rocksdb::Options options, const std::string& path,
                                            const std::optional<LogPosition>& synced);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_DATABASE_CHECK_H_
