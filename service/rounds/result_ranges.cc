// ResultRanges, and the calls of Round for them.
#include "service/rounds/result_ranges.h"

#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/rounds/round.h"

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

absl::StatusOr<bool> ResultRanges::HasLocked(const RangeRecord& range, absl::string_view page) const {
  if (is_closed_) return absl::FailedPreconditionError("only a SEALED round takes ranges of its result");
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

absl::Status ResultRanges::Put(RangeRecord range, std::string page) {
  const uint64_t bytes = MemoryBytes(range, page);
  const auto shared = std::make_shared<const std::string>(std::move(page));
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const bool is_there, HasLocked(range, *shared));
    if (is_there) return absl::OkStatus();
    RETURN_IF_ERROR(reservation_.Grow(bytes, "a range of a cluster's result", ""));
  }
  const uint64_t number = journal_->TakeNumber();
  UploadRecord record;
  record.range = range;
  const absl::string_view chunk = *shared;
  absl::Status put = journal_->Write(&Store::PutChunk, number, uint64_t{0}, absl::MakeConstSpan(&chunk, 1), &record);
  FailPoint("range_written");
  bool is_added = false;
  {
    // Another call may have been quicker, or the round may be cancelled.
    MutexLock lock(&mu_);
    absl::StatusOr<bool> is_there = put.ok() ? HasLocked(range, *shared) : put;
    put = is_there.status();
    is_added = put.ok() && !*is_there;
    if (is_added) {
      AddLocked(std::move(range), shared, number);
    } else if (!is_dropped_) {
      ReleaseLocked(bytes);
    }
  }
  if (!is_added) journal_->Write(&Store::DeleteUpload, number).IgnoreError();
  return put;
}

void ResultRanges::AddLocked(RangeRecord range, Page page, uint64_t number) {
  Result result{range.only, range.plan};
  Key key(result, range.tensor, range.begin);
  if (range.tensor.empty()) listed_ = std::move(result);
  entries_.insert_or_assign(std::move(key), Entry{std::move(range), std::move(page), number});
}

void ResultRanges::Restore(uint64_t number, RangeRecord range, std::string page) {
  MutexLock lock(&mu_);
  reservation_.SetTo(reservation_.bytes() + MemoryBytes(range, page));
  AddLocked(std::move(range), std::make_shared<const std::string>(std::move(page)), number);
}

absl::StatusOr<ResultRanges::Page> ResultRanges::Find(absl::string_view tensor, uint64_t begin) const {
  MutexLock lock(&mu_);
  if (!listed_.has_value()) return absl::NotFoundError("the server has no ranges of a result of the round");
  const auto found = entries_.find(Key(*listed_, tensor, begin));
  if (found != entries_.end()) return found->second.page;
  return absl::NotFoundError(absl::StrCat("the server has no range of tensor '", tensor, "' that begins at ", begin));
}

void ResultRanges::DropOthers() {
  std::vector<uint64_t> dropped;
  {
    MutexLock lock(&mu_);
    for (auto it = entries_.begin(); listed_.has_value() && it != entries_.end();) {
      if (std::get<0>(it->first) == *listed_) {
        ++it;
        continue;
      }
      dropped.push_back(it->second.number);
      ReleaseLocked(MemoryBytes(it->second.range, *it->second.page));
      it = entries_.erase(it);
    }
  }
  // What stays because of an error goes with the round.
  for (const uint64_t number : dropped) journal_->Write(&Store::DeleteUpload, number).IgnoreError();
}

void ResultRanges::Close(bool drops) {
  MutexLock lock(&mu_);
  is_closed_ = true;
  if (!drops) return;
  is_dropped_ = true;
  entries_.clear();
  listed_.reset();
  reservation_.SetTo(0);
}

absl::Status Round::PutRange(absl::Time created, RangeRecord range, std::string page) {
  if (config_->homes.servers.empty()) {
    return absl::FailedPreconditionError("only a round of a cluster takes ranges of a result");
  }
  if (absl::ToUnixMicros(created) != absl::ToUnixMicros(create_time_)) {
    return absl::FailedPreconditionError(absl::StrCat("the range is of a round that was created at ",
                                                      absl::FormatTime(created, absl::UTCTimeZone()), ", and this one ",
                                                      absl::FormatTime(create_time_, absl::UTCTimeZone())));
  }
  {
    MutexLock lock(&mu_);
    if (!IsReadableLocked()) {
      return absl::FailedPreconditionError(
          absl::StrCat("only a SEALED round takes ranges of its result; the round is ", Name(life_.state())));
    }
  }
  const bool is_list = range.tensor.empty();
  if (!page.empty()) RETURN_IF_ERROR(ranges_.Put(std::move(range), std::move(page)));
  return is_list ? EndMerged() : absl::OkStatus();
}

absl::Status Round::EndMerged() {
  bool ends;
  {
    MutexLock lock(&mu_);
    ends = life_.state() == RoundState::kSealed;
    if (ends) {
      const Moment now = services_.clock.Now();
      RETURN_IF_ERROR(journal_->PutState(life_.NextRecord(StateRecord::Name::kMerged, "", now.wall)));
      EndLocked(RoundState::kDone, absl::OkStatus(), "", now);
      life_.KeepSum();
    }
  }
  ranges_.DropOthers();
  if (ends) AnnounceEnd();
  return absl::OkStatus();
}

}  // namespace sparseagg::service
