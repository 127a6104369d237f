// What the intake of a stream hands on.
#ifndef SPARSEAGG_SERVICE_ROUNDS_STREAM_COMMITS_H_
#define SPARSEAGG_SERVICE_ROUNDS_STREAM_COMMITS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/base/content_hash.h"
#include "service/rounds/receipt.h"
#include "service/rounds/submission_table.h"
#include "service/rounds/upload.h"
#include "service/rounds/upload_table.h"

namespace sparseagg::service {

// A complete upload to a stream. Borrowed.
struct StreamUpload {
  const std::string& client_id;
  const std::string& submission_id;
  const std::string& tag;
  Upload& content;  // the commit takes it
  ContentHash hash;
  // Calls its argument for each chunk as received, for the store. Null: nothing is stored.
  using TakeChunk = std::function<absl::Status(absl::Span<const absl::string_view>)>;
  std::function<absl::Status(const TakeChunk&)> chunks;
};

// Takes the commits of a stream. It is an interface so that rounds need not know streams. Thread-safe. Lock order: the
// intake's mutexes before those of the stream, and those before the version's.
class StreamCommits {
 public:
  virtual ~StreamCommits() = default;

  // Counts the upload in the version that is being filled. Errors: as of Round::Commit. FAILED_PRECONDITION,
  // INVALID_ARGUMENT: its base version is too old, or in the future. Blocks: while the last commits of a full version
  // end.
  virtual absl::StatusOr<Receipt> Commit(const StreamUpload& upload) = 0;
  // Returns: the commit of this client and submission id, if its version is kept. Its receipt is no duplicate.
  virtual std::optional<CommittedSubmission> Find(UploadName name) const = 0;
  // Returns: the latest version that is DONE; 0: there is none, or it has expired.
  virtual uint64_t LatestDone() const = 0;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_STREAM_COMMITS_H_
