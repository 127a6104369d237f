#include "host/merge_errors.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace sparseagg {
namespace {

std::string RowName(const TensorSpec& spec, const FailedRow& row) {
  const uint64_t least = spec.aggregation.min_contributors;
  return least > 1 && row.contributors < least
             ? absl::StrCat(Quoted(spec), ", a key of fewer contributors than min_contributors ", least)
             : absl::StrCat(Quoted(spec), ", key ", row.key);
}

}  // namespace

absl::Status ZeroWeightError(const TensorSpec& spec) {
  return absl::FailedPreconditionError(absl::StrCat(
      Quoted(spec), ": the weights of all submissions add up to 0, so there is no ", Name(spec.aggregation.op)));
}

absl::Status KeepsSubmissionsError(const TensorSpec& spec) {
  return absl::FailedPreconditionError(absl::StrCat(Quoted(spec), ": ", Name(spec.aggregation.op),
                                                    " needs all values of a key at once, so that submissions cannot be "
                                                    "folded before the close"));
}

absl::Status OverflowError(const TensorSpec& spec, const FailedRow& row, uint64_t column) {
  std::string name = RowName(spec, row);
  if (spec.row_width > 1) absl::StrAppend(&name, ", column ", column);
  return absl::OutOfRangeError(absl::StrCat(name, ": the ", Name(spec.aggregation.op), " overflows int64"));
}

}  // namespace sparseagg
