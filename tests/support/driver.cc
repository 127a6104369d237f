#include "tests/support/driver.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/updates/update_builder.h"
#include "tests/support/random.h"
#include "tests/support/results.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

using Keys = SliceView::Keys;

bool IsRun(const uint64_t* keys, size_t count) {
  for (size_t i = 1; i < count; ++i) {
    if (keys[i] != keys[i - 1] + 1 || keys[i] == 0) return false;
  }
  return count > 0;
}

Keys ChooseEncoding(const TensorSpec& spec, const uint64_t* keys, size_t count, Rng* rng) {
  if (spec.layout == Layout::kDense && (count == 0 || IsRun(keys, count))) return Keys::kImplicit;
  const bool fits_narrow =
      std::all_of(keys, keys + count, [](uint64_t key) { return key <= std::numeric_limits<uint32_t>::max(); });
  if (rng == nullptr) return fits_narrow && HasNarrowKeys(spec) ? Keys::kU32 : Keys::kU64;
  if (IsRun(keys, count) && rng->Coin()) return Keys::kImplicit;
  return fits_narrow && rng->Coin() ? Keys::kU32 : Keys::kU64;
}

// Appends keys [begin, end) and their values as one chunk.
absl::Status AppendPart(const TensorSpec& spec, const RawTensor& raw, size_t begin, size_t end, uint64_t chunk,
                        Rng* rng, UpdateBuilder& builder) {
  const uint64_t* keys = raw.keys.data() + begin;
  const size_t count = end - begin;
  SliceView slice;
  slice.key_type = ChooseEncoding(spec, keys, count, rng);
  std::string key_bytes;
  if (slice.key_type == Keys::kImplicit) {
    slice.first_key = count == 0 ? 0 : keys[0];
    slice.num_keys = count;
  } else {
    const DType word = slice.key_type == Keys::kU32 ? DType::kUInt32 : DType::kUInt64;
    for (size_t i = 0; i < count; ++i) AppendBits(word, keys[i], key_bytes);
    slice.keys = key_bytes;
  }
  slice.has_values = raw.has_values;
  if (raw.has_values) {
    const size_t row_bytes = spec.row_width * SizeOf(spec.dtype);
    const bool is_whole = begin == 0 && end == raw.keys.size();
    slice.values = is_whole ? absl::string_view(raw.values)
                            : absl::string_view(raw.values).substr(begin * row_bytes, count * row_bytes);
  }
  const auto checked = CheckedSlice::Create(spec, chunk, slice);
  return checked.ok() ? builder.Append(*checked) : checked.status();
}

absl::StatusOr<ValidatedUpdate> BuildUpdate(const TensorSpec& spec, const RawTensor& raw, double weight, Rng* rng) {
  UpdateBuilder builder(&spec);
  // Lengths that disagree cannot be cut into parts that agree.
  const bool can_cut =
      rng != nullptr && (!raw.has_values || raw.values.size() == raw.keys.size() * spec.row_width * SizeOf(spec.dtype));
  uint64_t chunk = 0;
  size_t begin = 0;
  while (can_cut && begin < raw.keys.size() && !rng->OneIn(4)) {
    const size_t end = begin + rng->Below(raw.keys.size() - begin + 1);  // may be empty
    RETURN_IF_ERROR(AppendPart(spec, raw, begin, end, chunk++, rng, builder));
    begin = end;
  }
  RETURN_IF_ERROR(AppendPart(spec, raw, begin, raw.keys.size(), chunk, rng, builder));
  return std::move(builder).Finish(weight);
}

std::string DisagreementOnSubmission(const std::vector<absl::Status>& flaws, const absl::Status& status) {
  if (flaws.empty()) return status.ok() ? "" : absl::StrCat("refused: ", status.ToString());
  for (const absl::Status& flaw : flaws) {
    if (status.code() == flaw.code()) return "";
  }
  return absl::StrCat(status.ok() ? "accepted" : status.ToString(), ", expected ", flaws.front().ToString());
}

std::string DisagreementOnFailure(const std::vector<TensorSpec>& specs, const std::vector<Failure>& failures,
                                  const absl::Status& status) {
  for (const Failure& failure : failures) {
    // The message names the tensor and the key, or says why it does not. All keys of a mean have the same divisor.
    const std::string key = failure.is_empty                                        ? std::string("on_empty")
                            : failure.code == absl::StatusCode::kFailedPrecondition ? "weights of all submissions"
                            : failure.is_key_named                                  ? absl::StrCat("key ", failure.key)
                                                                                    : "min_contributors";
    if (status.code() == failure.code && absl::StrContains(status.message(), specs[failure.tensor].name) &&
        absl::StrContains(status.message(), key)) {
      return "";
    }
  }
  const Failure& first = failures.front();
  return absl::StrCat(status.ok() ? "a result" : status.ToString(), ", expected ", absl::StatusCodeToString(first.code),
                      " naming '", specs[first.tensor].name, "' and key ", first.key);
}

// Whether partials keep the bits: no order matters, and sums of integer weights stay exact.
bool HavePartials(const std::vector<TensorSpec>& specs, const std::vector<RawSubmission>& submissions) {
  double weights = 0;
  for (const RawSubmission& submission : submissions)
    weights += submission.weight > 0 ? submission.weight : 0;  // NaN: 0
  return std::none_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
    const bool is_exact = !NeedsWeightSum(spec) || spec.aggregation.numerics != Numerics::kCanonical;
    return OrderMatters(spec) || (!is_exact && weights > 0x1p53);
  });
}

// Returns: a partial of an aggregation, in blocks of random sizes.
absl::StatusOr<std::string> ExportAll(Aggregation& aggregation, Rng& rng) {
  std::string bytes;
  for (size_t t = 0; t < aggregation.tensors().size(); ++t) {
    RETURN_IF_ERROR(aggregation.CheckExportsPartial(t));
    const uint64_t max_rows = uint64_t{1} << rng.Below(14);
    constexpr uint64_t kEnd = std::numeric_limits<uint64_t>::max();
    for (uint64_t first = 0;;) {
      ASSIGN_OR_RETURN(const PartialBlock block, aggregation.ExportPartial(t, first, kEnd, max_rows));
      AppendPartialBlock(aggregation.tensors()[t], block, bytes);
      if (block.last == kEnd) break;
      first = block.last + 1;
    }
  }
  return bytes;
}

absl::Status AddPartialOf(Aggregation& from, absl::string_view client, Rng& rng, Aggregation& into) {
  if (from.num_submissions() == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string bytes, ExportAll(from, rng));
  PartialBuilder builder(into.tensors());
  RETURN_IF_ERROR(builder.Append(bytes));
  ASSIGN_OR_RETURN(std::vector<PartialBlock> blocks, std::move(builder).Finish());
  ASSIGN_OR_RETURN(PreparedSubmission prepared, into.PreparePartial(std::move(blocks)));
  return into.Add(std::string(client), std::move(prepared));
}

absl::StatusOr<std::unique_ptr<Aggregation>> MergePartials(Engine& engine, const std::vector<TensorSpec>& specs,
                                                           std::vector<std::unique_ptr<Aggregation>> leaves, Rng& rng) {
  ASSIGN_OR_RETURN(std::unique_ptr<Aggregation> root, Aggregation::Create(engine, specs));
  ASSIGN_OR_RETURN(const std::unique_ptr<Aggregation> relay, Aggregation::Create(engine, specs));
  rng.Shuffle(leaves);
  for (size_t i = 0; i < leaves.size(); ++i) {
    RETURN_IF_ERROR(AddPartialOf(*leaves[i], absl::StrCat("leaf ", i), rng, i < leaves.size() / 2 ? *root : *relay));
  }
  RETURN_IF_ERROR(AddPartialOf(*relay, "relay", rng, *root));
  return root;
}

}  // namespace

absl::StatusOr<std::vector<ValidatedUpdate>> BuildUpdates(const std::vector<TensorSpec>& specs,
                                                          const RawSubmission& submission,
                                                          std::optional<uint64_t> chunk_seed) {
  std::optional<Rng> rng;
  if (chunk_seed.has_value()) rng.emplace(*chunk_seed);
  std::vector<ValidatedUpdate> updates;
  for (size_t t = 0; t < specs.size(); ++t) {
    ASSIGN_OR_RETURN(ValidatedUpdate update, BuildUpdate(specs[t], submission.tensors[t], submission.weight,
                                                         rng.has_value() ? &*rng : nullptr));
    updates.push_back(std::move(update));
  }
  return updates;
}

absl::Status Submit(Aggregation& aggregation, const RawSubmission& submission, std::optional<uint64_t> chunk_seed) {
  ASSIGN_OR_RETURN(std::vector<ValidatedUpdate> updates, BuildUpdates(aggregation.tensors(), submission, chunk_seed));
  ASSIGN_OR_RETURN(PreparedSubmission prepared, aggregation.Prepare(std::move(updates)));
  return aggregation.Add(submission.client_id, std::move(prepared));
}

Driven Drive(Engine& engine, const std::vector<TensorSpec>& specs, const std::vector<RawSubmission>& submissions,
             const DriveOptions& options) {
  Driven driven;
  driven.submissions.resize(submissions.size());
  Rng rng(options.shuffle_seed.value_or(0));
  std::vector<size_t> order(submissions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (options.shuffle_seed.has_value()) rng.Shuffle(order);
  Rng fold_rng(options.fold_seed.value_or(0));
  if (options.fold_seed.has_value()) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return submissions[a].client_id < submissions[b].client_id; });
  }

  std::vector<std::unique_ptr<Aggregation>> aggregations;
  for (int i = 0; i < options.num_aggregations; ++i) {
    absl::StatusOr<std::unique_ptr<Aggregation>> aggregation = Aggregation::Create(engine, specs);
    if (!aggregation.ok()) {
      driven.results = aggregation.status();
      return driven;
    }
    aggregations.push_back(*std::move(aggregation));
  }
  for (const size_t i : order) {
    Aggregation& aggregation = *aggregations[rng.Below(aggregations.size())];
    std::optional<uint64_t> chunk_seed;
    if (options.shuffle_seed.has_value()) chunk_seed = rng.Bits();
    driven.submissions[i] = Submit(aggregation, submissions[i], chunk_seed);
    if (!options.fold_seed.has_value() || !fold_rng.Coin()) continue;
    if (absl::Status status = aggregation.FoldPending(); !status.ok()) {
      driven.results = status;
      return driven;
    }
  }
  if (options.partial_engine != nullptr && HavePartials(specs, submissions)) {
    auto root = MergePartials(*options.partial_engine, specs, std::move(aggregations), rng);
    driven.results = root.ok() ? std::move(**root).Finish() : root.status();
    return driven;
  }
  while (aggregations.size() > 1) {
    rng.Shuffle(aggregations);
    std::unique_ptr<Aggregation> other = std::move(aggregations.back());
    aggregations.pop_back();
    if (absl::Status status = aggregations.back()->MergeFrom(std::move(*other)); !status.ok()) {
      driven.results = status;
      return driven;
    }
  }
  driven.results = std::move(*aggregations.front()).Finish();
  return driven;
}

std::string Disagreement(const std::vector<TensorSpec>& specs, const Driven& driven, const Verdict& verdict) {
  for (size_t i = 0; i < driven.submissions.size(); ++i) {
    std::string text = DisagreementOnSubmission(verdict.flaws[i], driven.submissions[i]);
    if (!text.empty()) return absl::StrCat("submission ", i, ": ", text);
  }
  if (!verdict.failures.empty()) return DisagreementOnFailure(specs, verdict.failures, driven.results.status());
  if (!driven.results.ok()) return absl::StrCat("no result: ", driven.results.status().ToString());
  return Diff(*driven.results, verdict.results);
}

}  // namespace sparseagg::testing
