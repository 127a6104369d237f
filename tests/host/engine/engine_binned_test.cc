// Binned sums: merged at any time and in any tree, within their limit of submissions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/aggregation.h"
#include "host/partial.h"
#include "tests/host/engine/contract.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

using ::testing::HasSubstr;

TensorSpec BinnedSpec(DType dtype, Op op, uint64_t num_rows, uint32_t row_width = 1) {
  TensorSpec spec = MakeSpec(dtype, op, num_rows, row_width);
  spec.layout = Layout::kDense;
  spec.aggregation.result_layout = ResultLayout::kDense;
  spec.aggregation.numerics = Numerics::kBinned;
  return spec;
}

RawSubmission Whole(const TensorSpec& spec, std::string id, const std::vector<double>& values, double weight) {
  std::vector<uint64_t> keys(spec.num_rows);
  for (uint64_t key = 0; key < spec.num_rows; ++key) keys[key] = key;
  return Client(spec, std::move(id), std::move(keys), values, weight);
}

// Keys of one client, repeated ones and none at all among them.
std::vector<uint64_t> SparseKeys(Rng& rng, uint64_t num_rows) {
  std::vector<uint64_t> keys(rng.Below(90));
  const uint64_t step =
      rng.Pick<uint64_t>({1, num_rows == 0 ? uint64_t{1} << 57 : std::max<uint64_t>(1, num_rows / 70)});
  for (uint64_t& key : keys) key = rng.Below(70) * step;
  for (uint64_t& key : keys) key = num_rows == 0 ? key : key % num_rows;
  return keys;
}

// Adds a partial of one aggregation to another, in pages of `max_rows`.
void SendPartial(Aggregation& from, Aggregation& to, const std::string& id, uint64_t max_rows) {
  PartialBuilder builder(to.tensors());
  constexpr uint64_t kLast = std::numeric_limits<uint64_t>::max();
  for (uint64_t first = 0;;) {
    const auto block = from.ExportPartial(0, first, kLast, max_rows);
    ASSERT_TRUE(block.ok()) << block.status();
    std::string bytes;
    AppendPartialBlock(from.tensors()[0], *block, bytes);
    ASSERT_EQ(bytes.size(), PartialBlockBytes(from.tensors()[0], block->rows.num_rows));
    const absl::Status appended = builder.Append(bytes);
    ASSERT_TRUE(appended.ok()) << appended;
    if (block->last == kLast) break;
    first = block->last + 1;
  }
  auto blocks = std::move(builder).Finish();
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  auto prepared = to.PreparePartial(*std::move(blocks));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const absl::Status added = to.Add(id, *std::move(prepared));
  ASSERT_TRUE(added.ok()) << added;
}

// A round whose submissions are merged, or not, at random moments, and are spread over aggregations.
void CheckRound(Engine& engine, uint64_t seed) {
  Rng rng(seed);
  const DType dtype = rng.Pick({DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64});
  const auto width = static_cast<uint32_t>(1 + rng.Below(5));
  TensorSpec spec = BinnedSpec(dtype, rng.Pick({Op::kSum, Op::kMean, Op::kCoordinateMean}), 1 + rng.Below(70), width);
  AggregationSpec& a = spec.aggregation;
  const bool bins_weights_alone = rng.OneIn(3);
  if (bins_weights_alone) {
    a.numerics = Numerics::kCanonical;
    spec.dtype = rng.Pick({DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64});
    a.op = IsFloat(spec.dtype) ? rng.Pick({Op::kMin, Op::kMax, Op::kUnion})
                               : rng.Pick({Op::kMin, Op::kMax, Op::kUnion, Op::kSum, Op::kCoordinateMean});
  }
  const bool is_integer = !IsFloat(spec.dtype);
  const bool is_sparse = rng.Coin();
  if (is_sparse) {
    spec.layout = Layout::kSparse;
    spec.num_rows = rng.Pick<uint64_t>({5, 70, 5000, uint64_t{1} << 32, uint64_t{1} << 40, 0});
  }
  a.weighting = rng.Pick({Weighting::kUniform, Weighting::kByWeight});
  const bool is_small = spec.num_rows != 0 && spec.num_rows <= 5000;
  a.result_layout =
      rng.Pick({ResultLayout::kSparse, is_small ? ResultLayout::kDense : ResultLayout::kSparse, ResultLayout::kAuto});
  a.return_counts = rng.Coin();
  a.return_weights = bins_weights_alone || rng.Coin();
  a.prune_zeros = rng.OneIn(3);
  a.min_contributors = rng.Pick({1u, 1u, 4u});
  a.on_nonfinite = NonfinitePolicy::kPropagate;
  if (!bins_weights_alone && rng.Coin()) a.result_dtype = DType::kFloat64;
  const bool is_zero = rng.OneIn(4);
  std::vector<RawSubmission> submissions;
  const uint64_t num_submissions = 1 + rng.Below(12);
  for (uint64_t i = 0; i < num_submissions; ++i) {
    std::vector<uint64_t> keys;
    if (is_sparse) keys = SparseKeys(rng, spec.num_rows);
    std::vector<double> values((is_sparse ? keys.size() : spec.num_rows) * width);
    for (double& value : values) {
      value = is_zero && rng.Coin() ? 0.0 : std::ldexp(2 * rng.Unit() - 1, static_cast<int>(rng.Between(-60, 60)));
      if (rng.OneIn(500)) value = rng.Pick({HUGE_VAL, -HUGE_VAL, std::nan("")});
      if (is_integer) value = static_cast<double>(rng.Between(-99, 99));
    }
    double weight = a.weighting == Weighting::kUniform ? 1.0 : 0.5 + static_cast<double>(rng.Below(400));
    if (weight != 1.0 && rng.OneIn(9)) weight = rng.Pick({0.0, 0x1p960, 0x1p-1074});
    if (is_integer) weight = std::min(std::floor(weight), 0x1p40);
    std::string id = absl::StrCat("client ", i);
    submissions.push_back(is_sparse ? Client(spec, std::move(id), std::move(keys), values, weight)
                                    : Whole(spec, std::move(id), values, weight));
  }
  rng.Shuffle(submissions);
  std::vector<std::unique_ptr<Aggregation>> aggregations;
  for (int i = 0; i < 3; ++i) aggregations.push_back(*Aggregation::Create(engine, {spec}));
  for (const RawSubmission& submission : submissions) {
    Aggregation& aggregation = *aggregations[rng.Below(3)];
    ASSERT_TRUE(Submit(aggregation, submission).ok());
    if (rng.OneIn(3)) {
      ASSERT_TRUE(aggregation.MergePending().ok());
    }
  }
  while (aggregations.size() > 1) {
    const std::unique_ptr<Aggregation> last = std::move(aggregations.back());
    aggregations.pop_back();
    Aggregation& other = *aggregations[rng.Below(aggregations.size())];
    if (rng.Coin() && last->num_submissions() > 0) {
      ASSERT_NO_FATAL_FAILURE(
          SendPartial(*last, other, absl::StrCat("partial ", aggregations.size()), 1 + rng.Below(90)));
    } else {
      ASSERT_TRUE(other.MergeFrom(std::move(*last)).ok());
    }
  }
  const auto results = std::move(*aggregations[0]).Finish();
  const auto expected = Reference({spec}, submissions);
  ASSERT_EQ(expected.ok(), results.ok()) << results.status();
  if (!expected.ok()) return;
  EXPECT_EQ(Diff(*results, *expected), "");
}

TEST(EngineBinned, MergedAtRandomMoments_EqualsTheReference) {
  for (const EngineCase& engine_case : AvailableEngines()) {
    const std::unique_ptr<Engine> engine = engine_case.create();
    for (uint64_t seed = 0; seed < 400 && !HasFailure(); ++seed) {
      SCOPED_TRACE(::testing::Message() << engine_case.name << ", seed " << seed);
      CheckRound(*engine, seed);
    }
  }
}

TEST(EngineBinned, MoreThanTheLimit_IsRefusedAndTheSumStays) {
  const TensorSpec spec = BinnedSpec(DType::kFloat32, Op::kSum, 1);
  const std::unique_ptr<Engine> engine = AvailableEngines().front().create();
  const std::unique_ptr<Aggregation> aggregation = *Aggregation::Create(*engine, {spec});
  RawSubmission submission = Whole(spec, "", {1.0}, 1.0);
  const uint64_t most = (uint64_t{1} << 20) - 1;
  for (uint64_t i = 0; i < most; ++i) {
    submission.client_id = std::to_string(i);
    ASSERT_TRUE(Submit(*aggregation, submission).ok());
  }
  submission.client_id = "one more";
  const absl::Status status = Submit(*aggregation, submission);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("binned sums of float32 take up to 1048575 submissions"));
  const auto results = std::move(*aggregation).Finish();
  ASSERT_TRUE(results.ok());
  EXPECT_EQ(FloatsOf(results->front()), std::vector<double>{1048575.0});
}

TEST(EngineBinned, ManyUpdates_MemoryIsThatOfTheSums) {
  for (const size_t num_tensors : {size_t{1}, size_t{50}}) {
    SCOPED_TRACE(num_tensors);
    std::vector<TensorSpec> specs;
    for (size_t t = 0; t < num_tensors; ++t) {
      specs.push_back(BinnedSpec(DType::kFloat32, Op::kMean, 10'000'000 / num_tensors));
      specs.back().name = absl::StrCat("t", t);
    }
    const std::unique_ptr<Engine> engine = AvailableEngines().front().create();
    const std::unique_ptr<Aggregation> aggregation = *Aggregation::Create(*engine, specs);
    size_t most_bytes = 0;
    const auto values = std::make_shared<std::vector<float>>(specs[0].num_rows, 1.5f);
    for (int i = 0; i < 12; ++i) {
      std::vector<ValidatedUpdate> updates;
      for (const TensorSpec& spec : specs) {
        UpdateColumns columns{KeyRun{0, spec.num_rows}, reinterpret_cast<const std::byte*>(values->data()), values};
        updates.push_back(*ValidatedUpdate::Create(spec, columns, 1.0));
      }
      auto prepared = aggregation->Prepare(std::move(updates));
      ASSERT_TRUE(prepared.ok());
      ASSERT_TRUE(aggregation->Add(std::to_string(i), *std::move(prepared)).ok());
      most_bytes = std::max(most_bytes, aggregation->memory_bytes());
    }
    EXPECT_FALSE(aggregation->CheckKeepsAll().ok());
    EXPECT_LT(most_bytes, size_t{220'000'000}) << "17 bytes a value, and one pending update";
  }
}

}  // namespace
}  // namespace sparseagg::testing
