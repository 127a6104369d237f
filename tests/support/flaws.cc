// The reference for refusals: which submissions are refused, and with which code.
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/fold.h"
#include "tests/support/reference.h"
#include "tests/support/rules.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

class FlawFinder {
 public:
  FlawFinder(const TensorSpec& spec, const RawSubmission& submission, const RawTensor& raw,
             std::vector<absl::Status>& flaws)
      : spec_(spec), submission_(submission), raw_(raw), flaws_(flaws) {}

  void Find() {
    CheckWeight();
    CheckKeys();
    if (!CheckLengths()) return;
    CheckNonfinite();
    // Only a submission that is well formed has terms to look at.
    if (flaws_.empty()) CheckTerms();
  }

 private:
  void Invalid(const std::string& problem) {
    flaws_.push_back(absl::InvalidArgumentError(absl::StrCat("tensor '", spec_.name, "': ", problem)));
  }

  bool by_weight() const { return spec_.aggregation.weighting == Weighting::kByWeight; }

  void CheckWeight() {
    const double w = submission_.weight;
    if (!(w >= 0.0) || std::isinf(w)) return Invalid(absl::StrCat("weight ", w));
    if (!by_weight()) return;
    if (w > std::ldexp(1.0, 960)) return Invalid(absl::StrCat("weight ", w));
    if (IsSignedInteger(spec_.dtype) && (std::trunc(w) != w || w >= 9007199254740992.0)) {
      Invalid(absl::StrCat("weight ", w, " for integers"));
    }
  }

  void CheckKeys() {
    for (const uint64_t key : raw_.keys) {
      if (spec_.num_rows != 0 && key >= spec_.num_rows) return Invalid(absl::StrCat("key ", key));
    }
    if (spec_.layout != Layout::kDense) return;
    bool complete = raw_.keys.size() == spec_.num_rows;
    for (uint64_t i = 0; complete && i < spec_.num_rows; ++i) complete = raw_.keys[i] == i;
    if (!complete) Invalid("dense, but not all rows in order");
  }

  bool CheckLengths() {
    if (!raw_.has_values) {
      if (spec_.aggregation.op == Op::kUnion) return true;
      Invalid("no values");
      return false;
    }
    if (raw_.values.size() == raw_.keys.size() * spec_.row_width * SizeOf(spec_.dtype)) return true;
    Invalid("keys and values differ in length");
    return false;
  }

  void CheckNonfinite() {
    if (!IsFloat(spec_.dtype) || spec_.aggregation.on_nonfinite == NonfinitePolicy::kPropagate) return;
    const size_t size = SizeOf(spec_.dtype);
    for (size_t at = 0; at < raw_.values.size(); at += size) {
      const double value = ReadFloat(spec_.dtype, raw_.values.data() + at);
      if (!std::isfinite(value)) return Invalid(absl::StrCat("value ", value));
    }
  }

  // What a submission adds to a sum, or hands to MIN and MAX.
  void CheckTerms() {
    const Op op = spec_.aggregation.op;
    if (op == Op::kUnion || spec_.modular) return;
    const bool is_sum = op != Op::kMin && op != Op::kMax;
    const double weight = by_weight() && is_sum ? submission_.weight : 1.0;
    for (const FoldedRow& row : Fold(spec_, raw_)) {
      for (const Int128 value : row.integers) {
        // A folded row that is no int64 itself is as wrong as one that its weight makes so.
        if (!IsInt64(value) || !IsInt64(value * static_cast<Int128>(weight))) {
          flaws_.push_back(absl::OutOfRangeError(absl::StrCat("tensor '", spec_.name, "': key ", row.key)));
          return;
        }
      }
    }
  }

  static bool IsInt64(Int128 x) {
    return x >= std::numeric_limits<int64_t>::min() && x <= std::numeric_limits<int64_t>::max();
  }

  const TensorSpec& spec_;
  const RawSubmission& submission_;
  const RawTensor& raw_;
  std::vector<absl::Status>& flaws_;
};

}  // namespace

std::vector<absl::Status> Flaws(const std::vector<TensorSpec>& specs, const RawSubmission& submission) {
  std::vector<absl::Status> flaws;
  for (size_t t = 0; t < specs.size(); ++t) {
    std::vector<absl::Status> of_tensor;
    FlawFinder(specs[t], submission, submission.tensors[t], of_tensor).Find();
    flaws.insert(flaws.end(), of_tensor.begin(), of_tensor.end());
  }
  return flaws;
}

}  // namespace sparseagg::testing
