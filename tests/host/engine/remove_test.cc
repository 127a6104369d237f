// Submissions taken out of an aggregation: as if they had never been added. And large updates with repeated keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/aggregation.h"
#include "host/cpu/cpu_engine.h"
#include "host/cpu/tuning.h"
#include "tests/host/engine/contract.h"
#include "tests/support/failing_allocation.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SPARSEAGG_ENGINE_SUITE(RemoveContract);

std::unique_ptr<Aggregation> Create(Engine& engine, const std::vector<TensorSpec>& specs, uint64_t memory_limit = 0) {
  auto aggregation = Aggregation::Create(engine, specs, memory_limit);
  EXPECT_TRUE(aggregation.ok()) << aggregation.status();
  return *std::move(aggregation);
}

// Takes random submissions out, in one call or in several. Returns: the ids of those that are left.
std::vector<std::string> RemoveSome(Rng& rng, Aggregation& aggregation) {
  for (uint64_t calls = 1 + rng.Below(3); calls > 0; --calls) {
    std::vector<uint32_t> indices;
    for (uint32_t i = 0; i < aggregation.num_submissions(); ++i) {
      if (rng.OneIn(3)) indices.push_back(i);
    }
    aggregation.Remove(indices);
  }
  return aggregation.client_ids();
}

TEST_P(RemoveContract, RandomCases_EqualTheReferenceOverTheRest) {
  const uint64_t first = TestSeed(7001);
  const uint64_t count = TestCases(400);
  uint64_t num_removed = 0;
  const std::unique_ptr<Engine> engine = GetParam().create();
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Case c = RandomCase(seed);
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed, " SPARSEAGG_TEST_CASES=1\n", Describe(c)));
    Rng rng(seed);
    const auto aggregation = Create(*engine, c.specs);
    for (const RawSubmission& submission : c.submissions) (void)Submit(*aggregation, submission);
    if (!aggregation->CheckKeepsAll().ok()) continue;  // merged on arrival
    const uint64_t num_added = aggregation->num_submissions();
    const std::vector<std::string> left = RemoveSome(rng, *aggregation);
    num_removed += num_added - left.size();
    std::vector<RawSubmission> rest;
    for (const RawSubmission& submission : c.submissions) {
      const bool is_left = std::find(left.begin(), left.end(), submission.client_id) != left.end();
      // Some that were taken out come again, with twice the weight.
      RawSubmission again = submission;
      if (!is_left) again.weight *= 2;
      const bool comes = is_left || (rng.Coin() && Submit(*aggregation, again).ok());
      if (comes) rest.push_back(std::move(again));
    }
    ASSERT_EQ(aggregation->num_submissions(), rest.size());
    Driven driven;
    driven.submissions.resize(rest.size());
    driven.results = std::move(*aggregation).Finish();
    ASSERT_EQ(Disagreement(c.specs, driven, Judge(c.specs, rest)), "");
  }
  if (count >= 400) {
    EXPECT_GT(num_removed, 100) << "this test no longer does what it is for";
  }
}

TEST_P(RemoveContract, MemoryAndEstimates_AreThoseOfTheRest) {
  for (const TensorSpec& spec : {MakeSpec(DType::kFloat32, Op::kSum, 1 << 20), MakeSpec(DType::kInt64, Op::kSum)}) {
    const std::unique_ptr<Engine> engine = GetParam().create();
    Rng rng(TestSeed(7002));
    // The second is the largest by far, and alone unsorted.
    const auto update = [&](size_t size, KeyOrder order) {
      RawTensor raw;
      raw.keys = RandomKeys(rng, 1 << 20, size, KeyStyle::kUniform, order);
      raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kSmallIntegers);
      return *BuildUpdates({spec}, {"c", 1.0, {raw}});
    };
    std::vector<std::vector<ValidatedUpdate>> updates;
    updates.push_back(update(4, KeyOrder::kSortedUnique));
    updates.push_back(update(20'000, KeyOrder::kShuffledUnique));
    updates.push_back(update(5, KeyOrder::kSortedUnique));
    const auto add = [&](Accumulator& accumulator, size_t i) {
      ASSERT_TRUE(accumulator.Add(*accumulator.Prepare(updates[i][0])).ok());
    };
    const auto all = *engine->CreateAccumulator(spec);
    for (size_t i = 0; i < 3; ++i) add(*all, i);
    if (!all->KeepsAll()) continue;  // an engine in torture mode merges early
    const auto rest = *engine->CreateAccumulator(spec);
    add(*rest, 0);
    add(*rest, 2);
    ASSERT_GT(all->FinishBytes(nullptr), rest->FinishBytes(nullptr));
    all->Remove(std::vector<uint32_t>{1});
    EXPECT_EQ(all->num_submissions(), 2u);
    EXPECT_EQ(all->FinishBytes(nullptr), rest->FinishBytes(nullptr));
    EXPECT_EQ(all->FoldBytes(nullptr), rest->FoldBytes(nullptr));
    EXPECT_LE(all->memory_bytes(), rest->memory_bytes() + 64) << "more than the vectors' spare capacity";
  }
}

TEST(Remove, AllocatesNothing) {
  const TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, 100);
  const auto engine = CreateCpuEngine({1});
  const auto aggregation = Create(*engine, {spec});
  for (const char* id : {"a", "b", "c", "d"}) ASSERT_TRUE(Submit(*aggregation, Client(spec, id, {7}, {1})).ok());
  const std::vector<uint32_t> indices = {1, 3};
  bool failed;
  {
    FailingAllocation failing(0);
    aggregation->Remove(indices);
    failed = failing.failed();
  }
  EXPECT_FALSE(failed);
  EXPECT_THAT(aggregation->client_ids(), ElementsAre("a", "c"));
}

TEST(Remove, AfterAMerge_IsRefusedWithTheReason) {
  const auto engine = CreateCpuEngine({1});
  const TensorSpec integers = MakeSpec(DType::kInt64, Op::kSum, 100);
  auto aggregation = Create(*engine, {integers});
  ASSERT_TRUE(Submit(*aggregation, Client(integers, "a", {7}, {1})).ok());
  EXPECT_EQ(aggregation->CheckKeepsAll(), absl::OkStatus());
  ASSERT_TRUE(aggregation->MergePending().ok());
  absl::Status status = aggregation->CheckKeepsAll();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tensor 'tensor-name': its submissions have been merged as they"));

  const TensorSpec floats = MakeSpec(DType::kFloat32, Op::kSum, 100);
  aggregation = Create(*engine, {floats}, 1'000'000);
  ASSERT_TRUE(Submit(*aggregation, Client(floats, "a", {7}, {1})).ok());
  ASSERT_TRUE(aggregation->MergePending().ok());
  EXPECT_EQ(aggregation->CheckKeepsAll(), absl::OkStatus());
  ASSERT_TRUE(aggregation->FoldPending().ok());
  status = aggregation->CheckKeepsAll();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("memory_limit 1000000"));
}

// Each of two has something merged, or only the other one.
TEST(Remove, AfterMergeFromOneThatHasMerged_IsRefused) {
  const auto engine = CreateCpuEngine({1});
  const TensorSpec spec = MakeSpec(DType::kInt64, Op::kSum, 100);
  for (const bool both : {false, true}) {
    const auto ours = Create(*engine, {spec});
    const auto theirs = Create(*engine, {spec});
    ASSERT_TRUE(Submit(*ours, Client(spec, "a", {7}, {1})).ok());
    ASSERT_TRUE(Submit(*theirs, Client(spec, "b", {7}, {1})).ok());
    ASSERT_TRUE(theirs->MergePending().ok());
    if (both) {
      ASSERT_TRUE(ours->MergePending().ok());
    }
    ASSERT_TRUE(ours->MergeFrom(std::move(*theirs)).ok());
    EXPECT_EQ(ours->CheckKeepsAll().code(), absl::StatusCode::kFailedPrecondition);
  }
}

// ---- Large updates with repeated keys, alone in their round and beside others: the reference's bits, whatever the
// operator, the type, the order of the keys and the layout.

constexpr uint64_t kSeed = 20261126;

struct LoneShape {
  uint64_t num_rows;
  uint32_t row_width;
  size_t num_tuples;
  uint64_t num_keys;  // that the tuples draw from; as many as tuples: each has one of its own
  bool is_sorted;
};

// Rows with values of every size, zeros of both signs, and denormals.
RawSubmission Update(const TensorSpec& spec, const LoneShape& shape, const std::string& id, uint64_t seed,
                     double weight) {
  std::mt19937_64 random(seed);
  const uint64_t stride =
      shape.num_rows == 0 ? std::numeric_limits<uint64_t>::max() / shape.num_keys : shape.num_rows / shape.num_keys;
  std::vector<uint64_t> keys(shape.num_tuples);
  if (shape.num_keys == shape.num_tuples) {
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = i * stride;
    std::shuffle(keys.begin(), keys.end(), random);
  } else {
    for (uint64_t& key : keys) key = random() % shape.num_keys * stride;
  }
  if (shape.is_sorted) std::sort(keys.begin(), keys.end());
  std::vector<double> values(keys.size() * shape.row_width);
  for (double& value : values) {
    const double magnitude = static_cast<double>(random() >> 11) * 0x1p-53;
    constexpr double kKinds[] = {1.0, -1.0, 1e-3, 0.0, -0.0, 1e-7};
    value = kKinds[random() % 6] * magnitude;
  }
  return Client(spec, id, std::move(keys), values, weight);
}

SPARSEAGG_ENGINE_SUITE(EngineLoneUpdate);

TEST_P(EngineLoneUpdate, RepeatedKeys_HaveTheReferencesBits) {
  const size_t many = cpu::CurrentTuning().min_coarse_tuples + 3;
  const LoneShape shapes[] = {
      {1'000, 16, many, 1'000, false},             // each key some times
      {1 << 20, 2, 3 * many, 1 << 20, false},      // most keys once
      {1 << 20, 3, many, 7, false},                // few keys, each of more than a block
      {50'000, 5, many, 1, true},                  // one key
      {50'000, 5, many, 9'000, true},              // sorted
      {0, 4, many, 5'000, false},                  // 64-bit keys
      {uint64_t{1} << 40, 300, many, 100, false},  // rows of more than one strip
  };
  for (const LoneShape& shape : shapes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      for (const Op op : {Op::kSum, Op::kMean, Op::kCoordinateMean}) {
        for (const double weight : {1.0, 0.3}) {
          // All operators with the first shape and type only: the reference is slow.
          const bool is_costly = dtype != DType::kFloat32 || &shape != shapes;
          if (is_costly && (op != Op::kCoordinateMean || weight == 1.0)) continue;
          TensorSpec spec = MakeSpec(dtype, op, shape.num_rows, shape.row_width);
          spec.aggregation.weighting = weight == 1.0 ? Weighting::kUniform : Weighting::kByWeight;
          spec.aggregation.return_counts = spec.aggregation.return_weights = shape.row_width % 2 == 0;
          SCOPED_TRACE(absl::StrCat(Name(dtype), " ", Name(op), ", num_rows ", shape.num_rows, ", row_width ",
                                    shape.row_width, ", weight ", weight, ", seed ", kSeed));
          EXPECT_GT(Merge(spec, {Update(spec, shape, "a", kSeed, weight)}).num_keys, 0u);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(EngineLoneUpdate, BesideOthers_HaveTheReferencesBits) {
  const LoneShape large{4'000, 8, cpu::CurrentTuning().min_coarse_tuples + 3, 4'000, false};
  const LoneShape small{4'000, 8, 50, 30, false};
  const LoneShape none{4'000, 8, 0, 1, false};
  TensorSpec spec = MakeSpec(DType::kFloat32, Op::kSum, large.num_rows, large.row_width);
  spec.aggregation.weighting = Weighting::kByWeight;
  spec.aggregation.return_counts = true;
  const RawSubmission first = Update(spec, large, "b", kSeed, 0.7);
  Run({spec}, {first, Update(spec, large, "a", kSeed + 1, 0.1)});
  Run({spec}, {first, Update(spec, small, "c", kSeed + 1, 0.1)});
  Run({spec}, {first, Update(spec, none, "a", kSeed + 1, 0.1)});
  const std::vector<RawSubmission> three = {Update(spec, none, "a", kSeed + 1, 0.1), first,
                                            Update(spec, small, "c", kSeed + 2, 0.1)};
  const size_t many = large.num_tuples;
  TensorSpec unique = MakeSpec(DType::kFloat32, Op::kSum, many, large.row_width);
  const LoneShape each_once{many, large.row_width, many, many, false};
  Run({unique}, {Update(unique, each_once, "b", kSeed, 1.0), Update(unique, small, "c", kSeed, 1.0)});
  Run({spec}, three);
  Run({spec}, three, {.num_aggregations = 2});
  Run({spec}, three, {.fold_seed = kSeed});
  Run({spec}, {first}, {.fold_seed = kSeed});
}

// Distinct keys, of which `num_repeats` at random places are then made equal to others.
std::vector<uint64_t> LoneKeysWithRepeats(Rng& rng, uint64_t num_rows, size_t num_repeats, KeyOrder order) {
  std::vector<uint64_t> keys =
      RandomKeys(rng, num_rows, cpu::CurrentTuning().min_coarse_tuples + 100, KeyStyle::kUniform, order);
  for (size_t i = 0; i < num_repeats; ++i) keys[rng.Below(keys.size())] = keys[rng.Below(keys.size())];
  if (order == KeyOrder::kSortedUnique) {
    std::sort(keys.begin(), keys.end());
    if (num_repeats > 1) keys.back() = keys.end()[-2];
  }
  return keys;
}

// Few repeats are folded beside the other rows of their update, many with them.
TEST_P(EngineLoneUpdate, OneRepeat_FewAndMany_HaveTheReferencesBits) {
  const uint64_t seed = TestSeed(kSeed);
  SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
  Rng rng(seed);
  std::vector<TensorSpec> specs = EveryCombination();
  constexpr size_t kRepeats[] = {1, 60, 6000};
  for (TensorSpec& spec : specs) {
    if (rng.Below(4) != 0) continue;  // large updates take their time
    const bool is_dense = spec.aggregation.result_layout == ResultLayout::kDense;
    spec.num_rows = is_dense ? 50'000 : uint64_t{1} << (20 + 20 * rng.Below(2));
    if (!is_dense && rng.Below(4) == 0) spec.num_rows = 0;
    if (rng.Below(3) == 0) spec.row_width = 3;
    std::vector<RawSubmission> submissions;
    std::string text = Describe(spec);
    for (const char* const id : {"c", "a", "b", "d"}) {
      const KeyOrder order = rng.Coin() ? KeyOrder::kSortedUnique : KeyOrder::kShuffledUnique;
      const size_t num_repeats = kRepeats[rng.Below(3)];
      RawTensor raw;
      raw.keys = LoneKeysWithRepeats(rng, spec.num_rows, num_repeats, order);
      // Keys that all have, so that the order of the sums counts.
      if (!submissions.empty())
        std::copy_n(submissions[0].tensors[0].keys.begin(), raw.keys.size() / 4, raw.keys.begin());
      if (order == KeyOrder::kSortedUnique) std::sort(raw.keys.begin(), raw.keys.end());
      raw.has_values = spec.aggregation.op != Op::kUnion;
      const auto style = rng.Coin() ? ValueStyle::kUnit : ValueStyle::kZeros;
      if (raw.has_values) raw.values = RandomValues(rng, spec.dtype, raw.keys.size() * spec.row_width, style);
      const bool is_weighted = spec.aggregation.weighting == Weighting::kByWeight;
      const double weight = is_weighted ? static_cast<double>(1 + rng.Below(8)) : 1.0;
      absl::StrAppend(&text, "; ", num_repeats, order == KeyOrder::kSortedUnique ? " sorted" : " unsorted");
      submissions.push_back({id, weight, {std::move(raw)}});
    }
    SCOPED_TRACE(text);
    Run({spec}, submissions, {.shuffle_seed = seed});
    Run({spec}, {submissions[0]});
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sparseagg::testing
