// Round: the ranges of a cluster's result.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/rounds/round.h"

namespace sparseagg::service {

absl::StatusOr<bool> Round::CheckRangeLocked(absl::Time created, const RangeRecord& range,
                                             absl::string_view page) const {
  if (config_->homes.servers.empty()) {
    return absl::FailedPreconditionError("only a round of a cluster takes ranges of a result");
  }
  if (absl::ToUnixMicros(created) != absl::ToUnixMicros(create_time_)) {
    return absl::FailedPreconditionError(absl::StrCat("the range is of a round that was created at ",
                                                      absl::FormatTime(created, absl::UTCTimeZone()), ", and this one ",
                                                      absl::FormatTime(create_time_, absl::UTCTimeZone())));
  }
  if (!IsReadableLocked()) {
    return absl::FailedPreconditionError(
        absl::StrCat("only a SEALED round takes ranges of its result; the round is ", Name(life_.state())));
  }
  if (page.empty()) return true;  // an end without a list
  return ranges_.Has(range, page);
}

absl::Status Round::PutRange(absl::Time created, RangeRecord range, std::string page) {
  const bool is_list = range.tensor.empty();
  const uint64_t bytes = ResultRanges::MemoryBytes(range, page);
  const auto shared = std::make_shared<const std::string>(std::move(page));
  uint64_t number;
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const bool is_there, CheckRangeLocked(created, range, *shared));
    if (is_there) {
      number = 0;
    } else {
      RETURN_IF_ERROR(ranges_.Reserve(bytes));
      number = next_upload_++;
    }
  }
  if (number != 0) {
    UploadRecord record;
    record.range = range;
    const absl::string_view chunk = *shared;
    absl::Status put = journal_->Write(&Store::PutChunk, number, uint64_t{0}, absl::MakeConstSpan(&chunk, 1), &record);
    FailPoint("range_written");
    bool is_added = false;
    {
      // Another call may have been quicker, or the round may be cancelled.
      MutexLock lock(&mu_);
      absl::StatusOr<bool> is_there = put.ok() ? CheckRangeLocked(created, range, *shared) : put;
      put = is_there.status();
      is_added = put.ok() && !*is_there;
      if (is_added) {
        ranges_.Add(std::move(range), shared, number);
      } else if (!life_.has_ended() || life_.keeps_sum()) {
        ranges_.Release(bytes);
      }
    }
    if (!is_added) journal_->Write(&Store::DeleteUpload, number).IgnoreError();
    RETURN_IF_ERROR(put);
  }
  return is_list ? EndMerged() : absl::OkStatus();
}

absl::Status Round::EndMerged() {
  std::vector<uint64_t> dropped;
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
    dropped = ranges_.DropOthers();
  }
  // What stays because of an error goes with the round.
  for (const uint64_t number : dropped) journal_->Write(&Store::DeleteUpload, number).IgnoreError();
  if (ends) AnnounceEnd();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const std::string>> Round::FindRange(absl::string_view tensor, uint64_t begin) const {
  MutexLock lock(&mu_);
  return ranges_.Find(tensor, begin);
}

void Round::RestoreRange(uint64_t number, RangeRecord range, std::string page) {
  MutexLock lock(&mu_);
  ranges_.Restore(std::move(range), std::make_shared<const std::string>(std::move(page)), number);
}

}  // namespace sparseagg::service
