// The part of the store that holds one round.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_JOURNAL_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_JOURNAL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "service/store/journal.h"

namespace sparseagg::service {

// The journal of a round. Also does nothing, and succeeds, before Start and after Delete, so that rounds need not ask.
//
// Owned by the round and its uploads together. Thread-safe.
class RoundJournal : public Journal {
 public:
  using Journal::Journal;

  // Begins to write, as round `number` of the store, which has uploads up to `latest_upload`. Call it once.
  void Start(uint64_t number, uint64_t latest_upload = 0) {
    number_ = number;
    latest_upload_ = std::max<uint64_t>(latest_upload_, latest_upload);
    is_active_ = HasStore();
  }
  bool IsActive() const { return is_active_; }
  // Returns: a number for an upload, in the store and elsewhere, which no other upload of the round has had.
  uint64_t TakeNumber() { return ++latest_upload_; }

  // Calls a write of the store, whose first argument is the round's number. Errors: of Store.
  template <typename Method, typename... Arguments>
  absl::Status Write(Method write, const Arguments&... arguments) {
    return is_active_ ? Journal::Write(write, number_, arguments...) : absl::OkStatus();
  }
  absl::Status PutState(const StateRecord& record, absl::Span<const WithdrawnSubmission> withdrawn = {},
                        absl::Span<const std::pair<std::string, SubmissionRecord>> kept = {}) {
    return Write(&Store::PutState, record, withdrawn, kept);
  }
  // Returns: a chunk that was written. Errors: as of Store::ReadChunk. Requires: IsActive(), before Delete.
  absl::StatusOr<std::string> ReadChunk(uint64_t upload, uint64_t sequence) const {
    return store()->ReadChunk(number_, upload, sequence);
  }
  // Removes all that was written, and writes nothing from then on.
  absl::Status Delete() {
    RETURN_IF_ERROR(Write(&Store::DeleteRound));
    is_active_ = false;
    return absl::OkStatus();
  }

 private:
  uint64_t number_ = 0;
  std::atomic<uint64_t> latest_upload_ = 0;
  std::atomic<bool> is_active_ = false;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_JOURNAL_H_
