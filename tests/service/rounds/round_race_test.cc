// Rounds: many threads at once.
#include <atomic>
#include <string>
#include <thread>

#include "tests/service/support/round_fixture.h"
#include "tests/service/support/threads.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

class RoundRaceTest : public RoundFixture {
 protected:
  // Has a submission that is prepared say so, and wait.
  void HoldPrepare() {
    hooks_.prepare = [this] {
      preparing_.Notify();
      go_.Wait();
      return absl::OkStatus();
    };
  }

  Event preparing_;
  Event go_;
};

TEST_F(RoundRaceTest, Submit_MoreThanMaxSubmissionsAtOnce_ExactlyThatManyCount) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    v1::RoundSpec spec = SumSpec();
    spec.set_max_submissions(5);
    const auto round = Open(spec, "r" + std::to_string(repeat));
    std::atomic<int> accepted{0};
    OnThreads(8, [&](int t) {
      for (int i = 0; i < 2; ++i) {
        const auto receipt = Submit(*round, std::to_string(t) + "." + std::to_string(i), {7}, {1});
        if (receipt.ok()) {
          ++accepted;
        } else {
          EXPECT_THAT(receipt, HasCode(Code::kFailedPrecondition));
        }
      }
    });
    EXPECT_EQ(accepted, 5);
    EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 5)));
  }
}

TEST_F(RoundRaceTest, Commit_RacingWithClose_CountsOrIsRefusedButNeverHalf) {
  int counted = 0;
  int refused = 0;
  for (int repeat = 0; repeat < 50; ++repeat) {
    v1::RoundSpec spec = SumSpec();
    *spec.add_tensors() = spec.tensors(0);
    spec.mutable_tensors(1)->set_name("w");
    const auto round = Open(spec, "r" + std::to_string(repeat));
    for (int t = 0; t < 4; ++t) {
      v1::UpdateChunk chunk = MakeChunk("", std::to_string(t), {7}, {1});
      *chunk.add_slices() = chunk.slices(0);
      chunk.mutable_slices(1)->set_tensor("w");
      ASSERT_THAT(Put(*round, chunk), IsOk());
    }
    std::atomic<int> accepted{0};
    OnThreads(5, [&](int t) {
      if (t == 4) return round->Close().IgnoreError();
      const auto receipt = CommitNamed(*round, std::to_string(t), std::to_string(t) + "-1");
      if (receipt.ok()) {
        ++accepted;
      } else {
        EXPECT_THAT(receipt, HasCode(Code::kFailedPrecondition));
      }
    });
    EXPECT_EQ(AwaitEnd(*round).num_submissions, accepted);
    const auto results = round->GetResults();
    ASSERT_THAT(results, IsOk());
    for (const Result& result : **results) {
      ASSERT_EQ(result.num_keys, accepted > 0 ? 1 : 0);
      float sum = 0;
      if (accepted > 0) std::copy_n(result.values.begin(), sizeof(sum), reinterpret_cast<std::byte*>(&sum));
      EXPECT_EQ(sum, accepted);
    }
    counted += accepted;
    refused += 4 - accepted;
  }
  std::cout << "counted " << counted << ", refused " << refused << "\n";
}

TEST_F(RoundRaceTest, Commit_HeldInPrepareWhileTheRoundCloses_IsRefusedAndFinishWaitsForIt) {
  HoldPrepare();
  const auto round = Open(SumSpec());
  absl::StatusOr<Receipt> receipt = absl::UnknownError("");
  std::thread client([&] { receipt = Submit(*round, "a", {1}, {1}); });
  preparing_.Wait();
  round->Close().IgnoreError();
  RunPendingTasks();
  EXPECT_EQ(round->Snapshot().state, RoundState::kFinalizing);
  go_.Notify();
  client.join();
  EXPECT_THAT(receipt, HasCode(Code::kFailedPrecondition));
  EXPECT_EQ(AwaitEnd(*round).num_submissions, 0);
}

TEST_F(RoundRaceTest, PutChunk_ZeroWithAnotherTagDuringTheCommit_NeitherWaitsNorChangesIt) {
  HoldPrepare();
  const auto round = Open(SumSpec());
  v1::UpdateChunk chunk = MakeChunk("", "a", {1}, {1});
  chunk.set_upload_tag("x");
  absl::StatusOr<Receipt> first = absl::UnknownError("");
  std::thread client([&] { first = Submit(*round, chunk); });
  preparing_.Wait();
  v1::UpdateChunk same = chunk;
  same.set_upload_tag("y");
  EXPECT_THAT(Put(*round, same), IsOk());
  EXPECT_EQ(round->Snapshot().num_uploads, 2);
  go_.Notify();
  client.join();
  ASSERT_THAT(first, IsOk());
  EXPECT_FALSE(first->duplicate);
  const auto second = CommitNamed(*round, "a", "a-1", "y");
  ASSERT_THAT(second, IsOk());
  EXPECT_TRUE(second->duplicate);
  EXPECT_EQ(round->Snapshot().num_refused, 0);
  EXPECT_EQ(round->Snapshot().num_uploads, 0);
  round->Close().IgnoreError();
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 1)));
}

TEST_F(RoundRaceTest, StatusAndChunks_OfAnUploadThatIsBeingCommitted_AreAnsweredMeanwhile) {
  HoldPrepare();
  const auto round = Open(SumSpec());
  absl::StatusOr<Receipt> receipt = absl::UnknownError("");
  std::thread client([&] { receipt = Submit(*round, "a", {1, 2}, {1, 1}); });
  preparing_.Wait();
  for (const auto& progress :
       {round->intake().GetProgress("a", "a-1"), Put(*round, MakeChunk("", "a", {1, 2}, {1, 1}))}) {
    EXPECT_THAT(progress, IsOk());
    if (!progress.ok()) continue;
    EXPECT_EQ(progress->next_sequence, 1);
    EXPECT_EQ(progress->received_tuples, 2);
    EXPECT_TRUE(progress->complete);
    EXPECT_FALSE(progress->committed);
  }
  EXPECT_THAT(Put(*round, MakeChunk("", "a", {1, 2}, {1, 2})),
              Fails(Code::kAlreadyExists, HasSubstr("chunk 0 has other content")));
  EXPECT_THAT(Put(*round, MakeChunk("", "a", {3}, {1}, 1)),
              Fails(Code::kFailedPrecondition, HasSubstr("chunk 1 after chunk 0, which was marked last")));
  go_.Notify();
  client.join();
  EXPECT_THAT(receipt, IsOk());
  EXPECT_EQ(round->Snapshot().num_refused, 0);
}

TEST_F(RoundRaceTest, CommitNamed_WhileTheUploadIsBeingCommitted_IsAnsweredWithItAndHoldsUpNobody) {
  for (const bool fails : {false, true}) {
    Event preparing;
    Event go;
    hooks_.prepare = [&] {
      preparing.Notify();
      go.Wait();
      return fails ? absl::ResourceExhaustedError("no room") : absl::OkStatus();
    };
    const auto round = Open(SumSpec(), fails ? "fails" : "counts");
    absl::StatusOr<Receipt> first = absl::UnknownError("");
    std::thread client([&] { first = Submit(*round, "a", {1}, {1}); });
    preparing.Wait();
    std::vector<absl::StatusOr<Receipt>> others;
    for (int i = 0; i < 3; ++i) {
      round->intake().CommitNamed("a", "a-1", "",
                                  [&](absl::StatusOr<Receipt> receipt) { others.push_back(std::move(receipt)); });
    }
    EXPECT_TRUE(others.empty());
    go.Notify();
    client.join();
    EXPECT_EQ(first.ok(), !fails);
    ASSERT_EQ(others.size(), 3);
    for (const auto& other : others) {
      ASSERT_EQ(other.status(), first.status());
      if (fails) continue;
      EXPECT_TRUE(other->duplicate);
      EXPECT_EQ(other->num_tuples, first->num_tuples);
    }
    EXPECT_EQ(round->Snapshot().num_submissions, fails ? 0 : 1);
    EXPECT_EQ(round->Snapshot().num_refused, fails ? 1 : 0);
  }
}

TEST_F(RoundRaceTest, CommitNamed_AgainWhileTheRoundIsCancelled_IsRefusedLikeTheFirst) {
  HoldPrepare();
  const auto round = Open(SumSpec());
  absl::StatusOr<Receipt> first = absl::UnknownError("");
  std::thread client([&] { first = Submit(*round, "a", {1}, {1}); });
  preparing_.Wait();
  absl::StatusOr<Receipt> second = absl::UnknownError("");
  round->intake().CommitNamed("a", "a-1", "", [&](absl::StatusOr<Receipt> receipt) { second = std::move(receipt); });
  EXPECT_THAT(round->Cancel("stop"), IsOk());
  go_.Notify();
  client.join();
  EXPECT_THAT(first, HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(second, HasCode(Code::kFailedPrecondition));
}

TEST_F(RoundRaceTest, Submit_OneSubmissionInChunksOfManySizesAtOnce_CountsOnceAndWhole) {
  std::map<uint64_t, float> expected;
  for (uint32_t key = 0; key < 60; ++key) expected[key] = static_cast<float>(key);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const auto round = Open(SumSpec(), "r" + std::to_string(repeat));
    std::atomic<int> accepted{0};
    OnThreads(4, [&](int t) {
      const uint32_t size = 60 / static_cast<uint32_t>(t + 2);
      for (uint32_t begin = 0; begin < 60; begin += size) {
        std::vector<uint32_t> keys;
        std::vector<float> values;
        for (uint32_t key = begin; key < begin + size; ++key) {
          keys.push_back(key);
          values.push_back(static_cast<float>(key));
        }
        v1::UpdateChunk chunk = MakeChunk("", "a", keys, values, begin / size, begin + size == 60);
        chunk.set_upload_tag(std::to_string(size));
        const absl::Status status = Put(*round, chunk).status();
        if (!status.ok()) {
          EXPECT_THAT(status, HasCode(Code::kFailedPrecondition));
          return;
        }
      }
      const auto receipt = CommitNamed(*round, "a", "a-1", std::to_string(size));
      if (receipt.ok() && !receipt->duplicate) ++accepted;
    });
    EXPECT_EQ(accepted, 1);
    round->Close().IgnoreError();
    EXPECT_EQ(ResultOf(*round), expected);
  }
}

TEST_F(RoundRaceTest, Commit_HeldInAddWhileTheRoundCloses_CountsTowardsTheQuorum) {
  Hold adding;
  hooks_.add = adding.Hook();
  v1::RoundSpec spec = SumSpec();
  spec.set_min_submissions(1);
  const auto round = Open(spec);
  absl::StatusOr<Receipt> receipt = absl::UnknownError("");
  std::thread client([&] { receipt = Submit(*round, "a", {1}, {1}); });
  adding.Wait();
  round->Close().IgnoreError();
  EXPECT_EQ(round->Snapshot().num_uploads, 1);  // still known: a second commit of it would wait for this one
  adding.Release();
  client.join();
  EXPECT_THAT(receipt, IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 1)));
}

TEST_F(RoundRaceTest, Commit_HeldInAddWhileTheRoundIsCancelled_DoesNotCount) {
  Hold adding;
  hooks_.add = adding.Hook();
  const auto round = Open(SumSpec());
  absl::StatusOr<Receipt> receipt = absl::UnknownError("");
  std::thread client([&] { receipt = Submit(*round, "a", {1}, {1}); });
  adding.Wait();
  EXPECT_THAT(round->Cancel("stop"), IsOk());
  adding.Release();
  client.join();
  EXPECT_THAT(receipt, HasCode(Code::kFailedPrecondition));
  EXPECT_EQ(round->Snapshot().num_submissions, 0);
}

}  // namespace
}  // namespace sparseagg::service
