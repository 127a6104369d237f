// Seeded random aggregations: engine and reference agree on every submission and on every bit.
//
// In any order of arrival, chunking and number of threads, split over aggregations that are merged, directly or as
// partials, and folded early. Repeat one case with
//   SPARSEAGG_TEST_SEED=17 SPARSEAGG_TEST_CASES=1
#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/sanitized.h"

namespace sparseagg::testing {
namespace {

constexpr uint64_t kDefaultCases = kSanitized ? 800 : 2500;

// The ways in which every case is driven.
std::vector<DriveOptions> Ways(uint64_t seed, Engine& engine, Engine& other) {
  return {{},
          {.shuffle_seed = seed},
          {.shuffle_seed = seed + 1, .num_aggregations = 2},
          {.shuffle_seed = seed + 2, .num_aggregations = 5},
          {.shuffle_seed = seed + 4, .num_aggregations = static_cast<int>(1 + seed % 8), .partial_engine = &engine},
          {.shuffle_seed = seed + 5, .num_aggregations = 3, .partial_engine = &other},
          {.fold_seed = seed + 3}};
}

// Returns: what is wrong with one run; empty if nothing is.
std::string RunOnce(Engine& engine, const Case& c, const DriveOptions& options, const Verdict& verdict) {
  try {
    return Disagreement(c.specs, Drive(engine, c.specs, c.submissions, options), verdict);
  } catch (const std::exception& error) {
    return absl::StrCat("an exception: ", error.what());
  }
}

// Returns: the first disagreement over all engines and ways; empty if there is none.
std::string FindDisagreement(const Case& c, const std::vector<EngineCase>& engines) {
  const Verdict verdict = Judge(c.specs, c.submissions);
  for (const EngineCase& engine_case : engines) {
    const std::unique_ptr<Engine> engine = engine_case.create();
    int way = 0;
    const std::unique_ptr<Engine> other = engines[c.seed % engines.size()].create();
    for (const DriveOptions& options : Ways(c.seed, *engine, *other)) {
      const std::string text = RunOnce(*engine, c, options, verdict);
      if (!text.empty()) return absl::StrCat(engine_case.name, ", way ", way, ": ", text);
      ++way;
    }
  }
  return "";
}

// Runs `count` cases that `generate` makes of seeds.
void RunCases(Case (*generate)(uint64_t seed), uint64_t count) {
  const std::vector<EngineCase> engines = AvailableEngines();
  const uint64_t first = TestSeed(1);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Case c = generate(seed);
    for (const TensorSpec& spec : c.specs) {
      const absl::Status status = Validate(spec);
      ASSERT_TRUE(status.ok()) << "the generator made a bad spec: " << status << "\n" << Describe(c);
    }
    const std::string disagreement = FindDisagreement(c, engines);
    if (disagreement.empty()) continue;
    FAIL() << "SPARSEAGG_TEST_SEED=" << seed << " SPARSEAGG_TEST_CASES=1\n" << disagreement << "\n" << Describe(c);
  }
}

TEST(Differential, RandomCases_EveryEngineEveryOrder_EqualTheReference) {
  RunCases(RandomCase, TestCases(kDefaultCases));
}

TEST(Differential, RandomCasesWithCutsAndMoments_EveryEngineEveryOrder_EqualTheReference) {
  RunCases(RandomCutCase, TestCases(kDefaultCases / 2));
}

// The generator is worth its name only if its cases reach what they are meant to reach.
TEST(Differential, RandomCases_CoverTheContract) {
  struct Seen {
    int results = 0;
    int failures_by_weight = 0;
    int failures_by_overflow = 0;
    int failures_by_emptiness = 0;
    int kept_empty = 0;
    int refused_invalid = 0;
    int refused_out_of_range = 0;
    int dense_by_fallback = 0;
    int binned = 0;
    int rows = 0;
    int unions = 0;
  } seen;
  for (uint64_t seed = 1; seed <= 800; ++seed) {
    const Case c = RandomCase(seed);
    const Verdict verdict = Judge(c.specs, c.submissions);
    for (const std::vector<absl::Status>& flaws : verdict.flaws) {
      if (flaws.empty()) continue;
      (flaws.front().code() == absl::StatusCode::kOutOfRange ? seen.refused_out_of_range : seen.refused_invalid)++;
    }
    for (const Failure& failure : verdict.failures) {
      if (failure.is_empty) {
        seen.failures_by_emptiness++;
        continue;
      }
      (failure.code == absl::StatusCode::kOutOfRange ? seen.failures_by_overflow : seen.failures_by_weight)++;
    }
    for (size_t t = 0; t < verdict.results.size(); ++t) {
      const Result& result = verdict.results[t];
      const bool is_auto = c.specs[t].aggregation.result_layout == ResultLayout::kAuto;
      seen.results++;
      seen.rows += result.num_keys > 0;
      seen.dense_by_fallback += is_auto && result.layout == Layout::kDense;
      seen.binned += c.specs[t].aggregation.numerics == Numerics::kBinned;
      seen.unions += !result.has_values;
      seen.kept_empty +=
          c.specs[t].layout == Layout::kDense && result.layout == Layout::kSparse && result.num_keys == 0;
    }
  }
  EXPECT_GE(seen.results, 400);
  EXPECT_GE(seen.rows, 200);
  EXPECT_GE(seen.failures_by_weight, 3);
  EXPECT_GE(seen.failures_by_overflow, 3);
  EXPECT_GE(seen.failures_by_emptiness, 2);
  EXPECT_GE(seen.kept_empty, 2);
  EXPECT_GE(seen.refused_invalid, 100);
  EXPECT_GE(seen.refused_out_of_range, 3);
  EXPECT_GE(seen.dense_by_fallback, 20);
  EXPECT_GE(seen.binned, 30);
  EXPECT_GE(seen.unions, 30);
}

}  // namespace
}  // namespace sparseagg::testing
