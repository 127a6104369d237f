// SealedReader: what the submissions add up to, for another merge.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/partial.h"
#include "service/rounds/page_token.h"
#include "service/rounds/sealed_reader.h"

namespace sparseagg::service {

absl::StatusOr<uint64_t> SealedReader::ResumeAtKey(KeyInterval keys, absl::string_view page_token) const {
  uint64_t first = keys.begin;
  if (page_token.empty()) return first;
  ASSIGN_OR_RETURN(const absl::string_view place, PlaceOf(page_token, round_.create_time()));
  if (!absl::SimpleAtoi(place, &first)) return ForeignPageToken(page_token);
  return first;
}

absl::StatusOr<PartialPage> SealedReader::ExportPartial(const PartialQuery& query, absl::string_view page_token) {
  const TensorSpec& spec = config_.tensors[query.tensor];
  RETURN_IF_ERROR(CheckRange(query.keys));
  ASSIGN_OR_RETURN(const uint64_t first, ResumeAtKey(query.keys, page_token));
  // An end of 0 is behind the last key.
  const uint64_t last = query.keys.end - 1;
  const uint64_t head_bytes = PartialBlockBytes(spec, 0);
  const uint64_t room = query.max_bytes - std::min(query.max_bytes, head_bytes);
  const uint64_t max_rows = std::max<uint64_t>(1, room / UnfinishedRowBytes(spec));
  PartialPage page;
  const absl::Status read = round_.ReadSum([&](RoundSum& sum) -> absl::Status {
    // Here, because the sum of a round that is closed in the meantime may be gone.
    RETURN_IF_ERROR(CheckSealed("exported"));
    RETURN_IF_ERROR(sum.MergeHeld());
    RETURN_IF_ERROR(sum.aggregation()->CheckExportsPartial(query.tensor));
    if (config_.keep_submissions) {
      return absl::FailedPreconditionError(
          absl::StrCat(Quoted(spec), ": the round keeps its submissions (RoundSpec.keep_submissions): export these"));
    }
    if (first > last) return absl::OkStatus();  // an empty range
    ASSIGN_OR_RETURN(const PartialBlock block, sum.ExportPartial(query.tensor, first, last, max_rows));
    if (block.last != last) {
      page.next_page_token = MakePageToken(round_.create_time(), absl::StrCat(block.last + 1));
    }
    AppendPartialBlock(spec, block, page.blocks);
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(read);
  return page;
}

absl::StatusOr<ExportPage> SealedReader::SampleMerged(const ExportQuery& query, absl::string_view page_token) {
  const TensorSpec& spec = config_.tensors[query.tensor];
  ASSIGN_OR_RETURN(uint64_t first, ResumeAtKey(query.keys, page_token));
  const uint64_t last = query.keys.end - 1;
  ExportPage page;
  const absl::Status read = round_.ReadSum([&](RoundSum& sum) -> absl::Status {
    RETURN_IF_ERROR(CheckSealed("exported"));
    RETURN_IF_ERROR(sum.MergeHeld());
    if (first > last) return absl::OkStatus();
    uint64_t offset = query.sample_every / 2;
    while (true) {
      ASSIGN_OR_RETURN(const PartialBlock block, sum.ExportPartial(query.tensor, first, last, kSampledRows));
      for (; offset < block.rows.num_rows; offset += query.sample_every) {
        page.keys.append(reinterpret_cast<const char*>(block.rows.keys.data()) + offset * KeyBytes(spec),
                         KeyBytes(spec));
        ++page.num_rows;
      }
      offset -= block.rows.num_rows;
      if (block.last == last) return absl::OkStatus();
      first = block.last + 1;
      if (page.keys.size() < query.max_bytes) continue;
      page.next_page_token = MakePageToken(round_.create_time(), absl::StrCat(first));
      return absl::OkStatus();
    }
  });
  RETURN_IF_ERROR(read);
  return page;
}

uint64_t SealedReader::PartialPageBytes(const RoundConfig& config, const PartialQuery& query) {
  const TensorSpec& spec = config.tensors[query.tensor];
  // The rows, and the block of them.
  return SaturatingMultiply(2, SaturatingAdd(query.max_bytes, PartialBlockBytes(spec, 1)));
}

}  // namespace sparseagg::service
