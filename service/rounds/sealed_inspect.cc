// SealedReader: inner products and squared distances.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/status_macros.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/sealed_reader.h"

namespace sparseagg::service {
namespace {

// Values that a page reads, about: a second or two.
constexpr uint64_t kPageCost = uint64_t{1} << 28;
constexpr uint64_t kElementBytes = 2 * sizeof(double) + sizeof(uint64_t);

}  // namespace

uint64_t InspectionPage::MemoryBytes() const {
  uint64_t bytes = sizeof(InspectionPage) + gram.size() * kElementBytes;
  for (const std::string& client_id : client_ids) bytes += sizeof(std::string) + client_id.size();
  return bytes;
}

absl::StatusOr<std::vector<size_t>> SealedReader::CheckInspected(std::vector<size_t> tensors) const {
  if (config_.HasPrivacy()) {
    return absl::FailedPreconditionError("privacy refuses inspections: inner products have no noise");
  }
  const auto has_floats = [](const TensorSpec& spec) {
    return IsFloat(spec.dtype) && spec.aggregation.op != Op::kUnion;
  };
  for (const size_t tensor : tensors) {
    const TensorSpec& spec = config_.tensors[tensor];
    if (!has_floats(spec)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(spec), ": only tensors of floats with values can be inspected"));
    }
  }
  if (!tensors.empty()) return tensors;
  for (size_t t = 0; t < config_.tensors.size(); ++t) {
    if (has_floats(config_.tensors[t])) tensors.push_back(t);
  }
  if (!tensors.empty()) return tensors;
  return absl::InvalidArgumentError("the round has no tensor of floats with values, which alone can be inspected");
}

absl::Status SealedReader::CheckSealed(absl::string_view verb) const {
  if (round_.IsReadable()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("only a SEALED round can be ", verb, "; the round is ", Name(round_.state())));
}

absl::StatusOr<std::vector<InspectedTensor>> SealedReader::ReadSubmissions(absl::Span<const size_t> tensors,
                                                                           std::vector<std::string>& client_ids,
                                                                           Reservation& working) {
  std::vector<InspectedTensor> inspected;
  const absl::Status read = round_.ReadSum([&](RoundSum& sum) -> absl::Status {
    // Here, because the sum of a round that is closed in the meantime may be gone.
    RETURN_IF_ERROR(CheckSealed("inspected"));
    const Aggregation& aggregation = *sum.aggregation();
    const uint64_t num_submissions = aggregation.num_submissions();
    if (num_submissions > kMaxInspected) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the round has ", num_submissions, " submissions; a round of at most ", kMaxInspected, " can be inspected"));
    }
    for (const size_t tensor : tensors) RETURN_IF_ERROR(aggregation.CheckKeepsAll(tensor));
    const auto reserve = [&](uint64_t bytes) {
      return working.Grow(bytes, "the inspection of a round", "inspect fewer tensors");
    };
    // Twice the rows: as ReadPending returns them, and in canonical order.
    RETURN_IF_ERROR(reserve(2 * InnerProducts::MemoryBytes(tensors.size(), num_submissions)));
    ASSIGN_OR_RETURN(std::vector<std::vector<UpdateRows>> rows, sum.ReadPending(tensors));
    inspected.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      inspected.push_back({config_.tensors[tensors[i]].row_width, std::move(rows[i])});
    }
    RETURN_IF_ERROR(reserve(InnerProducts::NormBytes(inspected)));
    client_ids = aggregation.SortedClientIds();
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(read);
  return inspected;
}

absl::StatusOr<InspectionPage> SealedReader::Inspect(std::vector<size_t> tensors, uint64_t max_bytes,
                                                     absl::string_view page_token,
                                                     absl::FunctionRef<bool()> is_cancelled) {
  RETURN_IF_ERROR(CheckSealed("inspected"));
  InspectionPage page;
  if (!page_token.empty()) {
    ASSIGN_OR_RETURN(const absl::string_view place, PlaceOf(page_token, round_.create_time()));
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(place, absl::MaxSplits('.', 1));
    if (!absl::SimpleAtoi(parts.first, &page.first_row) || !absl::SimpleAtoi(parts.second, &page.num_clients)) {
      return ForeignPageToken(page_token);
    }
  }
  ASSIGN_OR_RETURN(tensors, CheckInspected(std::move(tensors)));
  page.reservation = std::make_shared<Reservation>(&round_.budget());
  std::vector<std::string> clients;
  ASSIGN_OR_RETURN(std::vector<InspectedTensor> inspected, ReadSubmissions(tensors, clients, *page.reservation));
  const uint64_t most_bytes = std::max<uint64_t>(max_bytes, clients.size() * kElementBytes);
  RETURN_IF_ERROR(page.reservation->Grow(2 * most_bytes, "a page of an inspection", ""));  // vectors grow by doubling
  InnerProducts products(std::move(inspected));
  if (!page_token.empty() && page.num_clients != clients.size()) {
    return absl::FailedPreconditionError(
        "submissions have been withdrawn since the page before: begin the inspection again");
  }
  page.num_clients = clients.size();
  if (page.first_row > clients.size()) return ForeignPageToken(page_token);
  uint64_t row = page.first_row;
  uint64_t cost = 0;
  for (; row < clients.size(); ++row) {
    const size_t begin = page.gram.size();
    const size_t size = row + 1;
    if (row > page.first_row && ((begin + size) * kElementBytes > max_bytes || cost > kPageCost)) break;
    RETURN_IF_ERROR(CheckSealed("inspected"));
    if (is_cancelled()) return absl::CancelledError("the call was cancelled");
    page.gram.resize(begin + size);
    page.squared_distances.resize(begin + size);
    page.overlap.resize(begin + size);
    products.ComputeRow(row, absl::MakeSpan(page.gram).subspan(begin),
                        absl::MakeSpan(page.squared_distances).subspan(begin),
                        absl::MakeSpan(page.overlap).subspan(begin));
    page.client_ids.push_back(std::move(clients[row]));
    cost += products.RowCost(row);
  }
  if (row < clients.size())
    page.next_page_token = MakePageToken(round_.create_time(), absl::StrCat(row, ".", clients.size()));
  page.gram.shrink_to_fit();
  page.squared_distances.shrink_to_fit();
  page.overlap.shrink_to_fit();
  page.reservation->SetTo(page.MemoryBytes());
  return page;
}

}  // namespace sparseagg::service
