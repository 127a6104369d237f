// What Python cannot show under the sanitizers: many threads at one round, and owners let go of on any of them.
#include "python/engine/local_round.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sparseagg::python {
namespace {

constexpr uint64_t kNumRows = 4096;

TensorSpec Spec(Numerics numerics) {
  TensorSpec spec;
  spec.name = "v";
  spec.num_rows = kNumRows;
  spec.aggregation.numerics = numerics;
  spec.aggregation.return_counts = true;
  return spec;
}

std::unique_ptr<LocalRound> Open(Numerics numerics, int threads, const RoundLimits& limits = {}) {
  return *LocalRound::Create({Spec(numerics)}, limits, {.threads = threads});
}

// A client's arrays, and how many of them are held.
struct Arrays {
  explicit Arrays(int client) {
    // Odd clients are out of order, so that they are sorted when they come.
    for (uint32_t i = 0; i < 500; ++i) keys.push_back((i * (client % 2 == 0 ? 8 : 2049) + client) % kNumRows);
    for (uint32_t i = 0; i < 500; ++i) values.push_back(0.1f * static_cast<float>(i % 7) + 0.01f * client);
    ++alive;
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays() { --alive; }
  std::vector<uint32_t> keys;
  std::vector<float> values;
  static std::atomic<int> alive;
};
std::atomic<int> Arrays::alive{0};

Submission Of(int client) {
  auto arrays = std::make_shared<Arrays>(client);
  Submission submission;
  submission.client_id = absl::StrCat("client-", client);
  InputTensor tensor;
  tensor.keys = absl::MakeConstSpan(arrays->keys);
  tensor.values = reinterpret_cast<const std::byte*>(arrays->values.data());
  submission.tensors = {tensor};
  submission.owner = std::move(arrays);
  return submission;
}

std::vector<Submission> All(int count) {
  std::vector<Submission> submissions;
  for (int client = 0; client < count; ++client) submissions.push_back(Of(client));
  return submissions;
}

Result FinishOne(LocalRound& round) { return std::move((*round.Finish())[0]); }

class LocalRoundTest : public testing::TestWithParam<Numerics> {
 protected:
  void TearDown() override { EXPECT_EQ(Arrays::alive, 0) << "arrays that nobody needs are held"; }
};

TEST_P(LocalRoundTest, Batch_AnyThreads_SameBits) {
  const auto one = Open(GetParam(), 1);
  const auto two = Open(GetParam(), 2);
  ASSERT_TRUE(one->Add(All(40)).ok());
  ASSERT_TRUE(two->Add(All(40)).ok());
  EXPECT_EQ(one->num_submissions(), 40u);
  EXPECT_EQ(one->num_tuples(), 20000u);
  EXPECT_EQ(one->num_bytes(), 160000u);
  const Result a = FinishOne(*one);
  const Result b = FinishOne(*two);
  EXPECT_EQ(a.keys, b.keys);
  EXPECT_EQ(a.values, b.values);
  EXPECT_EQ(a.counts, b.counts);
}

TEST_P(LocalRoundTest, AddsFromManyThreads_SameBitsAsOneBatch) {
  const auto expected = Open(GetParam(), 2);
  ASSERT_TRUE(expected->Add(All(40)).ok());
  const auto round = Open(GetParam(), 2);
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int client = next++; client < 40; client = next++) {
        std::vector<Submission> submissions;
        submissions.push_back(Of(client));
        EXPECT_TRUE(round->Add(std::move(submissions)).ok());
        EXPECT_GT(round->memory_bytes(), 0u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(FinishOne(*round).values, FinishOne(*expected).values);
}

TEST_P(LocalRoundTest, FinishWhileOthersAdd_TakesWhatIsIn) {
  const auto round = Open(GetParam(), 2);
  std::atomic<int> added{0};
  std::thread adder([&] {
    for (int client = 0; client < 40; ++client) {
      std::vector<Submission> submissions;
      submissions.push_back(Of(client));
      const absl::Status status = round->Add(std::move(submissions));
      if (!status.ok()) {
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
        return;
      }
      ++added;
    }
  });
  while (added < 3) std::this_thread::yield();
  const Result result = FinishOne(*round);
  adder.join();
  EXPECT_GT(result.num_keys, 0u);
  EXPECT_EQ(round->num_submissions(), static_cast<uint64_t>(added));
}

TEST_P(LocalRoundTest, KeysOverwrittenAfterAdd_CountAsTheyWere) {
  const auto expected = Open(GetParam(), 2);
  ASSERT_TRUE(expected->Add(All(8)).ok());
  const auto round = Open(GetParam(), 2);
  std::vector<Submission> submissions = All(8);
  std::vector<std::shared_ptr<const void>> owners;
  for (const Submission& submission : submissions) owners.push_back(submission.owner);
  ASSERT_TRUE(round->Add(std::move(submissions)).ok());
  for (const auto& owner : owners) {
    auto& keys = const_cast<Arrays*>(static_cast<const Arrays*>(owner.get()))->keys;
    std::fill(keys.begin(), keys.end(), std::numeric_limits<uint32_t>::max());
  }
  const auto results = round->Finish();
  ASSERT_TRUE(results.ok()) << results.status();
  const Result wanted = FinishOne(*expected);
  EXPECT_EQ(results->front().keys, wanted.keys);
  EXPECT_EQ(results->front().values, wanted.values);
}

// The thread sanitizer calls this a race, which it is; the address sanitizer sees that it corrupts nothing.
#ifndef __SANITIZE_THREAD__
TEST_P(LocalRoundTest, KeysOverwrittenDuringAddAndFinish_AreMergedOrRefused) {
  constexpr int kSubmissions = 8;
  std::vector<std::unique_ptr<Arrays>> arrays;
  for (int client = 0; client < kSubmissions; ++client) arrays.push_back(std::make_unique<Arrays>(2 * client));
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (uint32_t turn = 0; !stop; ++turn) {
      auto& keys = arrays[turn % kSubmissions]->keys;
      for (size_t i = 0; i < keys.size(); ++i) {
        // Ascending for a while, then in a mess, some of it beyond num_rows.
        const auto ascending = static_cast<uint32_t>(i * 8);
        static_cast<volatile uint32_t&>(keys[i]) = turn / kSubmissions % 4 != 0 ? ascending : ascending * (turn | 1);
      }
    }
  });
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto round = Open(GetParam(), 2);
    for (int client = 0; client < kSubmissions; ++client) {
      std::vector<Submission> one(1);
      one[0].client_id = absl::StrCat("client-", client);
      InputTensor tensor;
      tensor.keys = absl::MakeConstSpan(arrays[client]->keys);
      tensor.values = reinterpret_cast<const std::byte*>(arrays[client]->values.data());
      one[0].tensors = {tensor};
      const absl::Status added = round->Add(std::move(one));
      EXPECT_TRUE(added.ok() || added.code() == absl::StatusCode::kInvalidArgument) << added;
    }
    const auto results = round->Finish();
    EXPECT_TRUE(results.ok()) << results.status();
  }
  stop = true;
  writer.join();
}
#endif

TEST_P(LocalRoundTest, Merge_BothWaysAtOnce_OneOfThemHasAll) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto a = Open(GetParam(), 1);
    const auto b = Open(GetParam(), 1);
    std::vector<Submission> all = All(2);
    std::vector<Submission> second;
    second.push_back(std::move(all.back()));
    all.pop_back();
    ASSERT_TRUE(a->Add(std::move(all)).ok());
    ASSERT_TRUE(b->Add(std::move(second)).ok());
    absl::Status into_a;
    absl::Status into_b;
    std::thread one([&] { into_a = a->MergeFrom(*b); });
    std::thread two([&] { into_b = b->MergeFrom(*a); });
    one.join();
    two.join();
    EXPECT_NE(into_a.ok(), into_b.ok()) << into_a << into_b;
    LocalRound& left = into_a.ok() ? *a : *b;
    EXPECT_EQ(left.num_submissions(), 2u);
    EXPECT_TRUE(left.Finish().ok());
  }
}

TEST_P(LocalRoundTest, RefusedInABatch_KeepsThoseBeforeIt) {
  const auto round = Open(GetParam(), 2);
  std::vector<Submission> submissions = All(10);
  submissions[6].client_id = "client-2";
  const absl::Status status = round->Add(std::move(submissions));
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(status.message().find("client 'client-2' "), 0u) << status;
  EXPECT_EQ(round->num_submissions(), 6u);
  EXPECT_TRUE(round->Finish().ok());
}

TEST_P(LocalRoundTest, Spent_RefusesEverything) {
  const auto round = Open(GetParam(), 1);
  ASSERT_TRUE(round->Finish().ok());
  EXPECT_EQ(round->Add(All(1)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(round->Finish().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(round->MergeFrom(*Open(GetParam(), 1)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(round->memory_bytes(), 0u);
}

TEST_P(LocalRoundTest, MergeBeyondMaxSubmissions_LeavesBothAsTheyWere) {
  const auto a = Open(GetParam(), 1, {.max_submissions = 3});
  const auto b = Open(GetParam(), 1);
  std::vector<Submission> all = All(4);
  std::vector<Submission> rest;
  for (int i = 0; i < 2; ++i) {
    rest.push_back(std::move(all.back()));
    all.pop_back();
  }
  ASSERT_TRUE(a->Add(std::move(all)).ok());
  ASSERT_TRUE(b->Add(std::move(rest)).ok());
  EXPECT_EQ(a->MergeFrom(*b).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(a->num_submissions(), 2u);
  EXPECT_EQ(b->num_submissions(), 2u);
  EXPECT_TRUE(a->Finish().ok());
  EXPECT_TRUE(b->Finish().ok());
}

INSTANTIATE_TEST_SUITE_P(Numerics, LocalRoundTest, testing::Values(Numerics::kCanonical, Numerics::kBinned),
                         [](const auto& param_info) {
                           return param_info.param == Numerics::kCanonical ? "Canonical" : "Binned";
                         });

}  // namespace
}  // namespace sparseagg::python
