// Round: what the submissions of a sealed round add up to, for another merge.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/partial.h"
#include "service/rounds/page_token.h"
#include "service/rounds/round.h"

namespace sparseagg::service {

absl::StatusOr<Round::PartialPage> Round::ExportPartial(const PartialQuery& query, absl::string_view page_token) {
  const TensorSpec& spec = config_->tensors[query.tensor];
  RETURN_IF_ERROR(CheckRange(query.keys));
  uint64_t first = query.keys.begin;
  if (!page_token.empty()) {
    ASSIGN_OR_RETURN(const absl::string_view place, PlaceOf(page_token, create_time_));
    if (!absl::SimpleAtoi(place, &first)) return ForeignPageToken(page_token);
  }
  // An end of 0 is behind the last key.
  const uint64_t last = query.keys.end - 1;
  const uint64_t head_bytes = PartialBlockBytes(spec, 0);
  const uint64_t room = query.max_bytes - std::min(query.max_bytes, head_bytes);
  const uint64_t max_rows = std::max<uint64_t>(1, room / UnfinishedRowBytes(spec));
  PartialPage page;
  MutexLock merge(&merge_mu_);
  // Under the lock, because the sum of a round that is closed in the meantime may be gone.
  RETURN_IF_ERROR(CheckSealed("exported"));
  RETURN_IF_ERROR(sum_.aggregation()->CheckExportsPartial(query.tensor));
  if (config_->keep_submissions) {
    return absl::FailedPreconditionError(
        absl::StrCat(Quoted(spec), ": the round keeps its submissions (RoundSpec.keep_submissions): export these"));
  }
  if (first > last) return page;  // an empty range
  ASSIGN_OR_RETURN(const PartialBlock block, sum_.ExportPartial(query.tensor, first, last, max_rows));
  if (block.last != last) page.next_page_token = MakePageToken(create_time_, absl::StrCat(block.last + 1));
  AppendPartialBlock(spec, block, page.blocks);
  return page;
}

absl::StatusOr<ExportPage> Round::SampleMerged(const ExportQuery& query, absl::string_view page_token) {
  const TensorSpec& spec = config_->tensors[query.tensor];
  uint64_t first = query.keys.begin;
  if (!page_token.empty()) {
    ASSIGN_OR_RETURN(const absl::string_view place, PlaceOf(page_token, create_time_));
    if (!absl::SimpleAtoi(place, &first)) return ForeignPageToken(page_token);
  }
  const uint64_t last = query.keys.end - 1;
  ExportPage page;
  MutexLock merge(&merge_mu_);
  RETURN_IF_ERROR(CheckSealed("exported"));
  if (first > last) return page;
  uint64_t offset = query.sample_every / 2;
  while (true) {
    ASSIGN_OR_RETURN(const PartialBlock block, sum_.ExportPartial(query.tensor, first, last, kSampledRows));
    for (; offset < block.rows.num_rows; offset += query.sample_every) {
      page.keys.append(reinterpret_cast<const char*>(block.rows.keys.data()) + offset * KeyBytes(spec), KeyBytes(spec));
      ++page.num_rows;
    }
    offset -= block.rows.num_rows;
    if (block.last == last) return page;
    first = block.last + 1;
    if (page.keys.size() < query.max_bytes) continue;
    page.next_page_token = MakePageToken(create_time_, absl::StrCat(first));
    return page;
  }
}

uint64_t Round::PartialPageBytes(const PartialQuery& query) const {
  const TensorSpec& spec = config_->tensors[query.tensor];
  // The rows, and the block of them.
  return SaturatingMultiply(2, SaturatingAdd(query.max_bytes, PartialBlockBytes(spec, 1)));
}

}  // namespace sparseagg::service
