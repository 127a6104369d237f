#include "service/rounds/result_ranges.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace sparseagg::service {
namespace {

constexpr uint64_t kEntryBytes = 512;  // of a range besides its names and its page

std::string Shown(const RangeRecord& range) {
  return absl::StrCat("range [", range.begin, ", ", range.end == 0 ? "" : absl::StrCat(range.end), ") of tensor '",
                      range.tensor, "'");
}

// Whether `first`, which begins below `second`, has keys of it.
bool Overlaps(const RangeRecord& first, const RangeRecord& second) {
  return first.tensor == second.tensor && (first.end == 0 || first.end > second.begin);
}

}  // namespace

uint64_t ResultRanges::MemoryBytes(const RangeRecord& range, absl::string_view page) {
  return kEntryBytes + 2 * (range.only.size() + range.plan.size() + range.tensor.size()) + page.size();
}

absl::StatusOr<bool> ResultRanges::Has(const RangeRecord& range, absl::string_view page) const {
  const Result result{range.only, range.plan};
  if (listed_.has_value() && *listed_ != result) {
    return absl::FailedPreconditionError(
        absl::StrCat("the round has its result already, ",
                     listed_->first == range.only ? "cut into other ranges" : "of other clients"));
  }
  const auto next = entries_.lower_bound(Key(result, range.tensor, range.begin));
  if (next != entries_.end() && next->first == Key(result, range.tensor, range.begin)) {
    // A list that is there stays: another one of the same ranges has other times.
    if (range.tensor.empty() || (next->second.range.end == range.end && *next->second.page == page)) return true;
    return absl::AlreadyExistsError(absl::StrCat("the ", Shown(range), " is there already, with other rows"));
  }
  if (listed_.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("the round has its result already, without the ", Shown(range)));
  }
  const RangeRecord* other = nullptr;
  if (next != entries_.end() && std::get<0>(next->first) == result && Overlaps(range, next->second.range)) {
    other = &next->second.range;
  }
  if (next != entries_.begin()) {
    const auto& [key, before] = *std::prev(next);
    if (std::get<0>(key) == result && Overlaps(before.range, range)) other = &before.range;
  }
  if (other == nullptr || range.tensor.empty()) return false;
  return absl::InvalidArgumentError(absl::StrCat("the ", Shown(range), " overlaps the ", Shown(*other)));
}

void ResultRanges::Add(RangeRecord range, Page page, uint64_t number) {
  Result result{range.only, range.plan};
  Key key(result, range.tensor, range.begin);
  if (range.tensor.empty()) listed_ = std::move(result);
  entries_.insert_or_assign(std::move(key), Entry{std::move(range), std::move(page), number});
}

void ResultRanges::Restore(RangeRecord range, Page page, uint64_t number) {
  reservation_.SetTo(reservation_.bytes() + MemoryBytes(range, *page));
  Add(std::move(range), std::move(page), number);
}

absl::StatusOr<ResultRanges::Page> ResultRanges::Find(absl::string_view tensor, uint64_t begin) const {
  if (!listed_.has_value()) return absl::NotFoundError("the server has no ranges of a result of the round");
  const auto found = entries_.find(Key(*listed_, tensor, begin));
  if (found != entries_.end()) return found->second.page;
  return absl::NotFoundError(absl::StrCat("the server has no range of tensor '", tensor, "' that begins at ", begin));
}

std::vector<uint64_t> ResultRanges::DropOthers() {
  std::vector<uint64_t> dropped;
  if (!listed_.has_value()) return dropped;
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (std::get<0>(it->first) == *listed_) {
      ++it;
      continue;
    }
    dropped.push_back(it->second.number);
    Release(MemoryBytes(it->second.range, *it->second.page));
    it = entries_.erase(it);
  }
  return dropped;
}

void ResultRanges::Clear() {
  entries_.clear();
  listed_.reset();
  reservation_.SetTo(0);
}

}  // namespace sparseagg::service
