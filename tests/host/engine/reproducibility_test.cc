// One result hash for each numerics mode, in any order, chunking, thread count and merge tree.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/results.h"

namespace sparseagg::testing {
namespace {

std::vector<RawSubmission> Updates(const TensorSpec& spec, uint64_t seed) {
  Rng rng(seed);
  std::vector<RawSubmission> submissions;
  for (int i = 0; i < 40; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, spec.num_rows, 500, KeyStyle::kZipf,
                          i % 2 == 0 ? KeyOrder::kSortedUnique : KeyOrder::kShuffled);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size() * spec.row_width, ValueStyle::kUnit);
    submissions.push_back({"client " + std::to_string(i), rng.Unit(), {std::move(raw)}});
  }
  return submissions;
}

TEST(Reproducibility, TwentyOrdersAndChunkings_AllEngines_OneDigestPerMode) {
  const uint64_t seed = TestSeed(7);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  std::set<uint64_t> of_modes;
  for (const Numerics numerics : {Numerics::kCanonical, Numerics::kFixedPoint}) {
    TensorSpec spec;
    spec.name = "t";
    spec.num_rows = 20000;
    spec.row_width = 4;
    spec.aggregation.op = Op::kCoordinateMean;
    spec.aggregation.weighting = Weighting::kByWeight;
    spec.aggregation.return_counts = true;
    spec.aggregation.return_weights = true;
    spec.aggregation.numerics = numerics;
    spec.aggregation.value_bound = 512.0;
    spec.aggregation.weight_bound = 1.0;
    spec.aggregation.max_submissions = 40;
    const std::vector<RawSubmission> submissions = Updates(spec, seed);
    std::set<uint64_t> digests;
    for (const EngineCase& engine_case : AvailableEngines()) {
      const std::unique_ptr<Engine> engine = engine_case.create();
      for (uint64_t i = 0; i < 20; ++i) {
        const Driven driven = Drive(*engine, {spec}, submissions,
                                    {.shuffle_seed = seed + i, .num_aggregations = static_cast<int>(1 + i % 4)});
        ASSERT_TRUE(driven.results.ok()) << driven.results.status();
        digests.insert(ResultDigest(*driven.results));
      }
    }
    EXPECT_EQ(digests.size(), 1u);
    of_modes.insert(digests.begin(), digests.end());
  }
  EXPECT_EQ(of_modes.size(), 2u) << "the two modes round differently; one digest would mean that nothing is compared";
}

TEST(Reproducibility, ClientIds_DecideTheCanonicalOrder) {
  TensorSpec spec;
  spec.name = "t";
  spec.dtype = DType::kFloat64;
  spec.num_rows = 100;
  std::vector<RawSubmission> submissions = Updates(spec, 3);
  const std::unique_ptr<Engine> engine = AvailableEngines().front().create();
  const Driven before = Drive(*engine, {spec}, submissions);
  for (size_t i = 0; i < submissions.size(); ++i) submissions[i].client_id = std::to_string(submissions.size() - i);
  const Driven after = Drive(*engine, {spec}, submissions);
  ASSERT_TRUE(before.results.ok() && after.results.ok());
  EXPECT_NE(ResultDigest(*before.results), ResultDigest(*after.results)) << "a sum in another order has other bits";
}

}  // namespace
}  // namespace sparseagg::testing
