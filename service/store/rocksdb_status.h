// RocksDB's errors as ours.
#ifndef SPARSEAGG_SERVICE_STORE_ROCKSDB_STATUS_H_
#define SPARSEAGG_SERVICE_STORE_ROCKSDB_STATUS_H_

#include <rocksdb/status.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_ROCKSDB_STATUS_H_
