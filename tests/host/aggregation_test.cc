// Aggregation: creation, submissions of several tensors, merging, concurrent Prepare.
#include "host/aggregation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/failing_allocation.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/results.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorSpec Named(std::string name, DType dtype = DType::kFloat32) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.dtype = dtype;
  spec.num_rows = 100;
  return spec;
}

class AggregationTest : public ::testing::Test {
 protected:
  std::unique_ptr<Aggregation> Create(std::vector<TensorSpec> specs) {
    auto aggregation = Aggregation::Create(*engine_, std::move(specs));
    EXPECT_TRUE(aggregation.ok()) << aggregation.status();
    return *std::move(aggregation);
  }

  // One key with one value in every tensor.
  absl::Status Add(Aggregation& aggregation, std::string id, uint64_t key, double value) {
    RawSubmission submission{std::move(id), 1.0, {}};
    for (const TensorSpec& spec : aggregation.tensors())
      submission.tensors.push_back({{key}, Pack(spec.dtype, {value})});
    return Submit(aggregation, submission);
  }

  std::unique_ptr<Engine> engine_ = AvailableEngines().front().create();
};

TEST_F(AggregationTest, MergeFrom_AClientOnBothSides_IsRefused) {
  const auto ours = Create({Named("t")});
  const auto theirs = Create({Named("t")});
  ASSERT_TRUE(Add(*ours, "a", 5, 2.0).ok());
  ASSERT_TRUE(Add(*theirs, "b", 5, 3.0).ok());
  ASSERT_TRUE(Add(*theirs, "a", 5, 3.0).ok());
  const absl::Status status = ours->MergeFrom(std::move(*theirs));
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'a'"));
  EXPECT_EQ(ours->num_submissions(), 1u);
  const auto results = std::move(*ours).Finish();
  ASSERT_TRUE(results.ok());
  EXPECT_THAT(FloatsOf(results->front()), ElementsAre(2.0));
}

TEST_F(AggregationTest, FoldSoFar_WithoutALimit_TakesNoEarlierClientAfterIt) {
  const auto aggregation = Create({Named("t", DType::kFloat64), Named("u", DType::kInt64)});
  ASSERT_TRUE(Add(*aggregation, "b", 5, 1e17).ok());
  ASSERT_TRUE(Add(*aggregation, "d", 5, 3.0).ok());
  ASSERT_TRUE(aggregation->FoldPending().ok());
  const absl::Status status = Add(*aggregation, "a", 5, -1e17);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'a'"), HasSubstr("'d'")));
  EXPECT_EQ(aggregation->num_submissions(), 2u);
  EXPECT_TRUE(Add(*aggregation, "e", 5, -1e17).ok());
  EXPECT_EQ(aggregation->num_submissions(), 3u);
}

TEST_F(AggregationTest, FoldSoFar_ThatFails_LeavesTheOrderOpen) {
  const auto ours = Create({Named("t", DType::kFloat64)});
  const auto theirs = Create({Named("t", DType::kFloat64)});
  ASSERT_TRUE(Add(*ours, "d", 5, 1e17).ok());
  ASSERT_TRUE(Add(*theirs, "b", 5, 3.0).ok());
  const auto folds = [&] {
    const FailingAllocation failing(0, 100);  // more than the list of clients takes
    try {
      return ours->FoldPending().ok();
    } catch (const std::bad_alloc&) {
      return false;
    }
  };
  EXPECT_FALSE(folds());
  const absl::Status added = Add(*ours, "a", 5, -1e17);
  EXPECT_TRUE(added.ok()) << added;
  const absl::Status merged = ours->MergeFrom(std::move(*theirs));
  EXPECT_TRUE(merged.ok()) << merged;
  const auto results = std::move(*ours).Finish();
  ASSERT_TRUE(results.ok());
  EXPECT_THAT(FloatsOf(results->front()), ElementsAre((-1e17 + 3.0) + 1e17));
}

TEST_F(AggregationTest, Tuples_MoreThan2To64_AreNotTakenForFew) {
  TensorSpec spec = Named("t");
  spec.num_rows = 0;
  spec.aggregation.op = Op::kUnion;
  const auto aggregation = Create({spec});
  for (const char* const id : {"a", "b"}) {
    UpdateColumns columns;
    columns.keys = KeyRun{0, uint64_t{1} << 63};
    const auto update = ValidatedUpdate::Create(spec, columns, 1.0);
    ASSERT_TRUE(update.ok());
    auto prepared = aggregation->Prepare({*update});
    ASSERT_TRUE(prepared.ok());
    ASSERT_TRUE(aggregation->Add(id, *std::move(prepared)).ok());
  }
  EXPECT_THROW((void)std::move(*aggregation).Finish(), std::bad_alloc);
}

TEST_F(AggregationTest, Prepare_FromManyThreads_GivesTheSameBits) {
  TensorSpec spec = Named("t");
  spec.num_rows = 5000;
  TensorSpec binned = Named("binned");
  binned.aggregation.numerics = Numerics::kBinned;
  const std::vector<TensorSpec> specs = {spec, binned};
  Rng rng(TestSeed(5));
  std::vector<RawSubmission> submissions;
  for (int i = 0; i < 64; ++i) {
    RawSubmission submission{"client " + std::to_string(i), 1.0, {}};
    for (const TensorSpec& s : specs) {
      RawTensor raw;
      raw.keys = RandomKeys(rng, s.num_rows, 500, KeyStyle::kZipf, KeyOrder::kShuffled);
      raw.values = RandomValues(rng, s.dtype, raw.keys.size(), ValueStyle::kUnit);
      submission.tensors.push_back(std::move(raw));
    }
    submissions.push_back(std::move(submission));
  }
  const auto aggregation = Create(specs);
  std::vector<absl::StatusOr<PreparedSubmission>> prepared(submissions.size());
  std::vector<std::thread> threads;
  for (size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (size_t i = first; i < submissions.size(); i += 4) {
        auto updates = BuildUpdates(specs, submissions[i], i);
        prepared[i] = updates.ok() ? aggregation->Prepare(*std::move(updates)) : updates.status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = submissions.size(); i-- > 0;) {
    ASSERT_TRUE(prepared[i].ok()) << prepared[i].status();
    ASSERT_TRUE(aggregation->Add(submissions[i].client_id, *std::move(prepared[i])).ok());
  }
  const auto results = std::move(*aggregation).Finish();
  ASSERT_TRUE(results.ok());
  const auto expected = Reference(specs, submissions);
  ASSERT_TRUE(expected.ok());
  EXPECT_EQ(Diff(*results, *expected), "");
}

}  // namespace
}  // namespace sparseagg::testing
