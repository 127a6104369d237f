// The limits that the server enforces.
#ifndef SPARSEAGG_SERVICE_BASE_LIMITS_H_
#define SPARSEAGG_SERVICE_BASE_LIMITS_H_

#include <cstdint>

#include "absl/time/time.h"

namespace sparseagg::service {

// gRPC's memory of one connection without calls, without and with TLS (measured with 1500 connections).
inline constexpr uint64_t kConnectionBytes = uint64_t{20} << 10;
inline constexpr uint64_t kTlsConnectionBytes = uint64_t{84} << 10;

// Every limit is a flag of the same name and a field of GetServerInfo. Counts and bytes: 0 means no limit.
struct Limits {
  uint64_t memory_limit_bytes = 0;  // of the process's resident memory; see DivideMemory
  uint64_t max_message_bytes = uint64_t{4} << 20;
  // Less than the 4 MiB that gRPC clients accept by default.
  uint64_t max_page_bytes = uint64_t{2} << 20;
  uint64_t max_open_rounds = 1000;
  uint64_t max_tensors = 1000;
  uint64_t max_row_width = 65536;
  uint64_t max_submissions = 1'000'000;
  uint64_t max_tuples_per_submission = uint64_t{1} << 28;
  uint64_t max_bytes_per_submission = uint64_t{1} << 31;
  absl::Duration max_result_ttl = absl::Hours(1);
  absl::Duration max_wait = absl::Minutes(1);
  absl::Duration upload_timeout = absl::Minutes(2);
  uint64_t max_uploads = 10'000;
  uint64_t max_connections = 10'000;
  uint64_t max_open_tasks = 1'000'000;
  uint64_t max_task_bytes = uint64_t{64} << 10;  // of a payload, and of a result
  absl::Duration max_lease = absl::Hours(1);
  uint64_t max_waiting_leases = 20'000;
  // Of each tenant; a server without credentials has one.
  uint64_t max_open_rounds_per_tenant = 0;
  uint64_t max_memory_per_tenant = 0;  // bytes: uploads, submissions and results of its rounds
  uint64_t max_uploads_per_tenant = 0;
  uint64_t max_transfers_per_tenant = 0;               // calls at once that carry chunks, pages or long answers
  uint64_t max_submissions_per_second_per_tenant = 0;  // uploads begun
  uint64_t connection_bytes = kConnectionBytes;        // no flag: FitToMemory lowers max_connections by it
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_LIMITS_H_
