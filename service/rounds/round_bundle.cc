#include "service/rounds/round_bundle.h"

#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/status_macros.h"
#include "service/rounds/result_pages.h"

namespace sparseagg::service {

absl::StatusOr<BundlePage> ReadBundle(const Round& round, uint64_t max_bytes, absl::string_view page_token) {
  if (!round.config().allows_export) {
    return absl::FailedPreconditionError("the round's spec does not allow an export (certificate.allow_export)");
  }
  uint64_t sequence = 0;
  std::string next_client;
  if (!page_token.empty()) {
    ASSIGN_OR_RETURN(const absl::string_view place, PlaceOf(page_token, round.create_time()));
    const std::vector<absl::string_view> parts = absl::StrSplit(place, absl::MaxSplits('.', 1));
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &sequence)) return ForeignPageToken(page_token);
    next_client = std::string(parts[1]);
  }
  const RoundState state = round.state();  // DONE is the last state, and keeps the submissions
  if (state != RoundState::kDone) {
    return absl::FailedPreconditionError(absl::StrCat("the round is ", Name(state), ", and not DONE"));
  }
  BundlePage page;
  uint64_t bytes = 0;
  while (true) {
    std::optional<SubmissionTable::Map::value_type> next;
    round.ReadCommitted([&](const SubmissionTable::Map& all) {
      const auto found = all.lower_bound(next_client);
      if (found != all.end()) next.emplace(*found);
    });
    if (!next.has_value()) return page;
    const auto& [client_id, submission] = *next;
    if (client_id != next_client) sequence = 0;
    for (; sequence < submission.num_chunks; ++sequence) {
      if (bytes >= max_bytes && !page.chunks.empty()) {
        page.next_page_token = MakePageToken(round.create_time(), absl::StrCat(sequence, ".", client_id));
        return page;
      }
      ASSIGN_OR_RETURN(std::string chunk, round.journal().ReadChunk(submission.upload, sequence));
      bytes += chunk.size();
      const bool last = sequence + 1 == submission.num_chunks;
      page.chunks.push_back({client_id, submission.receipt.submission_id, std::move(chunk), last,
                             submission.client_weight, last ? submission.leaf : ""});
    }
    next_client = client_id + '\0';  // the least id after it
    sequence = 0;
  }
}

}  // namespace sparseagg::service
