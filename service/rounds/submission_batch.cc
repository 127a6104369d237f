#include "service/rounds/submission_batch.h"

#include <algorithm>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/status_macros.h"

namespace sparseagg::service {
namespace {

// They bound the time of one batch, a few seconds, and the bytes of its answer.
constexpr size_t kMaxSubmissions = 16384;
constexpr size_t kMaxUpdates = size_t{1} << 20;  // submissions times tensors of the round
constexpr uint64_t kMaxKeysWithoutBytes = uint64_t{1} << 24;

template <typename T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

absl::string_view TakePrefix(absl::string_view& bytes, uint64_t size) {
  const absl::string_view prefix = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return prefix;
}

absl::Status Invalid(const BatchSlice& slice, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("tensor '", slice.slice.tensor, "' of a batch: ", problem));
}

}  // namespace

absl::Status SubmissionBatch::Split(absl::string_view client_ids, absl::string_view weights, absl::string_view num_keys,
                                    absl::Span<const BatchSlice> slices) {
  client_ids_ = absl::StrSplit(client_ids, '\n');
  const size_t n = client_ids_.size();
  if (n > kMaxSubmissions) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", n, " submissions; at most ", kMaxSubmissions, " are allowed"));
  }
  if (!weights.empty() && weights.size() != n * sizeof(double)) {
    return absl::InvalidArgumentError(absl::StrCat("weights has ", weights.size(), " bytes for ", n, " client ids"));
  }
  weights_ = weights.empty() ? nullptr : weights.data();
  const uint64_t column_bytes = n * sizeof(uint32_t);
  if (num_keys.size() != slices.size() * column_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("num_keys has ", num_keys.size(), " bytes, where ", n,
                                                   " client ids and ", slices.size(), " slices need ",
                                                   slices.size() * column_bytes));
  }
  absl::flat_hash_set<absl::string_view> tensors;
  for (const BatchSlice& slice : slices) {
    if (!tensors.insert(slice.slice.tensor).second) return Invalid(slice, "there are two slices");
    Tuples& tuples = tuples_.emplace_back(Tuples{slice, TakePrefix(num_keys, column_bytes).data()});
    RETURN_IF_ERROR(CheckLengths(tuples));
  }
  return absl::OkStatus();
}

absl::Status SubmissionBatch::CheckSize(const RoundConfig& config) const {
  const size_t most = std::max<size_t>(kMaxUpdates / config.tensors.size(), 1);
  if (client_ids_.size() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a batch of ", client_ids_.size(), " submissions; at most ", most,
                                                 " are allowed for ", config.tensors.size(), " tensors"));
}

absl::Status SubmissionBatch::CheckLengths(Tuples& tuples) {
  const BatchSlice& slice = tuples.rest;
  switch (slice.slice.view.key_type) {
    case SliceView::Keys::kU32:
      tuples.key_bytes = sizeof(uint32_t);
      break;
    case SliceView::Keys::kU64:
      tuples.key_bytes = sizeof(uint64_t);
      break;
    case SliceView::Keys::kImplicit:
      break;
    default:
      return Invalid(slice, "keys must be U32, U64 or IMPLICIT");
  }
  if (slice.slice.is_partial) return Invalid(slice, "partials are sent one by one");
  if (slice.slice.view.value_packing == wire::ValuePacking::kInt8Scaled) {
    return Invalid(slice, "values must not be INT8_SCALED");
  }
  uint64_t total = 0;
  for (size_t i = 0; i < client_ids_.size(); ++i) total += Load<uint32_t>(tuples.num_keys + i * sizeof(uint32_t));
  if (slice.keys.size() != total * tuples.key_bytes) {
    return Invalid(slice, absl::StrCat(slice.keys.size(), " bytes of keys for ", total, " keys"));
  }
  if (total == 0 ? !slice.values.empty() : slice.values.size() % total != 0) {
    return Invalid(slice, absl::StrCat(slice.values.size(), " bytes of values for ", total, " keys"));
  }
  if (tuples.key_bytes == 0 && slice.values.empty()) keys_without_bytes_ += total;
  if (keys_without_bytes_ > kMaxKeysWithoutBytes) {
    return Invalid(slice, absl::StrCat("the batch has ", keys_without_bytes_, " keys without bytes; at most ",
                                       kMaxKeysWithoutBytes, " are allowed"));
  }
  if (total > 0) tuples.value_bytes = slice.values.size() / total;
  return absl::OkStatus();
}

Chunk& SubmissionBatch::Next() {
  chunk_.last = true;
  chunk_.slices.clear();
  if (weights_ != nullptr) {
    chunk_.weight = Load<double>(weights_);
    weights_ += sizeof(double);
  }
  for (Tuples& tuples : tuples_) {
    const auto num_keys = Load<uint32_t>(tuples.num_keys);
    tuples.num_keys += sizeof(uint32_t);
    if (num_keys == 0) continue;
    SliceView& view = chunk_.slices.emplace_back(tuples.rest.slice).view;
    view.num_keys = num_keys;
    view.keys = TakePrefix(tuples.rest.keys, num_keys * tuples.key_bytes);
    view.values = TakePrefix(tuples.rest.values, num_keys * tuples.value_bytes);
  }
  return chunk_;
}

void SubmitBatch(Intake& intake, absl::Span<const std::string> client_ids, const std::string& submission_id,
                 absl::FunctionRef<const Chunk&()> next, absl::FunctionRef<bool()> pause, BatchOutcome& outcome) {
  outcome.codes.reserve(client_ids.size());
  while (outcome.codes.size() < client_ids.size()) {
    const std::string& client_id = client_ids[outcome.codes.size()];
    const Chunk& chunk = next();
    const auto receipt = ToStatus([&]() -> absl::StatusOr<Receipt> {
      RETURN_IF_ERROR(intake.config().homes.CheckHome(client_id));
      return intake.Submit(client_id, submission_id, chunk);
    });
    if (receipt.ok()) {
      outcome.num_duplicates += receipt->duplicate ? 1 : 0;
      outcome.num_tuples += receipt->num_tuples;
      outcome.num_bytes += receipt->num_bytes;
    } else if (outcome.refused.size() < BatchOutcome::kMaxRefused) {
      outcome.refused.push_back({static_cast<uint32_t>(outcome.codes.size()), client_id,
                                 std::string(Shorten(receipt.status().message(), BatchOutcome::kMaxReasonBytes)),
                                 InfoOf(receipt.status())});
    }
    outcome.codes.push_back(static_cast<char>(receipt.status().code()));
    if (pause()) return;
  }
}

}  // namespace sparseagg::service
