// Descriptions of specs and cases for failure messages.
#include <algorithm>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/generators.h"

namespace sparseagg::testing {
namespace {

constexpr size_t kMaxTuplesShown = 12;
constexpr size_t kMaxSubmissionsShown = 12;

std::string Describe(const TensorSpec& spec, const RawTensor& raw) {
  std::string text = absl::StrCat(raw.keys.size(), " keys");
  if (!raw.has_values) absl::StrAppend(&text, ", no values");
  const size_t row_bytes = spec.row_width * SizeOf(spec.dtype);
  for (size_t i = 0; i < std::min(raw.keys.size(), kMaxTuplesShown); ++i) {
    absl::StrAppend(&text, i == 0 ? ": " : ", ", raw.keys[i]);
    if (!raw.has_values || raw.values.size() < (i + 1) * row_bytes) continue;
    absl::StrAppend(&text, "→",
                    absl::BytesToHexString(raw.values.substr(i * row_bytes, std::min<size_t>(row_bytes, 32))));
  }
  if (raw.keys.size() > kMaxTuplesShown) absl::StrAppend(&text, ", …");
  if (raw.has_values && raw.values.size() != raw.keys.size() * row_bytes) {
    absl::StrAppend(&text, " (", raw.values.size(), " bytes of values)");
  }
  return text;
}

}  // namespace

std::string Describe(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  std::string text =
      absl::StrFormat("%s %s num_rows %u row_width %u %s%s", spec.name, std::string(Name(spec.dtype)), spec.num_rows,
                      spec.row_width, std::string(Name(a.op)), a.weighting == Weighting::kByWeight ? " by_weight" : "");
  if (spec.layout == Layout::kDense) absl::StrAppend(&text, " layout=dense");
  if (a.result_layout == ResultLayout::kDense) absl::StrAppend(&text, " result=dense");
  if (a.result_layout == ResultLayout::kAuto) absl::StrAppend(&text, " result=auto");
  if (a.dense_threshold) absl::StrAppend(&text, " dense_threshold=", *a.dense_threshold);
  if (a.result_dtype) absl::StrAppend(&text, " result_dtype=", Name(*a.result_dtype));
  if (a.return_counts) absl::StrAppend(&text, " counts");
  if (a.return_weights) absl::StrAppend(&text, " weights");
  if (a.return_moments) absl::StrAppend(&text, " moments");
  if (a.result_top_k != 0) absl::StrAppend(&text, " result_top_k=", a.result_top_k);
  if (a.result_min_norm != 0.0) absl::StrAppendFormat(&text, " result_min_norm=%a", a.result_min_norm);
  if (a.prune_zeros) absl::StrAppend(&text, " prune_zeros");
  if (a.min_contributors != 1) absl::StrAppend(&text, " min_contributors=", a.min_contributors);
  if (a.fill != 0.0) absl::StrAppend(&text, " fill=", a.fill);
  if (a.on_nonfinite == NonfinitePolicy::kPropagate) absl::StrAppend(&text, " propagate");
  if (a.on_empty == EmptyPolicy::kKeep) absl::StrAppend(&text, " on_empty=keep");
  if (a.numerics == Numerics::kBinned) absl::StrAppend(&text, " binned");
  return text;
}

std::string Describe(const Case& c) {
  std::string text = absl::StrCat("seed ", c.seed, "\n");
  for (const TensorSpec& spec : c.specs) absl::StrAppend(&text, "  ", Describe(spec), "\n");
  absl::StrAppend(&text, "  ", c.submissions.size(), " submissions\n");
  for (size_t i = 0; i < std::min(c.submissions.size(), kMaxSubmissionsShown); ++i) {
    const RawSubmission& submission = c.submissions[i];
    absl::StrAppendFormat(&text, "  '%s' weight %a\n", absl::CHexEscape(submission.client_id), submission.weight);
    for (size_t t = 0; t < c.specs.size(); ++t) {
      absl::StrAppend(&text, "    ", c.specs[t].name, ": ", Describe(c.specs[t], submission.tensors[t]), "\n");
    }
  }
  return text;
}

}  // namespace sparseagg::testing
