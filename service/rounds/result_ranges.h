// ResultRanges: the ranges of a cluster's result that a round keeps.
#ifndef SPARSEAGG_SERVICE_ROUNDS_RESULT_RANGES_H_
#define SPARSEAGG_SERVICE_ROUNDS_RESULT_RANGES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/base/mutex.h"
#include "service/admission/memory_budget.h"
#include "service/rounds/round_journal.h"
#include "service/store/records.h"

namespace sparseagg::service {

// Ranges of several results may be there at once: of coordinators that have died, or that work at the same time. The
// list, which is the range of no tensor, decides which result counts. A part of a Round. Thread-safe.
class ResultRanges {
 public:
  using Page = std::shared_ptr<const std::string>;  // a serialized v1::ResultPage

  ResultRanges(MemoryBudget* budget, std::shared_ptr<RoundJournal> journal)
      : journal_(std::move(journal)), reservation_(budget) {}

  // Keeps a range, or the list. Without effect on what is there. Errors: INVALID_ARGUMENT: as of CheckRange, or the
  // range overlaps another one. ALREADY_EXISTS: the range has other rows. FAILED_PRECONDITION: there is a list that was
  // put with another `only` or `plan`, or without this range; or Close was called. RESOURCE_EXHAUSTED: no memory. Of
  // Store.
  absl::Status Put(RangeRecord range, std::string page);
  // The same for a run before the restart: what was accepted stays, even beyond the limit. `number`: of the upload in
  // the store whose chunk is the page.
  void Restore(uint64_t number, RangeRecord range, std::string page);
  // Returns: the page of the range that begins so, of the result that the list has chosen; of no tensor the list.
  // Errors: NOT_FOUND.
  absl::StatusOr<Page> Find(absl::string_view tensor, uint64_t begin) const;
  // Removes the ranges of other results than the list's, also from the store.
  void DropOthers();
  static uint64_t MemoryBytes(const RangeRecord& range, absl::string_view page);
  // Takes no ranges from now on. `drops`: and forgets those that are there.
  void Close(bool drops);

 private:
  using Result = std::pair<std::string, std::string>;     // only and plan
  using Key = std::tuple<Result, std::string, uint64_t>;  // tensor and begin
  struct Entry {
    RangeRecord range;
    Page page;
    uint64_t number;
  };

  // Returns: whether the range is there already. Errors: of Put.
  absl::StatusOr<bool> HasLocked(const RangeRecord& range, absl::string_view page) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddLocked(RangeRecord range, Page page, uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseLocked(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    reservation_.SetTo(reservation_.bytes() - bytes);
  }

  const std::shared_ptr<RoundJournal> journal_;
  mutable Mutex mu_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool is_dropped_ ABSL_GUARDED_BY(mu_) = false;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::optional<Result> listed_ ABSL_GUARDED_BY(mu_);  // of the list
  Reservation reservation_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_RESULT_RANGES_H_
