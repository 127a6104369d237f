// SealedReader: what a sealed round gives to another merge: its submissions, or what they add up to.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/partial.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/row_export.h"
#include "service/rounds/sealed_reader.h"

namespace sparseagg::service {
namespace {

// Of each submission in a page, besides its id: the line feed, the weight and the number of keys.
constexpr uint64_t kHeadBytes = 1 + sizeof(double) + sizeof(uint32_t);

constexpr uint64_t kMaxIdBytes = 256;

// Returns: bytes of the page's ids, weights and numbers of keys, with those of one more client.
uint64_t HeadBytes(const ExportPage& page, absl::string_view client_id) {
  return page.client_ids.size() + page.weights.size() + page.num_keys.size() + client_id.size() + kHeadBytes;
}

// Returns: bytes of a page by place, but for its rows, with one more submission.
uint64_t PlaceBytes(const ExportPage& page, bool has_rows) {
  return page.num_keys.size() + (has_rows ? sizeof(uint32_t) : 0) + (page.end_place - page.first_place) / 8 + 1;
}

template <typename T>
void AppendBytes(T value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Appends the bit of the submission at end_place.
void AppendPlace(bool has_rows, ExportPage& page) {
  const uint64_t bit = (page.end_place - page.first_place) % 8;
  if (bit == 0) page.has_rows += '\0';
  if (has_rows) page.has_rows.back() = static_cast<char>(page.has_rows.back() | 1 << bit);
}

bool IsAscending(const UpdateRows& update) { return update.coarse_bits == 0 && update.repeats == nullptr; }

// Returns: whether submissions of a tensor are merged as they arrive, and so exported as a partial.
bool IsMergedOnArrival(const RoundConfig& config, size_t tensor) {
  return !config.keep_submissions && !OrderMatters(config.tensors[tensor]);
}

}  // namespace

absl::Status SealedReader::CheckExported(const ExportQuery& query) const {
  const TensorSpec& spec = config_.tensors[query.tensor];
  if (config_.HasPrivacy()) {
    return absl::FailedPreconditionError("privacy refuses exports: submissions have no noise");
  }
  if (spec.clip.l2 != TensorClip::kNone && spec.clip.on_l2 == ClipPolicy::kClip) {
    return absl::FailedPreconditionError(
        absl::StrCat(Quoted(spec),
                     ": clip.l2 scales submissions to values that the dtype does not hold, so that they "
                     "cannot be exported; REJECT in place of CLIP can"));
  }
  RETURN_IF_ERROR(CheckRange(query.keys));
  return CheckSealed("exported");
}

absl::StatusOr<SealedReader::ExportPosition> SealedReader::ResumeExport(absl::string_view page_token) const {
  ExportPosition position;
  if (page_token.empty()) return position;
  ASSIGN_OR_RETURN(const absl::string_view place, PlaceOf(page_token, round_.create_time()));
  const std::vector<absl::string_view> parts = absl::StrSplit(place, '.');
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &position.submission) ||
      !absl::SimpleAtoi(parts[1], &position.row) || !absl::SimpleAtoi(parts[2], &position.num_submissions) ||
      !absl::SimpleAtob(parts[3], &position.is_ascending)) {
    return ForeignPageToken(page_token);
  }
  return position;
}

absl::Status SealedReader::ReadClients(const SubmissionTable::Map& all, uint64_t num_submissions, uint64_t first,
                                       uint64_t max_clients, std::vector<ExportedClient>& clients,
                                       Reservation& working) {
  if (all.size() != num_submissions) {
    return absl::InternalError(
        absl::StrCat("the sum has ", num_submissions, " submissions, and the round ", all.size()));
  }
  uint64_t client_bytes = 0;
  for (auto it = std::next(all.begin(), static_cast<std::ptrdiff_t>(std::min<uint64_t>(first, all.size())));
       it != all.end() && clients.size() < max_clients; ++it) {
    if (!it->second.weight.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("client '", it->first, "' sent a partial: the weights of its submissions are not known"));
    }
    client_bytes += sizeof(ExportedClient) + it->first.size();
    clients.push_back({it->first, *it->second.weight});
  }
  return working.Grow(client_bytes, "the export of a round", "");
}

absl::Status SealedReader::ReadForExport(const ExportQuery& query, uint64_t first, uint64_t max_clients,
                                         std::vector<UpdateRows>& rows, std::vector<ExportedClient>& clients,
                                         Reservation& working) {
  return round_.ReadSum([&](RoundSum& sum) -> absl::Status {
    // Here, because the sum of a round that is closed in the meantime may be gone.
    RETURN_IF_ERROR(CheckSealed("exported"));
    RETURN_IF_ERROR(sum.MergeHeld());
    const Aggregation& aggregation = *sum.aggregation();
    RETURN_IF_ERROR(aggregation.CheckKeepsAll(query.tensor));
    const uint64_t num_submissions = aggregation.num_submissions();
    // Twice the rows: as ReadPending returns them, and in canonical order.
    RETURN_IF_ERROR(working.Grow(2 * num_submissions * sizeof(UpdateRows), "the export of a round", ""));
    const bool is_empty = query.keys.end != 0 && query.keys.begin == query.keys.end;  // for the clients alone
    const RowOrder order = query.any_order || is_empty ? RowOrder::kCoarse : RowOrder::kAscending;
    ASSIGN_OR_RETURN(std::vector<std::vector<UpdateRows>> read, sum.ReadPending({query.tensor}, order));
    rows = std::move(read.front());
    absl::Status clients_read;
    round_.ReadCommitted([&](const SubmissionTable::Map& all) {
      clients_read = ReadClients(all, num_submissions, first, max_clients, clients, working);
    });
    // A cancel meanwhile takes the submissions out of the table, but not out of the sum.
    RETURN_IF_ERROR(CheckSealed("exported"));
    return clients_read;
  });
}

absl::StatusOr<ExportPage> SealedReader::Export(const ExportQuery& query, absl::string_view page_token) {
  RETURN_IF_ERROR(CheckExported(query));
  ASSIGN_OR_RETURN(ExportPosition at, ResumeExport(page_token));
  const TensorSpec& spec = config_.tensors[query.tensor];
  Reservation working(&round_.budget());
  std::vector<UpdateRows> rows;
  std::vector<ExportedClient> clients;  // from at.submission on
  const uint64_t max_clients = query.by_place ? 0 : query.max_bytes / kHeadBytes + 1;
  RETURN_IF_ERROR(ReadForExport(query, at.submission, max_clients, rows, clients, working));
  const auto token = [&](uint64_t submission, uint64_t row) {
    const bool is_ascending = submission < rows.size() && IsAscending(rows[submission]);
    return MakePageToken(round_.create_time(), absl::StrCat(submission, ".", row, ".", rows.size(), ".", is_ascending));
  };
  if (!page_token.empty() && at.num_submissions != rows.size()) {
    return absl::FailedPreconditionError(
        "submissions have been withdrawn since the page before: begin the export again");
  }
  if (at.submission > rows.size()) return ForeignPageToken(page_token);
  if (at.row != 0 && at.submission < rows.size() && at.is_ascending != IsAscending(rows[at.submission])) {
    return absl::AbortedError("the submissions have been sorted since the page before: begin the export again");
  }
  ExportPage page;
  const auto is_run = [&](const UpdateRows& update) { return IsRunFrom(spec, update, query.keys.begin); };
  page.has_runs = query.takes_runs && std::all_of(rows.begin(), rows.end(), is_run);
  const uint64_t key_bytes = page.has_runs ? 0 : KeyBytes(spec);
  const uint64_t value_bytes = ExportedRowBytes(spec) - KeyBytes(spec);
  const uint64_t row_bytes = std::max<uint64_t>(1, key_bytes + value_bytes);
  // So that the columns of a full page are not copied as they grow. What is not used takes no memory.
  page.keys.reserve(query.max_bytes / row_bytes * key_bytes);
  page.values.reserve(query.max_bytes / row_bytes * value_bytes);
  const uint64_t first = at.submission;
  page.first_place = page.end_place = first;
  page.num_submissions = rows.size();
  std::vector<RowPiece> pieces;
  uint64_t piece_bytes = 0;
  for (uint64_t s = first; s < rows.size(); ++s) {
    const ExportedRows exported(rows[s], query.keys, pieces);
    RETURN_IF_ERROR(working.Grow(pieces.capacity() * sizeof(pieces[0]) - piece_bytes, "the export of a round", ""));
    piece_bytes = pieces.capacity() * sizeof(pieces[0]);
    RowInterval left = {0, exported.size()};
    if (s == first) left.begin = std::min(at.row, left.end);
    const bool has_rows = left.begin < left.end;
    page.next_page_token = token(s, left.begin);
    if (!query.by_place && s - first == clients.size()) break;
    const uint64_t head_bytes = query.by_place ? PlaceBytes(page, has_rows) : HeadBytes(page, clients[s - first].id);
    const uint64_t room = query.max_bytes - std::min(query.max_bytes, head_bytes + page.num_rows * row_bytes);
    // The first submission of a page makes progress in any case.
    if (s > first && room < (has_rows ? row_bytes : 1)) break;
    const uint64_t rows_before = page.num_rows;
    if (s == first) page.first_key = has_rows ? exported.Key(left.begin) : query.keys.begin;
    ASSIGN_OR_RETURN(const uint64_t next, exported.Append(spec, left, rows_before + room / row_bytes, page));
    if (next == left.begin && has_rows) break;  // a row of several terms does not fit
    if (query.by_place) {
      AppendPlace(has_rows, page);
    } else {
      if (s > first) page.client_ids += '\n';
      page.client_ids += clients[s - first].id;
      AppendBytes(clients[s - first].weight, page.weights);
    }
    if (has_rows || !query.by_place) AppendBytes(static_cast<uint32_t>(page.num_rows - rows_before), page.num_keys);
    page.end_place = s + 1;
    if (next < left.end) {
      page.next_page_token = token(s, next);
      page.is_continued = true;
      break;
    }
    if (s + 1 == rows.size()) page.next_page_token.clear();
  }
  return page;
}

uint64_t SealedReader::ExportPageBytes(const RoundConfig& config, const ExportQuery& query) {
  const uint64_t row_bytes = SaturatingMultiply(ExportedRowBytes(config.tensors[query.tensor]), kMaxTerms);
  return SaturatingAdd(std::max(query.max_bytes, row_bytes), kHeadBytes + kMaxIdBytes);
}

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

absl::StatusOr<std::vector<uint64_t>> SealedReader::CountKeys(const ExportQuery& query, const KeyBuckets& buckets) {
  const TensorSpec& spec = config_.tensors[query.tensor];
  RETURN_IF_ERROR(CheckExported(query));
  ASSIGN_OR_RETURN(KeyCounter counter, KeyCounter::Create(spec, buckets));
  const uint64_t last = query.keys.end - 1;  // an end of 0 is behind the last key
  if (!IsMergedOnArrival(config_, query.tensor)) {
    Reservation working(&round_.budget());
    std::vector<UpdateRows> rows;
    std::vector<ExportedClient> clients;
    RETURN_IF_ERROR(ReadForExport(query, 0, 0, rows, clients, working));
    std::vector<RowPiece> pieces;
    for (const UpdateRows& update : rows) ExportedRows(update, query.keys, pieces).Count(counter);
    return counter.counts();
  }
  const absl::Status read = round_.ReadSum([&](RoundSum& sum) -> absl::Status {
    RETURN_IF_ERROR(CheckSealed("exported"));
    RETURN_IF_ERROR(sum.MergeHeld());
    for (uint64_t first = query.keys.begin; first <= last;) {
      ASSIGN_OR_RETURN(const PartialBlock block, sum.ExportPartial(query.tensor, first, last, kCountedRows));
      const auto* const keys = block.rows.keys.data();
      const auto add = [&](const auto* column) {
        counter.Add(absl::MakeConstSpan(column, block.rows.num_rows), {0, block.rows.num_rows}, 0);
      };
      HasNarrowKeys(spec) ? add(reinterpret_cast<const uint32_t*>(keys)) : add(reinterpret_cast<const uint64_t*>(keys));
      if (block.last == last) break;
      first = block.last + 1;
    }
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(read);
  return counter.counts();
}

uint64_t SealedReader::PartialPageBytes(const RoundConfig& config, const PartialQuery& query) {
  const TensorSpec& spec = config.tensors[query.tensor];
  // The rows, and the block of them.
  return SaturatingMultiply(2, SaturatingAdd(query.max_bytes, PartialBlockBytes(spec, 1)));
}

}  // namespace sparseagg::service
