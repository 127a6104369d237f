// Cuts a batch of submissions, which comes in columns, into one chunk per client, and submits the chunks.
#ifndef SPARSEAGG_SERVICE_ROUNDS_SUBMISSION_BATCH_H_
#define SPARSEAGG_SERVICE_ROUNDS_SUBMISSION_BATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "service/base/refusals.h"
#include "service/rounds/intake.h"
#include "service/rounds/upload.h"

namespace sparseagg::service {

// The tuples of one tensor from all submissions, one submission after the other. Borrowed.
struct BatchSlice {
  ChunkSlice slice;  // without keys and values
  absl::string_view keys;
  absl::string_view values;
};

// Cuts columns into chunks, one for each submission: a Split, then Next for each of client_ids(). Borrows the
// bytes that Split is given, and copies the slices. Not thread-safe.
class SubmissionBatch {
 public:
  // `client_ids`: joined by line feeds. `weights`: float64 of each; or empty. `num_keys`: uint32 of each, slice by
  // slice. Errors: INVALID_ARGUMENT: too many submissions, columns whose lengths do not agree, two slices of one
  // tensor, too many keys without bytes, or an encoding that batches do not take. Ids, keys and values are not checked
  // here.
  absl::Status Split(absl::string_view client_ids, absl::string_view weights, absl::string_view num_keys,
                     absl::Span<const BatchSlice> slices);

  const std::vector<absl::string_view>& client_ids() const { return client_ids_; }
  // Errors: INVALID_ARGUMENT: more submissions than one batch may have for so many tensors. Each submission costs time
  // and memory for each tensor of the round, also for those that it does not name.
  absl::Status CheckSize(const RoundConfig& config) const;

  // Returns: the only chunk of the next submission, until the next call.
  Chunk& Next();

 private:
  struct Tuples {
    BatchSlice rest;           // from the next submission on
    const char* num_keys;      // of the next submission
    uint64_t key_bytes = 0;    // of one key
    uint64_t value_bytes = 0;  // of the values of one key
  };

  absl::Status CheckLengths(Tuples& tuples);

  std::vector<absl::string_view> client_ids_;
  const char* weights_ = nullptr;  // null: none
  std::vector<Tuples> tuples_;
  uint64_t keys_without_bytes_ = 0;  // keys that are implicit and have no values, over all slices
  Chunk chunk_;
};

// What came of the submissions of a batch.
struct BatchOutcome {
  struct Refused {
    uint32_t index;  // of the submission
    std::string client_id;
    std::string reason;  // shortened to kMaxReasonBytes
    ErrorInfo info;
  };
  static constexpr size_t kMaxRefused = 20;
  static constexpr size_t kMaxReasonBytes = 256;

  std::string codes;  // of each submission one byte, its absl::StatusCode
  // Of the accepted submissions:
  uint64_t num_duplicates = 0;
  uint64_t num_tuples = 0;
  uint64_t num_bytes = 0;
  std::vector<Refused> refused;  // the first kMaxRefused
};

// Submits the chunk of `next` for each client, from client number outcome.codes.size() on. Returns at the end, or after
// a submission once `pause` is true; a further call goes on. The caller has checked the ids.
void SubmitBatch(Intake& intake, absl::Span<const std::string> client_ids, const std::string& submission_id,
                 absl::FunctionRef<const Chunk&()> next, absl::FunctionRef<bool()> pause, BatchOutcome& outcome);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_SUBMISSION_BATCH_H_
