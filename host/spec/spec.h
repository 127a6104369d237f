// Specification of one tensor and of its aggregation.
#ifndef SPARSEAGG_HOST_SPEC_SPEC_H_
#define SPARSEAGG_HOST_SPEC_SPEC_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "host/base/binned.h"
#include "host/spec/clip.h"
#include "host/spec/dtype.h"
#include "host/spec/privacy.h"

namespace sparseagg {

// Whether a submission that does not list a key votes in the key's order statistic.
enum class AbsentPolicy : uint8_t {
  kSkip,  // no
  kZero,  // it votes for 0, with its weight
};

struct OrderOptions {
  std::optional<double> trim_fraction;  // of the values, at either end; Op::kTrimmedMean needs it; in [0, 0.5)
  std::optional<double> quantile;       // Op::kQuantile needs it; in [0, 1]
  AbsentPolicy absent = AbsentPolicy::kSkip;
};

// Returns: b, the number of values that a trimmed mean of `n` ≥ 1 values drops at either end; 2b < n. ⌊fraction · n⌋ is
// taken of the float64 product, as SciPy's trim_mean does, so that 0.3 of 10 is 3. Rounding does not make a product
// n/2: float64 is finer below a number than a fraction under ½ is far from ½.
uint64_t TrimOf(const OrderOptions& options, uint64_t n);

// Returns: the index, in ascending order, of the unweighted q-quantile of n ≥ 1 values: NumPy's "inverted_cdf".
uint64_t QuantileIndex(double q, uint64_t n);

// The operators. v_k(i): the row of submission k at key i; w_k: its weight (1 under kUniform); C(i): the contributors
// of i.
enum class Op : uint8_t {
  kSum,             // Σ_{C(i)} w_k·v_k(i)
  kMean,            // Σ_{C(i)} w_k·v_k(i) / Σ w_k over all submissions
  kCoordinateMean,  // Σ_{C(i)} w_k·v_k(i) / Σ_{C(i)} w_k
  kUnion,           // keys and counts, no values
  kMin,             // element-wise minimum over C(i), unweighted
  kMax,             // element-wise maximum over C(i), unweighted
  // Order statistics, element-wise over C(i) (order.h, docs/robust.md).
  kMedian,
  kTrimmedMean,
  kQuantile,
};

enum class Weighting : uint8_t { kUniform, kByWeight };

// How the keys of a tensor are sent, and of a result are stored.
enum class Layout : uint8_t { kSparse, kDense };

// kAuto: dense as soon as dense is not larger, or as the density reaches dense_threshold (IsDenseResult).
enum class ResultLayout : uint8_t { kSparse, kDense, kAuto };

enum class Numerics : uint8_t {
  kCanonical,  // float64 left fold in order of client id
  kBinned,     // BinnedSum, in any order; for sums and means of floats
};

// What happens to NaN and ±Inf in an update.
enum class NonfinitePolicy : uint8_t { kReject, kPropagate };

// What MEAN divides its sums by.
enum class MeanDivisor : uint8_t {
  kWeights,      // the sum of the weights of all submissions
  kSubmissions,  // the number of submissions
  kFixed,        // fixed_divisor, which tells nothing of the submissions
};

// What an aggregation without submissions means for a tensor of dense layout. A sparse tensor's result is then empty.
enum class EmptyPolicy : uint8_t {
  kFail,  // the aggregation fails: there is no mean of nothing, and a dense result would be taken for one
  kKeep,  // the result is sparse and has no rows, whatever result_layout says
};

// "sum", "coordinate_mean", … as in the Python API.
absl::string_view Name(Op op);

// Returns: whether the op needs all values of a key at once, so that submissions are kept until Finish.
constexpr bool IsOrderStatistic(Op op) { return op == Op::kMedian || op == Op::kTrimmedMean || op == Op::kQuantile; }

// Returns: whether the op adds up weighted values.
constexpr bool IsSum(Op op) { return op == Op::kSum || op == Op::kMean || op == Op::kCoordinateMean; }

// How one tensor is aggregated.
struct AggregationSpec {
  Op op = Op::kSum;
  Weighting weighting = Weighting::kUniform;
  ResultLayout result_layout = ResultLayout::kSparse;
  Numerics numerics = Numerics::kCanonical;
  bool return_counts = false;  // kUnion returns counts in any case
  bool return_weights = false;
  bool return_moments = false;            // Σ_{C(i)} w_k·v_k(i)² of each column, in float64
  uint32_t min_contributors = 1;          // keys with fewer contributors are removed from the result
  bool prune_zeros = false;               // removes keys whose whole row is zero
  double fill = 0.0;                      // value of absent keys in a dense result
  std::optional<double> dense_threshold;  // in (0, 1]
  std::optional<DType> result_dtype;      // kFloat32 or kFloat64; default: the tensor's
  NonfinitePolicy on_nonfinite = NonfinitePolicy::kReject;
  EmptyPolicy on_empty = EmptyPolicy::kFail;
  MeanDivisor mean_divisor = MeanDivisor::kWeights;
  double fixed_divisor = 0.0;  // for kFixed; 0: not given
  // Of the rows of the finished result, which stay (CutResult).
  uint64_t result_top_k = 0;     // those of the largest L2 norms, at most so many; 0: all
  double result_min_norm = 0.0;  // those of this L2 norm or more; 0: all
  OrderOptions order;
  uint64_t max_submissions = 0;  // of the round; 0: not given. Sums with privacy have room for so many
};

// One tensor of an aggregation.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t num_rows = 0;   // size of the key space; 0: all of uint64
  uint32_t row_width = 1;  // values per key
  Layout layout = Layout::kSparse;
  bool modular = false;  // unsigned sums that wrap by definition
  AggregationSpec aggregation;
  TensorClip clip;                                      // set by ResolveClips
  std::optional<TensorPrivacy> privacy = std::nullopt;  // set by ResolvePrivacy
};

// Checks that every combination of fields in `spec` has a meaning.
// Errors: INVALID_ARGUMENT names tensor, field and value.
absl::Status Validate(const TensorSpec& spec);

// Whether keys of this tensor are stored in 32 bits.
constexpr bool HasNarrowKeys(const TensorSpec& spec) {
  return spec.num_rows != 0 && spec.num_rows <= (uint64_t{1} << 32);
}

// Bytes of a key as stored.
constexpr size_t KeyBytes(const TensorSpec& spec) { return HasNarrowKeys(spec) ? sizeof(uint32_t) : sizeof(uint64_t); }

// Dtype of the result's values: result_dtype if given, otherwise the tensor's own, with int64 for int32. Meaningless
// for kUnion, which has no values.
inline DType ResultDType(const TensorSpec& spec) {
  return spec.aggregation.result_dtype.value_or(spec.dtype == DType::kInt32 ? DType::kInt64 : spec.dtype);
}

// Returns: the values that are summed, or otherwise folded, for each key; 0 for kUnion.
inline uint32_t NumColumns(const TensorSpec& spec) { return spec.aggregation.op == Op::kUnion ? 0 : spec.row_width; }

// Whether finishing needs the sum of the weights of each key's contributors, and their number does not tell it.
inline bool NeedsKeyWeights(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  return a.weighting == Weighting::kByWeight && (a.op == Op::kCoordinateMean || a.return_weights);
}

// Whether the sums of weights at keys are WideBinnedSum: of all tensors but those that sum floats in order.
inline bool BinsKeyWeights(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  const bool is_ordered_sum = IsSum(a.op) && IsFloat(spec.dtype) && a.numerics == Numerics::kCanonical;
  return NeedsKeyWeights(spec) && !is_ordered_sum;
}

// Returns: the most submissions that the tensor's binned sums take; 2^64 − 1 if it has none.
inline uint64_t MaxBinnedSubmissions(const TensorSpec& spec) {
  if (spec.aggregation.numerics == Numerics::kBinned) {
    return spec.dtype == DType::kFloat64 ? WideBinnedSum::kMaxTerms : NarrowBinnedSum::kMaxTerms;
  }
  return BinsKeyWeights(spec) ? WideBinnedSum::kMaxTerms : std::numeric_limits<uint64_t>::max();
}

// Returns: what those are sums of, for error texts.
inline absl::string_view BinnedTerms(const TensorSpec& spec) {
  return spec.aggregation.numerics == Numerics::kBinned ? Name(spec.dtype) : "weights";
}

inline bool ReturnsCounts(const TensorSpec& spec) {
  return spec.aggregation.return_counts || spec.aggregation.op == Op::kUnion;
}

// Whether finishing needs the number of contributors of each key.
inline bool NeedsCounts(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  const bool weights_are_counts = a.weighting == Weighting::kUniform;
  return ReturnsCounts(spec) || a.min_contributors > 1 ||
         (weights_are_counts && (a.return_weights || a.op == Op::kCoordinateMean));
}

// Whether the result depends on the order of submissions: canonical float sums, of values or of their squares; and
// order statistics, which break ties by it.
// Where it does not, submissions may be merged as they arrive. Sums with privacy are of integers.
inline bool OrderMatters(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (IsOrderStatistic(a.op) || a.return_moments) return true;
  if (a.numerics == Numerics::kBinned || spec.privacy.has_value()) return false;
  return IsSum(a.op) && IsFloat(spec.dtype);
}

// Whether finishing divides by the sum of the weights of all submissions.
inline bool NeedsWeightSum(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  return a.op == Op::kMean && a.mean_divisor == MeanDivisor::kWeights && a.weighting == Weighting::kByWeight;
}

// Whether the op multiplies values by weights; others compare values, or count them.
inline bool MultipliesByWeight(Op op) { return IsSum(op) || op == Op::kTrimmedMean; }

// Whether result_top_k and result_min_norm are for this tensor: the result is sparse, and its rows have norms.
inline bool HasNorms(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  return a.result_layout == ResultLayout::kSparse && a.op != Op::kUnion && !spec.modular;
}

// Whether rows may be cut from the finished result.
inline bool HasCut(const TensorSpec& spec) {
  return spec.aggregation.result_top_k != 0 || spec.aggregation.result_min_norm != 0.0;
}

// Whether the weights of its submissions may be multiplied (Accumulator::MultiplyWeights): the op uses weights, and the
// submissions are kept until the close. Terms of integers, and with privacy, have their weights on arrival.
inline bool TakesFactors(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  const bool uses_weights = a.op != Op::kUnion && a.op != Op::kMin && a.op != Op::kMax;
  return uses_weights && IsFloat(spec.dtype) && a.numerics == Numerics::kCanonical && !spec.privacy.has_value();
}

// "tensor 'NAME'": how error texts name a tensor.
std::string Quoted(const TensorSpec& spec);

// The syntax of ids. proto/sparseagg/v1/aggregation.proto has the rules; the Python package (base/arguments.py) has
// CheckName and QuotedId, too, with the same texts.

// Checks an id that is part of URLs, headers and file names: of a round, task, owner, tenant or credential.
// Errors: INVALID_ARGUMENT, unless the id is [A-Za-z0-9_][A-Za-z0-9._-]{0,127}; the message names `field`.
absl::Status CheckName(absl::string_view id, absl::string_view field);

// Checks an id that only messages and queries carry: of a client, a submission or a lease.
// Errors: INVALID_ARGUMENT, unless the id is 1 to 256 bytes of UTF-8 without control characters; the message names
// `field`.
absl::Status CheckId(absl::string_view id, absl::string_view field);

// Returns: the text in quotes, for an error; "of N bytes" in place of a long text, and of one that is not UTF-8 or has
// control characters.
std::string QuotedId(absl::string_view text);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_SPEC_SPEC_H_
