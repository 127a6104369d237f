// Generators of random specs and cases.
#include "tests/support/generators.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "tests/support/rules.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

uint64_t RandomNumRows(Rng& rng) {
  switch (rng.Below(8)) {
    case 0:
      return rng.Pick<uint64_t>({1, 2, 3});
    case 1:
    case 2:
      return 2 + rng.Below(40);
    case 3:
      return 100 + rng.Below(4000);
    case 4:
      return rng.Pick<uint64_t>({16383, 16384, 16385, 65535, 65536, 65537, 262144, 1000000});
    case 5:
      return (uint64_t{1} << 32) + rng.Below(3) - 1;
    case 6:
      return rng.Pick<uint64_t>({uint64_t{1} << 40, ~uint64_t{0}});
    default:
      return 0;
  }
}

TensorSpec RandomSpec(Rng& rng) {
  TensorSpec spec;
  AggregationSpec& a = spec.aggregation;
  spec.dtype = rng.Pick({DType::kFloat32, DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
                         DType::kInt32, DType::kInt64, DType::kInt64, DType::kUInt32, DType::kUInt64});
  spec.modular = IsModular(spec.dtype);
  spec.num_rows = RandomNumRows(rng);
  spec.row_width = rng.Pick<uint32_t>({1, 1, 1, 1, 2, 3, 4, 7, 16, 64});
  a.op = spec.modular ? rng.Pick({Op::kSum, Op::kSum, Op::kUnion})
                      : rng.Pick({Op::kSum, Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kUnion, Op::kMin, Op::kMax});
  if (!spec.modular) {
    if (rng.Coin()) a.weighting = Weighting::kByWeight;
    if (rng.OneIn(4)) a.result_dtype = rng.Pick({DType::kFloat32, DType::kFloat64});
  }

  const bool is_small = spec.num_rows != 0 && spec.num_rows <= 100000 / spec.row_width;
  if (is_small && spec.num_rows * spec.row_width <= 2000 && rng.OneIn(5)) spec.layout = Layout::kDense;
  const bool is_sum = a.op == Op::kSum || a.op == Op::kMean || a.op == Op::kCoordinateMean;
  if (is_sum && IsFloat(spec.dtype) && rng.OneIn(3)) a.numerics = Numerics::kBinned;
  if (is_small) {
    a.result_layout = rng.Pick({ResultLayout::kSparse, ResultLayout::kDense, ResultLayout::kAuto});
    if (rng.OneIn(3)) a.dense_threshold = rng.Pick({1.0, 0.5, 1.0 / 3.0, 0.01});
  } else {
    a.result_layout = rng.Pick({ResultLayout::kSparse, ResultLayout::kAuto});
  }
  a.fill = rng.Pick({0.0, -0.0, 1.0, 7.0});
  if (a.op == Op::kUnion || IsFloat(DTypeOfResult(spec))) a.fill = rng.Pick({a.fill, 0.1, -1e-300, 1e300});

  a.return_counts = rng.Coin();
  a.return_weights = rng.Coin();
  a.min_contributors = rng.Pick<uint32_t>({0, 1, 1, 1, 2, 3});
  a.prune_zeros = rng.OneIn(3);
  if (rng.OneIn(4)) a.on_nonfinite = NonfinitePolicy::kPropagate;
  if (rng.Coin()) a.on_empty = EmptyPolicy::kKeep;
  return spec;
}

// What the submissions of a case have in common for one tensor, so that they share keys.
struct TensorStyle {
  KeyStyle keys;
  ValueStyle values;
  size_t max_tuples;
};

TensorStyle RandomStyle(Rng& rng, const TensorSpec& spec) {
  TensorStyle style;
  style.keys = rng.Pick({KeyStyle::kUniform, KeyStyle::kZipf, KeyStyle::kZipf, KeyStyle::kClustered, KeyStyle::kOneKey,
                         KeyStyle::kLargest, KeyStyle::kEdges});
  style.values = rng.Pick({ValueStyle::kSmallIntegers, ValueStyle::kUnit, ValueStyle::kUnit, ValueStyle::kWide,
                           ValueStyle::kDenormal, ValueStyle::kHuge, ValueStyle::kZeros, ValueStyle::kCancelling});
  if (spec.aggregation.on_nonfinite == NonfinitePolicy::kPropagate && rng.Coin()) style.values = ValueStyle::kNonfinite;
  if (IsSignedInteger(spec.dtype)) {
    style.values =
        rng.Pick({ValueStyle::kSmallIntegers, ValueStyle::kCancelling, ValueStyle::kWide, ValueStyle::kHuge});
  }
  style.max_tuples = rng.Pick<size_t>({3, 10, 33, 33, 100, 300});
  if (spec.row_width > 4) style.max_tuples = std::min<size_t>(style.max_tuples, 33);
  return style;
}

RawTensor RandomTensor(Rng& rng, const TensorSpec& spec, const TensorStyle& style) {
  RawTensor raw;
  if (spec.layout == Layout::kDense) {
    for (uint64_t key = 0; key < spec.num_rows; ++key) raw.keys.push_back(key);
  } else if (!rng.OneIn(8)) {
    const size_t count = rng.Coin() ? style.max_tuples : rng.Below(style.max_tuples + 1);
    const KeyOrder order = rng.Pick({KeyOrder::kSortedUnique, KeyOrder::kSorted, KeyOrder::kDescending,
                                     KeyOrder::kShuffled, KeyOrder::kShuffledUnique});
    raw.keys = RandomKeys(rng, spec.num_rows, count, style.keys, order);
    if (rng.OneIn(8) && !raw.keys.empty()) {  // a run, which may travel as IMPLICIT keys
      const uint64_t first = raw.keys[0];
      const uint64_t room = spec.num_rows - first;  // modulo 2^64, as the key space of num_rows 0 is
      raw.keys.resize(std::min<uint64_t>(raw.keys.size(), room == 0 ? 1 : room));
      for (size_t i = 0; i < raw.keys.size(); ++i) raw.keys[i] = first + i;
    }
  }
  const size_t num_values = raw.keys.size() * spec.row_width;
  if (spec.aggregation.op == Op::kUnion && rng.Coin()) {
    raw.has_values = false;
  } else {
    raw.values = RandomValues(rng, spec.dtype, num_values, style.values);
  }
  return raw;
}

double RandomWeight(Rng& rng, const std::vector<TensorSpec>& specs, bool may_be_zero) {
  const double bound = 1e300;
  bool integer = false;
  for (const TensorSpec& spec : specs) {
    if (spec.aggregation.weighting != Weighting::kByWeight) continue;
    if (IsSignedInteger(spec.dtype)) integer = true;
  }
  if (may_be_zero && rng.OneIn(2)) return rng.Pick({0.0, -0.0});
  if (rng.OneIn(10)) return integer ? std::min(std::trunc(bound), 0x1p53 - 1.0) : bound;
  if (integer) return 1.0 + std::trunc(rng.Unit() * std::min(bound, 30.0));
  return std::min(bound, rng.Pick({1.0, 10.0 * rng.Unit(), rng.Unit(), std::ldexp(rng.Unit(), -40)}));
}

// Changes the submission so that it may have to be refused.
void Corrupt(Rng& rng, const std::vector<TensorSpec>& specs, RawSubmission& submission) {
  const size_t t = rng.Below(specs.size());
  const TensorSpec& spec = specs[t];
  RawTensor& raw = submission.tensors[t];
  const size_t row_bytes = spec.row_width * SizeOf(spec.dtype);
  switch (rng.Below(6)) {
    case 0:
      submission.weight = rng.Pick({-1.0, -1e-300, 0.5, 1e300, std::numeric_limits<double>::infinity(), std::nan("")});
      break;
    case 1:
      if (!raw.keys.empty()) raw.keys[rng.Below(raw.keys.size())] = rng.Pick({spec.num_rows, ~uint64_t{0}});
      break;
    case 2:
      if (raw.has_values) raw.values.resize(raw.values.size() - std::min(raw.values.size(), size_t{1}));
      break;
    case 3:
      if (raw.has_values) raw.values.append(rng.Pick({row_bytes, SizeOf(spec.dtype)}), '\0');
      break;
    case 4:
      if (raw.has_values)
        raw.values = RandomValues(rng, spec.dtype, raw.keys.size() * spec.row_width, ValueStyle::kNonfinite);
      break;
    default:
      if (!raw.keys.empty()) raw.has_values = false;
      raw.values.clear();
      if (raw.keys.empty()) raw.has_values = true;
      break;
  }
}

std::string RandomClientId(Rng& rng, size_t index) {
  if (rng.Coin()) return "client-" + std::to_string(index);
  std::string id;
  for (uint64_t length = 1 + rng.Below(4); id.size() < length;) id.push_back(static_cast<char>(rng.Below(256)));
  return id;
}

}  // namespace

uint64_t TestSeed(uint64_t fallback) { return FromEnvironment("SPARSEAGG_TEST_SEED", fallback); }
uint64_t TestCases(uint64_t fallback) { return FromEnvironment("SPARSEAGG_TEST_CASES", fallback); }

Case RandomCase(uint64_t seed) {
  Rng rng(seed);
  Case c;
  c.seed = seed;
  const size_t num_submissions = rng.Pick<size_t>({0, 1, 2, 3, 5, 8, 13, 40});
  // Exactly as many as declared, or a few less.
  const size_t num_tensors = 1 + rng.Below(3);
  std::vector<TensorStyle> styles;
  for (size_t t = 0; t < num_tensors; ++t) {
    c.specs.push_back(RandomSpec(rng));
    c.specs.back().name = "t" + std::to_string(t);
    styles.push_back(RandomStyle(rng, c.specs.back()));
  }
  // Zero weights fail most means, so only some cases have any.
  const bool has_zero_weights = rng.OneIn(3);
  std::set<std::string> ids;
  for (size_t i = 0; i < num_submissions; ++i) {
    RawSubmission submission;
    do {
      submission.client_id = RandomClientId(rng, i);
    } while (!ids.insert(submission.client_id).second);
    submission.weight = RandomWeight(rng, c.specs, has_zero_weights);
    for (size_t t = 0; t < num_tensors; ++t) submission.tensors.push_back(RandomTensor(rng, c.specs[t], styles[t]));
    if (rng.OneIn(12)) Corrupt(rng, c.specs, submission);
    c.submissions.push_back(std::move(submission));
  }
  return c;
}

Case RandomCutCase(uint64_t seed) {
  Case c = RandomCase(seed);
  Rng rng(seed + 0x5eed);
  for (TensorSpec& spec : c.specs) {
    AggregationSpec& a = spec.aggregation;
    if (rng.Coin() && spec.layout == Layout::kSparse) a.result_layout = ResultLayout::kSparse;
    if (a.result_layout == ResultLayout::kSparse && a.op != Op::kUnion && !spec.modular) {
      if (!rng.OneIn(3)) a.result_top_k = rng.Pick<uint64_t>({1, 2, 3, 7, 20, 90, 1000});
      if (rng.OneIn(3)) a.result_min_norm = rng.Pick({0x1p-500, 1e-150, 1e-6, 0.5, 1.0, 1.7320508, 1e9, 0x1p500});
    }
    const bool is_sum = a.op == Op::kSum || a.op == Op::kMean || a.op == Op::kCoordinateMean;
    a.return_moments = is_sum && !spec.modular && a.numerics == Numerics::kCanonical && rng.Coin();
  }
  return c;
}

Case RandomTileCase(uint64_t seed, size_t num_tuples) {
  Rng rng(seed);
  const std::vector<TensorSpec> specs = EveryCombination();
  Case c;
  c.seed = seed;
  TensorSpec spec = specs[rng.Below(specs.size())];
  if (spec.aggregation.op == Op::kCoordinateMean) spec.aggregation.weighting = Weighting::kUniform;
  const bool is_sparse = spec.aggregation.result_layout == ResultLayout::kSparse;
  const uint64_t span = is_sparse && rng.OneIn(3) ? rng.Pick<uint64_t>({200'000, 3'000'000, 100'000'000})
                                                  : rng.Pick<uint64_t>({1, 100, 128, 129, 3'000, 8'192, 9'000, 30'000});
  const bool is_wide = is_sparse && rng.Coin();
  spec.num_rows = is_wide ? (uint64_t{1} << 31) - 1 : span;
  const uint64_t first = rng.Below(spec.num_rows - span + 1);
  const size_t num_submissions = rng.Pick<size_t>({1, 2, 5, 33, 64, 65, 130, 200});
  const size_t most = 2 * num_tuples / num_submissions + 1;
  const auto style = rng.Pick({KeyStyle::kUniform, KeyStyle::kZipf, KeyStyle::kClustered});
  const uint64_t dense_from = rng.Below(span);
  for (size_t i = 0; i < num_submissions; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, span, rng.Below(most), style, KeyOrder::kSortedUnique);
    if (rng.OneIn(3)) {
      raw.keys.resize(std::min<uint64_t>(rng.Below(most), span - dense_from));
      std::iota(raw.keys.begin(), raw.keys.end(), dense_from);
    }
    for (uint64_t& key : raw.keys) key += first;
    const ValueStyle values = rng.Pick({ValueStyle::kCancelling, ValueStyle::kZeros, ValueStyle::kUnit});
    raw.values =
        RandomValues(rng, spec.dtype, raw.keys.size(), IsFloat(spec.dtype) ? values : ValueStyle::kSmallIntegers);
    c.submissions.push_back({"client " + std::to_string(i), 1.0 + static_cast<double>(i % 5), {std::move(raw)}});
  }
  c.specs.push_back(std::move(spec));
  return c;
}

std::vector<TensorSpec> EveryCombination() {
  std::vector<TensorSpec> specs;
  for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kUnion, Op::kMin, Op::kMax}) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kInt32,
                              DType::kInt64, DType::kUInt32, DType::kUInt64}) {
      for (const Weighting weighting : {Weighting::kUniform, Weighting::kByWeight}) {
        for (const Numerics numerics : {Numerics::kCanonical, Numerics::kBinned}) {
          for (const ResultLayout layout : {ResultLayout::kSparse, ResultLayout::kDense, ResultLayout::kAuto}) {
            TensorSpec spec;
            spec.name = "t";
            spec.dtype = dtype;
            spec.modular = IsModular(dtype);
            spec.num_rows = 1000;
            AggregationSpec& a = spec.aggregation;
            a.op = op;
            a.weighting = weighting;
            a.numerics = numerics;
            a.result_layout = layout;
            a.return_counts = true;
            if (Validate(spec).ok()) specs.push_back(std::move(spec));
          }
        }
      }
    }
  }
  return specs;
}

}  // namespace sparseagg::testing
