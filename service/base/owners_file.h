// A file whose locks say who still needs this server.
#ifndef SPARSEAGG_SERVICE_BASE_OWNERS_FILE_H_
#define SPARSEAGG_SERVICE_BASE_OWNERS_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace sparseagg::service {

// Sends `signal` to this process as soon as no other process holds a lock on the file `path`. Each owner holds a shared
// POSIX record lock (fcntl) on it. The system removes such a lock with its process, also after SIGKILL, and a forked
// child does not inherit it. So the server ends with its last owner, and nobody polls.
// The wait takes an exclusive lock, which the process keeps until it ends: a new owner that waits for its lock knows
// then that the old server is gone.
// Requires: called once; `signal` is blocked in all threads.
// Errors: the code for errno of opening the file for reading and writing.
// Never blocks: a thread of its own waits, for as long as the process lives.
absl::Status SignalWithoutOwners(const std::string& path, int signal);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_OWNERS_FILE_H_
