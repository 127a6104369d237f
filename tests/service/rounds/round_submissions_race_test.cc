// Rounds: submissions withdrawn and left out by the close, while others commit.
//
// Client t sends the value 2^t, so that the sum says who counts.
#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "tests/service/support/round_fixture.h"
#include "tests/service/support/threads.h"

namespace sparseagg::service {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using Code = absl::StatusCode;

class RoundSubmissionsRaceTest : public RoundFixture {
 protected:
  static absl::StatusOr<Receipt> SubmitBit(Round& round, int t) {
    return Submit(round, std::to_string(t), {7}, {static_cast<float>(1 << t)});
  }

  // Expects that the list, the figures and the sum of an ended round agree. Returns: bit t is set if client t counts.
  static int WhoCounts(Round& round) {
    AwaitEnd(round);
    const auto page = round.ListSubmissions(100, "");
    EXPECT_THAT(page, IsOk());
    int listed = 0;
    for (const Receipt& receipt : page->submissions) listed |= 1 << std::stoi(receipt.client_id);
    EXPECT_EQ(round.Snapshot().num_submissions, page->submissions.size());
    EXPECT_EQ(round.Snapshot().num_tuples, page->submissions.size());
    const auto result = ResultOf(round);
    if (listed == 0) {
      EXPECT_THAT(result, IsEmpty());
    } else {
      EXPECT_THAT(result, ElementsAre(Pair(7, static_cast<float>(listed))));
    }
    return listed;
  }
};

TEST_F(RoundSubmissionsRaceTest, Withdraw_AgainstCommitsAndTheClose_EachIsDoneOrNot) {
  int num_withdrawn = 0;
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto round = Open(SumSpec(), "r" + std::to_string(repeat));
    std::array<bool, 4> accepted = {};
    std::array<bool, 4> withdrawn = {};
    OnThreads(6, [&](int t) {
      if (t < 4) {
        const auto receipt = SubmitBit(*round, t);
        accepted[t] = receipt.ok();
        if (!receipt.ok()) {
          EXPECT_THAT(receipt, HasCode(Code::kFailedPrecondition));
        }
      } else if (t == 4) {
        for (int client = 3; client >= 0; --client) {
          const auto answer = round->Withdraw(std::to_string(client), "");
          withdrawn[client] = answer.ok() && *answer;
          if (!answer.ok()) {
            EXPECT_THAT(answer, HasCode(Code::kFailedPrecondition));
          }
        }
      } else {
        if (repeat % 2 == 0) std::this_thread::yield();
        round->Close().IgnoreError();
      }
    });
    int expected = 0;
    for (int t = 0; t < 4; ++t) {
      if (accepted[t] && !withdrawn[t]) expected |= 1 << t;
      EXPECT_TRUE(accepted[t] || !withdrawn[t]);
      num_withdrawn += withdrawn[t];
    }
    EXPECT_EQ(WhoCounts(*round), expected);
  }
  std::cout << "withdrawn " << num_withdrawn << "\n";
}

TEST_F(RoundSubmissionsRaceTest, Withdraw_AgainstRetriesOfTheSameCommit_IsAnsweredForEach) {
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto round = Open(SumSpec(), "r" + std::to_string(repeat));
    ASSERT_THAT(Put(*round, MakeChunk("", "0", {7}, {1})), IsOk());
    std::atomic<int> firsts{0};
    bool withdrawn = false;
    OnThreads(5, [&](int t) {
      if (t == 4) {
        const auto answer = round->Withdraw("0", "0-1");
        ASSERT_THAT(answer, IsOk());
        withdrawn = *answer;
        return;
      }
      const auto receipt = CommitNamed(*round, "0", "0-1");
      if (receipt.ok()) {
        firsts += receipt->duplicate ? 0 : 1;
      } else {
        EXPECT_THAT(receipt, HasCode(Code::kNotFound));
        EXPECT_THAT(round->ListSubmissions(1, "")->submissions, IsEmpty());
      }
    });
    EXPECT_EQ(firsts, 1);
    round->Close().IgnoreError();
    EXPECT_EQ(WhoCounts(*round), withdrawn ? 0 : 1);
  }
}

TEST_F(RoundSubmissionsRaceTest, SubmitAndWithdraw_OfTheSameClientsOverAndOver_LeaveNothingBehind) {
  const auto empty = Open(SumSpec(), "empty");
  const uint64_t reserved = context().budget.reserved();
  const auto round = Open(SumSpec());
  OnThreads(6, [&](int t) {
    const int client = t % 3;
    for (int i = 0; i < 100; ++i) {
      const auto receipt = SubmitBit(*round, client);
      // The other thread of this client may have committed this thread's upload, and withdrawn it.
      if (!receipt.ok()) {
        EXPECT_THAT(StatusOf(receipt).code(), AnyOf(Code::kNotFound, Code::kFailedPrecondition));
      }
      EXPECT_THAT(round->Withdraw(std::to_string(client), ""), IsOk());
    }
  });
  EXPECT_EQ(round->Snapshot().num_submissions, 0);
  round->Close().IgnoreError();
  EXPECT_EQ(WhoCounts(*round), 0);
  RunPendingTasks();
  EXPECT_EQ(context().budget.reserved(), 2 * reserved);
}

TEST_F(RoundSubmissionsRaceTest, CloseWithOnly_AgainstCommits_CountsExactlyThose) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    const auto round = Open(SumSpec(), "r" + std::to_string(repeat));
    for (int t = 4; t < 8; ++t) ASSERT_THAT(SubmitBit(*round, t), IsOk());
    OnThreads(6, [&](int t) {
      if (t < 4) {
        const auto receipt = SubmitBit(*round, t);
        if (!receipt.ok()) {
          EXPECT_THAT(receipt, HasCode(Code::kFailedPrecondition));
        }
      } else {
        EXPECT_THAT(round->CloseWithOnly(std::vector<std::string>{"4", "6"}), IsOk());
      }
    });
    EXPECT_EQ(WhoCounts(*round), 1 << 4 | 1 << 6);
  }
}

TEST_F(RoundSubmissionsRaceTest, CloseWithOnly_TwoListsAtOnce_OneOfThemCounts) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    const auto round = Open(SumSpec(), "r" + std::to_string(repeat));
    for (int t = 0; t < 3; ++t) ASSERT_THAT(SubmitBit(*round, t), IsOk());
    std::array<absl::Status, 2> statuses;
    OnThreads(2, [&](int t) { statuses[t] = round->CloseWithOnly(std::vector<std::string>{"2", std::to_string(t)}); });
    ASSERT_NE(statuses[0].ok(), statuses[1].ok());
    const int winner = statuses[0].ok() ? 0 : 1;
    EXPECT_THAT(statuses[1 - winner], HasCode(Code::kFailedPrecondition));
    EXPECT_EQ(WhoCounts(*round), 1 << 2 | 1 << winner);
  }
}

// The close waits for the commit, which then counts no more.
TEST_F(RoundSubmissionsRaceTest, CloseWithOnly_DuringAnAdd_LeavesItOut) {
  Event adding;
  Event go;
  std::atomic<bool> holds = false;
  hooks_.add = [&] {
    if (!holds) return absl::OkStatus();
    adding.Notify();
    go.Wait();
    return absl::OkStatus();
  };
  const auto round = Open(SumSpec());
  ASSERT_THAT(SubmitBit(*round, 0), IsOk());
  holds = true;
  absl::StatusOr<Receipt> receipt = absl::UnknownError("");
  std::thread client([&] { receipt = SubmitBit(*round, 1); });
  adding.Wait();
  absl::Status closed = absl::UnknownError("");
  std::thread coordinator([&] { closed = round->CloseWithOnly(std::vector<std::string>{"0"}); });
  go.Notify();
  client.join();
  coordinator.join();
  EXPECT_THAT(closed, IsOk());
  EXPECT_THAT(receipt, IsOk());
  EXPECT_EQ(WhoCounts(*round), 1);
}

// A plain close has found the commit in its Add. A second close must not answer before the commit is decided.
TEST_F(RoundSubmissionsRaceTest, CloseWithOnly_ClosedDuringAnAdd_ComparesWithWhatThatAdds) {
  Hold adding;
  hooks_.add = adding.Hook();
  const auto round = Open(SumSpec());
  std::thread client([&] { EXPECT_THAT(SubmitBit(*round, 1), IsOk()); });
  adding.Wait();
  round->Close().IgnoreError();
  absl::Status closed = absl::UnknownError("");
  std::thread coordinator([&] { closed = round->CloseWithOnly(std::vector<std::string>{"1"}); });
  adding.Release();
  client.join();
  coordinator.join();
  EXPECT_THAT(closed, IsOk());
  EXPECT_EQ(WhoCounts(*round), 2);
}

}  // namespace
}  // namespace sparseagg::service
