#include "host/no_result.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace sparseagg {
namespace {

std::string Place(const TensorSpec& spec, const FailedRow& row) {
  const uint64_t least = spec.aggregation.min_contributors;
  return least > 1 && row.contributors < least
             ? absl::StrCat(Quoted(spec), ", a key of fewer contributors than min_contributors ", least)
             : absl::StrCat(Quoted(spec), ", key ", row.key);
}

}  // namespace

absl::Status NoWeight(const TensorSpec& spec, const FailedRow& row) {
  const Op op = spec.aggregation.op;
  return absl::FailedPreconditionError(absl::StrCat(Place(spec, row), ": the weights of ",
                                                    op == Op::kMean ? "all submissions" : "its contributors",
                                                    " add up to 0, so there is no ", Name(op)));
}

absl::Status LeavesInt64(const TensorSpec& spec, const FailedRow& row, uint64_t column) {
  std::string place = Place(spec, row);
  if (spec.width > 1) absl::StrAppend(&place, ", column ", column);
  return absl::OutOfRangeError(absl::StrCat(place, ": the ", Name(spec.aggregation.op), " leaves int64"));
}

}  // namespace sparseagg
