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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/admission/memory_budget.h"
#include "service/store/records.h"

namespace sparseagg::service {

// Ranges of several results may be there at once: of coordinators that have died, or that work at the same time. The
// list, which is the range of no tensor, decides which result counts. Not thread-safe: Round guards it.
class ResultRanges {
 public:
  using Page = std::shared_ptr<const std::string>;

  explicit ResultRanges(MemoryBudget* budget) : reservation_(budget) {}

  // Returns: whether the range is there already. Errors: of Round::PutRange that do not depend on the round's state.
  absl::StatusOr<bool> Has(const RangeRecord& range, absl::string_view page) const;
  // Errors: RESOURCE_EXHAUSTED. A range that is not added then is given back by Release.
  absl::Status Reserve(uint64_t bytes) { return reservation_.Grow(bytes, "a range of a cluster's result", ""); }
  void Release(uint64_t bytes) { reservation_.SetTo(reservation_.bytes() - bytes); }
  // `number`: of the upload in the store whose chunk is the page.
  void Add(RangeRecord range, Page page, uint64_t number);
  // The same with its memory, of a run before the restart: what was accepted stays, even beyond the limit.
  void Restore(RangeRecord range, Page page, uint64_t number);
  // Returns: the page of the result that the list has chosen. Errors: NOT_FOUND.
  absl::StatusOr<Page> Find(absl::string_view tensor, uint64_t begin) const;
  // Removes the ranges of other results than the list's. Returns: the numbers of their uploads; none without a list.
  std::vector<uint64_t> DropOthers();
  void Clear();

  static uint64_t MemoryBytes(const RangeRecord& range, absl::string_view page);

 private:
  using Result = std::pair<std::string, std::string>;     // only and plan
  using Key = std::tuple<Result, std::string, uint64_t>;  // tensor and begin
  struct Entry {
    RangeRecord range;
    Page page;
    uint64_t number;
  };

  std::map<Key, Entry> entries_;
  std::optional<Result> listed_;  // of the list
  Reservation reservation_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_RESULT_RANGES_H_
