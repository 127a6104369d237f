// Rounds: a close that names who counts.
#include <string>
#include <utility>

#include "tests/service/support/busy_thread.h"
#include "tests/service/support/submissions_fixture.h"
#include "tests/support/failing_allocation.h"

namespace sparseagg::service {
namespace {

using sparseagg::testing::FailingAllocation;
using sparseagg::testing::Try;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

class RoundCloseTest : public SubmissionsFixture {};

TEST_F(RoundCloseTest, CloseWithOnly_LeavesTheOthersOut) {
  const auto round = Open(MeanSpec());
  using Sent = std::pair<const char*, float>;
  for (const auto& [client, value] : {Sent("a", 1), Sent("b", 100), Sent("c", 3), Sent("d", 1e10f)}) {
    ASSERT_THAT(SubmitWeighted(*round, client, value, value), IsOk());
  }
  ASSERT_THAT(round->CloseWithOnly(Clients{"c", "a", "c"}), IsOk());
  EXPECT_THAT(ClientsOf(*round), ElementsAre("a", "c"));
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, (1.0f + 9.0f) / 4.0f)));
  const RoundSnapshot snapshot = round->Snapshot();
  EXPECT_EQ(snapshot.num_submissions, 2);
  EXPECT_EQ(snapshot.num_tuples, 2);
  EXPECT_EQ(snapshot.num_bytes, 16);
  EXPECT_EQ(snapshot.num_withdrawn, 2);
}

TEST_F(RoundCloseTest, CloseWithOnly_UnknownClient_IsRefusedAndTheRoundStaysAsItWas) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
  ASSERT_THAT(Submit(*round, "b", {7}, {2}), IsOk());
  ASSERT_THAT(Put(*round, MakeChunk("", "upload", {1}, {1})), IsOk());
  const uint64_t reserved = context().budget.reserved();
  EXPECT_THAT(round->CloseWithOnly(Clients{"a", "upload"}), Fails(Code::kFailedPrecondition, HasSubstr("'upload'")));
  EXPECT_EQ(round->Snapshot().state, RoundState::kOpen);
  EXPECT_EQ(round->Snapshot().num_submissions, 2);
  EXPECT_EQ(round->Snapshot().num_uploads, 1);
  EXPECT_EQ(context().budget.reserved(), reserved);
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 3)));
}

TEST_F(RoundCloseTest, CloseWithOnly_Again_IsFineWithTheSameClientsOnly) {
  const auto round = Open(SumSpec());
  for (const char* client : {"a", "b", "c"}) ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
  ASSERT_THAT(round->CloseWithOnly(Clients{"a", "b"}), IsOk());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(round->CloseWithOnly(Clients{"b", "a"}), IsOk());
    EXPECT_THAT(round->CloseWithOnly(Clients{"a"}),
                Fails(Code::kFailedPrecondition, HasSubstr("counts 2 submissions")));
    EXPECT_THAT(round->CloseWithOnly(Clients{"a", "c"}), Fails(Code::kFailedPrecondition, HasSubstr("'c'")));
    EXPECT_THAT(round->CloseWithOnly(Clients{"a", "b", "c"}), HasCode(Code::kFailedPrecondition));
    AwaitEnd(*round);
  }
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 2)));
}

TEST_F(RoundCloseTest, CloseWithOnly_AfterAPlainClose_ComparesWhatCounts) {
  const auto round = Open(SumSpec());
  for (const char* client : {"a", "b"}) ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(round->CloseWithOnly(Clients{"a", "b"}), IsOk());
  EXPECT_THAT(round->CloseWithOnly(Clients{"a"}), HasCode(Code::kFailedPrecondition));
  const auto cancelled = Open(SumSpec(), "cancelled");
  ASSERT_THAT(Submit(*cancelled, "a", {7}, {1}), IsOk());
  ASSERT_THAT(cancelled->Cancel("stop"), IsOk());
  EXPECT_THAT(cancelled->CloseWithOnly(Clients{"a"}), Fails(Code::kFailedPrecondition, HasSubstr("CANCELLED: stop")));
}

TEST_F(RoundCloseTest, CloseWithOnly_WhileTheMergeRuns_AnswersAtOnce) {
  Hold finishing;
  hooks_.finish = finishing.Hook();
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  finishing.Wait();
  EXPECT_THAT(round->CloseWithOnly(Clients{"a"}), IsOk());
  EXPECT_THAT(round->Withdraw("a", ""), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(ClientsOf(*round), ElementsAre("a"));
  finishing.Release();
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 1)));
}

TEST_F(RoundCloseTest, CloseWithOnly_BelowMinSubmissions_FailsTheRound) {
  v1::RoundSpec spec = SumSpec();
  spec.set_min_submissions(2);
  const auto round = Open(spec);
  for (const char* client : {"a", "b"}) ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
  ASSERT_THAT(round->CloseWithOnly(Clients{"a"}), IsOk());
  const RoundSnapshot snapshot = AwaitEnd(*round);
  EXPECT_EQ(snapshot.state, RoundState::kFailed);
  EXPECT_THAT(snapshot.reason, HasSubstr("1 submissions, below min_submissions 2"));
  EXPECT_THAT(round->CloseWithOnly(Clients{"a"}), IsOk()) << "a repetition";
}

TEST_F(RoundCloseTest, CloseWithOnly_MergedOnArrival_TakesAllOrIsRefused) {
  const auto round = OpenMerged();
  EXPECT_THAT(round->CloseWithOnly(Clients{"a"}), Fails(Code::kFailedPrecondition, HasSubstr("tensor 'v'")));
  EXPECT_EQ(round->Snapshot().state, RoundState::kOpen);
  EXPECT_THAT(ClientsOf(*round), ElementsAre("a", "b"));
  ASSERT_THAT(round->CloseWithOnly(Clients{"a", "b"}), IsOk());
  EXPECT_EQ(ResultOf(*round)[0], 2);
}

// An upload of a client whose submission counts may be a retry. One of a client who is left out is too late.
TEST_F(RoundCloseTest, CloseWithOnly_OpenUploads_AreDiscardedButRetriesOfWhatCounts) {
  const auto round = Open(SumSpec());
  for (const char* client : {"in", "out"}) ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
  for (const char* client : {"in", "out"}) {
    ASSERT_THAT(Put(*round, MakeChunk("", client, {7}, {1}, 0, false)), IsOk());  // a retry, in other chunks
  }
  ASSERT_EQ(round->Snapshot().num_uploads, 2);
  ASSERT_THAT(round->CloseWithOnly(Clients{"in"}), IsOk());
  EXPECT_EQ(round->Snapshot().num_uploads, 1);
  const auto retry = CommitNamed(*round, "in", "in-1");
  ASSERT_THAT(retry, IsOk());
  EXPECT_TRUE(retry->duplicate);
  EXPECT_THAT(CommitNamed(*round, "out", "out-1"), HasCode(Code::kFailedPrecondition));
}

TEST_F(RoundCloseTest, CloseWithOnly_ThousandsLeftOut_CountsTheRest) {
  const auto round = Open(SumSpec());
  std::vector<std::string> only;
  for (int i = 0; i < 5'000; ++i) {
    const std::string client = std::to_string(i);
    ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
    if (i % 3 == 0) only.push_back(client);
  }
  ASSERT_THAT(round->CloseWithOnly(only), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, only.size())));
}

TEST_F(RoundCloseTest, WithdrawAndClose_AnyAllocationFails_ChangeNothingOrAllOfIt) {
  num_threads_ = 1;
  for (const bool closes : {false, true}) {
    int n = 0;
    for (bool failed = true; failed; ++n) {
      SCOPED_TRACE(n);
      const auto round = Open(SumSpec(), std::string(closes ? "c" : "w") + std::to_string(n));
      const std::string long_name(64, 'x');  // every copy allocates
      for (const std::string& client : {long_name, "b" + long_name}) {
        ASSERT_THAT(Submit(*round, client, {7}, {1}), IsOk());
      }
      RunPendingTasks();
      absl::Status status;
      {
        const BusyThread busy(context().pool);  // so that only this thread allocates
        const std::vector<std::string> only = {long_name};
        FailingAllocation failing(n);
        status =
            Try([&] { return closes ? round->CloseWithOnly(only) : round->Withdraw("b" + long_name, "").status(); });
        failed = failing.failed();
      }
      EXPECT_EQ(round->state() == RoundState::kOpen, !closes || !status.ok());
      EXPECT_EQ(ClientsOf(*round).size(), status.ok() ? 1 : 2);
      EXPECT_EQ(round->Snapshot().num_submissions, status.ok() ? 1 : 2);
      EXPECT_THAT(round->Close(), IsOk());
      EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, status.ok() ? 1 : 2)));
      ASSERT_LT(n, 1000);
    }
    EXPECT_GE(n, 2);
  }
}

}  // namespace
}  // namespace sparseagg::service
