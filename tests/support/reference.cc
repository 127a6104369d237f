#include "tests/support/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/exact_bins.h"
#include "tests/support/fold.h"
#include "tests/support/rules.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

// One submission's row at one key, with the submission's weight (1 under kUniform).
struct Contribution {
  FoldedRow row;
  size_t rank = 0;  // of the client in ascending bytewise order
  double weight = 1.0;
};

using Contributions = std::vector<Contribution>;

// One key of the result.
struct OutputRow {
  uint64_t key = 0;
  std::string values;
  bool is_zero = false;
  uint32_t count = 0;
  double weight = 0.0;
  std::vector<double> moments;
};

class TensorReference {
 public:
  // `submissions` in ascending order of client id; all of them count.
  TensorReference(const TensorSpec& spec, size_t tensor, const std::vector<const RawSubmission*>& submissions)
      : spec_(spec), a_(spec.aggregation), tensor_(tensor), num_submissions_(submissions.size()) {
    std::vector<double> weights;
    for (size_t rank = 0; rank < submissions.size(); ++rank) {
      const double weight = a_.weighting == Weighting::kByWeight ? submissions[rank]->weight : 1.0;
      weights.push_back(weight);
      for (FoldedRow& row : Fold(spec, submissions[rank]->tensors[tensor])) {
        contributions_.push_back({std::move(row), rank, weight});
      }
    }
    round_weight_ = SumWeights(weights, false);
  }

  Result Run(std::vector<Failure>& failures) {
    if (IsEmptyDense() && a_.on_empty == EmptyPolicy::kFail) {
      failures.push_back({absl::StatusCode::kFailedPrecondition, tensor_, 0, false, /*is_empty=*/true});
    }
    std::sort(contributions_.begin(), contributions_.end(), [](const Contribution& x, const Contribution& y) {
      return std::pair(x.row.key, x.rank) < std::pair(y.row.key, y.rank);
    });
    std::vector<OutputRow> rows;
    for (size_t begin = 0, end = 0; begin < contributions_.size(); begin = end) {
      while (end < contributions_.size() && contributions_[end].row.key == contributions_[begin].row.key) ++end;
      OutputRow row = Merge(begin, end);
      if (a_.op == Op::kCoordinateMean && row.weight == 0.0) {  // it has no mean
        if (spec_.layout == Layout::kDense) Fail(absl::StatusCode::kFailedPrecondition, row.key);
        continue;
      }
      if (a_.prune_zeros && row.is_zero && a_.op != Op::kUnion) continue;
      if (row.count < a_.min_contributors) continue;
      rows.push_back(std::move(row));
    }
    for (const auto& [code, key] : failed_keys_) {
      const auto contributors = std::count_if(contributions_.begin(), contributions_.end(),
                                              [key = key](const Contribution& c) { return c.row.key == key; });
      const bool is_hidden = a_.min_contributors > 1 && static_cast<uint64_t>(contributors) < a_.min_contributors;
      failures.push_back({code, tensor_, key, !is_hidden});
    }
    const size_t num_before = rows.size();
    if (failed_keys_.empty()) Cut(rows);  // else there is no result, and failed rows lack values
    return Assemble(rows, num_before - rows.size());
  }

 private:
  // ---- one key: contributions_[begin, end)

  OutputRow Merge(size_t begin, size_t end) {
    OutputRow row;
    row.key = contributions_[begin].row.key;
    row.count = static_cast<uint32_t>(end - begin);
    std::vector<double> weights;
    for (size_t i = begin; i < end; ++i) weights.push_back(contributions_[i].weight);
    row.weight = SumWeights(weights, !IsSum(a_.op) || !IsFloat(spec_.dtype));
    if (a_.op == Op::kUnion) return row;

    double denominator = 1.0;
    if (a_.op == Op::kMean) denominator = round_weight_;
    if (a_.op == Op::kCoordinateMean) denominator = row.weight;
    if (denominator == 0.0 && a_.op == Op::kCoordinateMean) return row;
    if (denominator == 0.0) Fail(absl::StatusCode::kFailedPrecondition, row.key);

    for (uint32_t column = 0; column < spec_.row_width; ++column) {
      if (IsFloat(spec_.dtype)) {
        AppendFloat(FloatColumn(begin, end, column, denominator), row.values);
      } else {
        AppendInteger(IntegerColumn(begin, end, column), denominator, row.key, row.values);
      }
    }
    if (a_.return_moments) {
      for (uint32_t column = 0; column < spec_.row_width; ++column) row.moments.push_back(Moment(begin, end, column));
    }
    row.is_zero = std::all_of(row.values.begin(), row.values.end(), [](char byte) { return byte == 0; });
    return row;
  }

  double FloatColumn(size_t begin, size_t end, uint32_t column, double denominator) const {
    if (a_.op == Op::kMin || a_.op == Op::kMax) return Extreme(begin, end, column);
    double sum = +0.0;
    ExactBins bins = spec_.dtype == DType::kFloat64 ? ExactBins(3, 40) : ExactBins(2, 44);
    for (size_t i = begin; i < end; ++i) {
      const double term = contributions_[i].weight * contributions_[i].row.floats[column];
      sum += term;
      bins.Add(term);
    }
    if (a_.numerics == Numerics::kBinned) sum = bins.Value();
    return IsMean() ? sum / denominator : sum;
  }

  double Extreme(size_t begin, size_t end, uint32_t column) const {
    double extreme = contributions_[begin].row.floats[column];
    for (size_t i = begin; i < end; ++i) {
      const double value = contributions_[i].row.floats[column];
      if (std::isnan(value)) return value;
      if (a_.op == Op::kMin ? value < extreme : value > extreme) extreme = value;
    }
    return extreme;
  }

  Int128 IntegerColumn(size_t begin, size_t end, uint32_t column) const {
    Int128 result = a_.op == Op::kMin || a_.op == Op::kMax ? contributions_[begin].row.integers[column] : 0;
    for (size_t i = begin; i < end; ++i) {
      const Int128 value = contributions_[i].row.integers[column];
      if (a_.op == Op::kMin) {
        result = std::min(result, value);
      } else if (a_.op == Op::kMax) {
        result = std::max(result, value);
      } else {
        result += value * static_cast<Int128>(contributions_[i].weight);
      }
    }
    return result;
  }

  double Moment(size_t begin, size_t end, uint32_t column) const {
    double sum = +0.0;
    for (size_t i = begin; i < end; ++i) {
      const FoldedRow& row = contributions_[i].row;
      const double value =
          IsFloat(spec_.dtype) ? row.floats[column] : static_cast<double>(static_cast<int64_t>(row.integers[column]));
      const double square = value * value;
      sum += contributions_[i].weight * square;
    }
    return std::isnan(sum) ? std::numeric_limits<double>::quiet_NaN() : sum;
  }

  void AppendFloat(double value, std::string& bytes) const {
    AppendBits(DTypeOfResult(spec_), RoundToBits(DTypeOfResult(spec_), value), bytes);
  }

  void AppendInteger(Int128 total, double denominator, uint64_t key, std::string& bytes) {
    const DType dtype = DTypeOfResult(spec_);
    if (spec_.modular) return AppendBits(dtype, static_cast<uint64_t>(total), bytes);
    if (total < std::numeric_limits<int64_t>::min() || total > std::numeric_limits<int64_t>::max()) {
      return Fail(absl::StatusCode::kOutOfRange, key);
    }
    const auto exact = static_cast<int64_t>(total);
    if (!IsMean()) {
      // Directly from int64 to float32, since a detour over float64 rounds twice.
      if (dtype == DType::kFloat32) return AppendFloat(static_cast<double>(static_cast<float>(exact)), bytes);
      if (dtype == DType::kFloat64) return AppendFloat(static_cast<double>(exact), bytes);
      return AppendBits(dtype, static_cast<uint64_t>(exact), bytes);
    }
    const double mean = static_cast<double>(exact) / denominator;
    if (IsFloat(dtype)) return AppendFloat(mean, bytes);
    const double rounded = std::nearbyint(mean);
    if (!(rounded >= -9223372036854775808.0 && rounded < 9223372036854775808.0)) {
      // 0/0 is the failure of a mean of no weight, which Merge has recorded already.
      if (denominator != 0.0) Fail(absl::StatusCode::kOutOfRange, key);
      return;
    }
    AppendBits(dtype, static_cast<uint64_t>(static_cast<int64_t>(rounded)), bytes);
  }

  bool IsMean() const { return a_.op == Op::kMean || a_.op == Op::kCoordinateMean; }

  // Weights in ascending order of client id.
  double SumWeights(const std::vector<double>& weights, bool is_binned) const {
    if (a_.weighting == Weighting::kUniform) return static_cast<double>(weights.size());
    double sum = +0.0;
    ExactBins bins(3, 40);
    for (const double weight : weights) {
      bins.Add(weight);
      sum += weight;
    }
    return is_binned || a_.numerics == Numerics::kBinned ? bins.Value() : sum;
  }

  void Fail(absl::StatusCode code, uint64_t key) { failed_keys_.emplace(code, key); }  // keys come in ascending order

  // ---- the tensor

  // Σx² of a finished row, in eight lanes by the column; infinite in place of NaN.
  double SquaredNorm(const OutputRow& row) const {
    const DType dtype = DTypeOfResult(spec_);
    double lanes[8] = {};
    for (uint32_t column = 0; column < spec_.row_width; ++column) {
      const char* const at = row.values.data() + column * SizeOf(dtype);
      const double value = IsFloat(dtype) ? ReadFloat(dtype, at) : static_cast<double>(ReadInteger(dtype, at));
      lanes[column % 8] += value * value;
    }
    const double sum =
        ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    return std::isnan(sum) ? std::numeric_limits<double>::infinity() : sum;
  }

  void Cut(std::vector<OutputRow>& rows) const {
    if (a_.result_top_k == 0 && a_.result_min_norm == 0.0) return;
    std::vector<std::pair<double, uint64_t>> ranked;  // larger norms first, then lower keys
    for (const OutputRow& row : rows) {
      const double squared = SquaredNorm(row);
      if (std::sqrt(squared) >= a_.result_min_norm) ranked.emplace_back(-squared, row.key);
    }
    std::sort(ranked.begin(), ranked.end());
    if (a_.result_top_k != 0 && ranked.size() > a_.result_top_k) ranked.resize(a_.result_top_k);
    std::set<uint64_t> kept;
    for (const auto& [norm, key] : ranked) kept.insert(key);
    rows.erase(std::remove_if(rows.begin(), rows.end(), [&](const OutputRow& row) { return kept.count(row.key) == 0; }),
               rows.end());
  }

  bool IsEmptyDense() const { return spec_.layout == Layout::kDense && num_submissions_ == 0; }

  bool IsDense(uint64_t num_keys) const {
    if (IsEmptyDense()) return false;
    if (a_.result_layout != ResultLayout::kAuto) return a_.result_layout == ResultLayout::kDense;
    if (spec_.num_rows == 0) return false;
    const Int128 key_bytes = spec_.num_rows <= 4294967296 ? 4 : 8;
    const Int128 row_bytes =
        a_.op == Op::kUnion ? Int128{4} : Int128{spec_.row_width} * Int128{SizeOf(DTypeOfResult(spec_))};
    if (Int128{num_keys} * (key_bytes + row_bytes) >= Int128{spec_.num_rows} * row_bytes) return true;
    return a_.dense_threshold.has_value() &&
           static_cast<double>(num_keys) / static_cast<double>(spec_.num_rows) >= *a_.dense_threshold;
  }

  std::string FillRow() const {
    if (a_.op == Op::kUnion) return "";
    const DType dtype = DTypeOfResult(spec_);
    std::string bytes;
    for (uint32_t column = 0; column < spec_.row_width; ++column) {
      if (IsFloat(dtype)) {
        AppendFloat(a_.fill, bytes);
      } else {
        AppendBits(dtype, static_cast<uint64_t>(static_cast<Int128>(a_.fill)), bytes);
      }
    }
    return bytes;
  }

  Result Assemble(const std::vector<OutputRow>& rows, uint64_t num_cut_keys) const {
    Result result;
    result.num_cut_keys = num_cut_keys;
    const bool dense = IsDense(rows.size());
    result.layout = dense ? Layout::kDense : Layout::kSparse;
    result.dtype = DTypeOfResult(spec_);
    result.has_values = a_.op != Op::kUnion;
    result.row_width = spec_.row_width;
    result.num_rows = spec_.num_rows;
    result.num_keys = dense ? spec_.num_rows : rows.size();

    OutputRow absent;
    absent.values = FillRow();
    if (a_.return_moments) absent.moments.resize(spec_.row_width, 0.0);
    std::vector<uint64_t> keys;
    std::string values;
    auto next = rows.begin();
    for (uint64_t r = 0; r < result.num_keys; ++r) {
      const bool present = !dense || (next != rows.end() && next->key == r);
      const OutputRow& row = present ? *next++ : absent;
      if (!dense) keys.push_back(row.key);
      values += row.values;
      if (HasCounts(spec_)) result.counts.push_back(row.count);
      if (a_.return_weights) result.weights.push_back(row.weight);
      for (const double moment : row.moments) result.moments.push_back(moment);
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    result.values = {bytes, bytes + values.size()};
    if (spec_.num_rows != 0 && spec_.num_rows <= 4294967296) {
      result.keys.emplace<0>(keys.begin(), keys.end());
    } else {
      result.keys.emplace<1>(keys.begin(), keys.end());
    }
    return result;
  }

  const TensorSpec& spec_;
  const AggregationSpec& a_;
  const size_t tensor_;
  const size_t num_submissions_;
  std::vector<Contribution> contributions_;
  double round_weight_ = 0.0;
  std::map<absl::StatusCode, uint64_t> failed_keys_;
};

}  // namespace

Verdict Judge(const std::vector<TensorSpec>& specs, const std::vector<RawSubmission>& submissions) {
  Verdict verdict;
  std::map<std::string, const RawSubmission*> accepted;  // std::string compares bytes as unsigned numbers
  for (const RawSubmission& submission : submissions) {
    std::vector<absl::Status> flaws = Flaws(specs, submission);
    if (flaws.empty() && !accepted.emplace(submission.client_id, &submission).second) {
      flaws.push_back(absl::AlreadyExistsError(absl::StrCat("client '", submission.client_id, "'")));
    }
    verdict.flaws.push_back(std::move(flaws));
  }
  std::vector<const RawSubmission*> in_order;
  for (const auto& [client_id, submission] : accepted) in_order.push_back(submission);
  for (size_t t = 0; t < specs.size(); ++t) {
    verdict.results.push_back(TensorReference(specs[t], t, in_order).Run(verdict.failures));
  }
  if (!verdict.failures.empty()) verdict.results.clear();
  return verdict;
}

absl::StatusOr<std::vector<Result>> Reference(const std::vector<TensorSpec>& specs,
                                              const std::vector<RawSubmission>& submissions) {
  Verdict verdict = Judge(specs, submissions);
  if (verdict.failures.empty()) return std::move(verdict.results);
  const Failure& first = verdict.failures.front();
  const std::string place = first.is_empty       ? std::string("on_empty")
                            : first.is_key_named ? absl::StrCat("key ", first.key)
                                                 : absl::StrCat("a key of fewer than min_contributors ",
                                                                specs[first.tensor].aggregation.min_contributors);
  return absl::Status(first.code, absl::StrCat("tensor '", specs[first.tensor].name, "': ", place));
}

}  // namespace sparseagg::testing
