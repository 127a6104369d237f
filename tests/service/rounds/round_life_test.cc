// Rounds: the state machine, with time moved by hand.
#include "service/codec/spec_codec.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StrEq;
using Code = absl::StatusCode;

class RoundLifeTest : public RoundFixture {
 protected:
  // Holds Finish up until `go_`.
  void HoldFinish() {
    hooks_.finish = [this] {
      finishing_.Notify();
      go_.Wait();
      return absl::OkStatus();
    };
  }
  static v1::RoundSpec SpecWithDeadline(int64_t seconds) {
    v1::RoundSpec spec = SumSpec();
    spec.mutable_deadline()->set_seconds(seconds);
    return spec;
  }

  Event finishing_;
  Event go_;
};

TEST_F(RoundLifeTest, Close_NoSubmissions_IsDoneWithAnEmptyResult) {
  const auto round = Open(SumSpec());
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), IsEmpty());
  EXPECT_EQ(round->Snapshot().state, RoundState::kDone);
}

TEST_F(RoundLifeTest, Close_WhileFinishing_IsVisibleAndChangesNothing) {
  HoldFinish();
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  finishing_.Wait();
  EXPECT_EQ(round->Snapshot().state, RoundState::kFinalizing);
  EXPECT_THAT(round->GetResults(), Fails(Code::kFailedPrecondition, HasSubstr("FINALIZING")));
  EXPECT_THAT(Put(*round, MakeChunk("", "b", {1}, {1})), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(round->Close(), IsOk());
  go_.Notify();
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 1)));
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_EQ(round->Snapshot().state, RoundState::kDone);
}

TEST_F(RoundLifeTest, End_UnderAnyTimeOfDay_IsNotBeforeTheClose) {
  for (const absl::Duration step : {absl::Microseconds(3), -absl::Microseconds(3)}) {
    clock_.StepWall(step);
    const auto cancelled = Open(SumSpec(), absl::StrCat("cancelled", absl::ToInt64Microseconds(step)));
    ASSERT_THAT(cancelled->Cancel("test"), IsOk());
    EXPECT_EQ(cancelled->Snapshot().end_time, cancelled->Snapshot().close_time) << step;
    const auto done = Open(SumSpec(), absl::StrCat("done", absl::ToInt64Microseconds(step)));
    ASSERT_THAT(done->Close(), IsOk());
    AwaitEnd(*done);
    EXPECT_GE(done->Snapshot().end_time, done->Snapshot().close_time) << step;
  }
}

TEST_F(RoundLifeTest, Deadline_Passed_ClosesTheRound) {
  const auto round = Open(SpecWithDeadline(10));
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  Advance(absl::Seconds(9));
  RunPendingTasks();
  EXPECT_EQ(round->Snapshot().state, RoundState::kOpen);
  Advance(absl::Seconds(1));
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 1)));
  EXPECT_EQ(round->Snapshot().timeline.open, absl::Seconds(10));
}

// Who opens a round may take a while to make it known.
TEST_F(RoundLifeTest, Deadline_PassedBeforeItIsStarted_ClosesTheRoundOnlyThen) {
  auto config = DecodeRoundSpec(SpecWithDeadline(10), limits_);
  ASSERT_THAT(config, IsOk());
  const auto round = Round::Open(*std::move(config), context().ForRounds(), nullptr);
  ASSERT_THAT(round, IsOk());
  Advance(absl::Seconds(20));
  RunPendingTasks();
  EXPECT_EQ((*round)->state(), RoundState::kOpen);
  (*round)->StartDeadline();
  EXPECT_EQ(AwaitEnd(**round).state, RoundState::kDone);
}

TEST_F(RoundLifeTest, Deadline_BelowQuorum_FailsWithTheReason) {
  v1::RoundSpec spec = SpecWithDeadline(10);
  spec.set_min_submissions(3);
  const auto round = Open(spec);
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  Advance(absl::Seconds(10));
  const RoundSnapshot snapshot = AwaitEnd(*round);
  EXPECT_EQ(snapshot.state, RoundState::kFailed);
  EXPECT_THAT(snapshot.reason, AllOf(HasSubstr("1 submissions"), HasSubstr("min_submissions 3")));
  EXPECT_THAT(round->GetResults(), Fails(Code::kFailedPrecondition, HasSubstr("min_submissions 3")));
}

TEST_F(RoundLifeTest, Close_ExactlyAtQuorum_IsDone) {
  v1::RoundSpec spec = SumSpec();
  spec.set_min_submissions(2);
  const auto round = Open(spec);
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  ASSERT_THAT(Submit(*round, "b", {1}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_EQ(AwaitEnd(*round).state, RoundState::kDone);
}

TEST_F(RoundLifeTest, MaxSubmissions_Reached_ClosesItself) {
  v1::RoundSpec spec = SumSpec();
  spec.set_max_submissions(2);
  const auto round = Open(spec);
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  EXPECT_EQ(round->Snapshot().state, RoundState::kOpen);
  ASSERT_THAT(Submit(*round, "b", {1}, {2}), IsOk());
  EXPECT_THAT(Submit(*round, "c", {1}, {4}), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 3)));
}

TEST_F(RoundLifeTest, Finish_Fails_TheRoundFailsLoudly) {
  hooks_.finish = [] { return absl::OutOfRangeError("tensor 'v', key 7: overflow"); };
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  const RoundSnapshot snapshot = AwaitEnd(*round);
  EXPECT_EQ(snapshot.state, RoundState::kFailed);
  EXPECT_EQ(snapshot.reason, "OUT_OF_RANGE: tensor 'v', key 7: overflow");
  EXPECT_THAT(snapshot.failure, HasCode(Code::kOutOfRange));
}

TEST_F(RoundLifeTest, Add_Fails_TheRoundFailsRatherThanGiveAWrongSum) {
  int adds = 0;
  hooks_.add = [&] { return ++adds == 2 ? absl::InternalError("broken") : absl::OkStatus(); };
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  EXPECT_THAT(Submit(*round, "b", {1}, {1}), Fails(Code::kInternal, HasSubstr("broken")));
  const RoundSnapshot snapshot = AwaitEnd(*round);
  EXPECT_EQ(snapshot.state, RoundState::kFailed);
  EXPECT_THAT(snapshot.reason, HasSubstr("broken"));
}

TEST_F(RoundLifeTest, Add_RefusedBeforeAnythingIsIn_RefusesTheSubmissionOnly) {
  v1::RoundSpec spec = SumSpec();
  spec.set_max_submissions(10);
  spec.mutable_aggregation()->set_numerics(v1::NUMERICS_FIXED_POINT);
  spec.mutable_aggregation()->set_value_bound(1.0);
  auto config = DecodeRoundSpec(spec, limits_);
  ASSERT_THAT(config, IsOk());
  config->id = "r";
  config->tensors[0].aggregation.max_submissions = 1;  // fewer than the round's, which no spec can say
  const auto round = *registry().Create(*std::move(config));
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  EXPECT_THAT(Submit(*round, "b", {1}, {1}), Fails(Code::kResourceExhausted, HasSubstr("max_submissions 1")));
  EXPECT_EQ(round->Snapshot().num_refused, 1);
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 1)));
}

TEST_F(RoundLifeTest, Prepare_ThrowsBadAlloc_RefusesTheSubmissionOnly) {
  int prepares = 0;
  hooks_.prepare = [&]() -> absl::Status {
    if (++prepares == 1) throw std::bad_alloc();
    return absl::OkStatus();
  };
  const auto round = Open(SumSpec());
  EXPECT_THAT(Submit(*round, "a", {1}, {1}), HasCode(Code::kResourceExhausted));
  EXPECT_THAT(Submit(*round, "b", {1}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(1, 1)));
}

TEST_F(RoundLifeTest, Cancel_Open_DropsAllAndGivesTheMemoryBack) {
  const auto round = Open(SumSpec());
  const uint64_t at_rest = context().budget.reserved();
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  ASSERT_THAT(Put(*round, MakeChunk("", "b", {1}, {1})), IsOk());
  EXPECT_GT(context().budget.reserved(), at_rest);
  EXPECT_THAT(round->Cancel("enough"), IsOk());
  const RoundSnapshot snapshot = AwaitEnd(*round);
  EXPECT_EQ(snapshot.state, RoundState::kCancelled);
  EXPECT_EQ(snapshot.reason, "enough");
  EXPECT_THAT(CommitNamed(*round, "b", "b-1"), Fails(Code::kFailedPrecondition, HasSubstr("enough")));
  EXPECT_THAT(CommitNamed(*round, "a", "a-1"), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(round->Cancel("again"), IsOk());
  RunPendingTasks();
  EXPECT_LE(context().budget.reserved(), at_rest + 1024 + RecentRefusals::kListBytes);
  EXPECT_EQ(context().open_rounds.taken(), 0);
}

TEST_F(RoundLifeTest, Cancel_WhileFinishing_DropsTheResult) {
  HoldFinish();
  const auto round = Open(SumSpec());
  ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  finishing_.Wait();
  EXPECT_THAT(round->Cancel("late"), IsOk());
  EXPECT_EQ(AwaitEnd(*round).state, RoundState::kCancelled);
  go_.Notify();
  RunPendingTasks();
  EXPECT_EQ(round->Snapshot().state, RoundState::kCancelled);
  EXPECT_THAT(round->GetResults(), HasCode(Code::kFailedPrecondition));
}

TEST_F(RoundLifeTest, Cancel_DoneOrFailed_IsRefused) {
  v1::RoundSpec spec = SumSpec();
  spec.set_max_submissions(1);
  const auto done = Open(spec, "done");
  ASSERT_THAT(Submit(*done, "a", {1}, {1}), IsOk());
  AwaitEnd(*done);
  EXPECT_THAT(done->Cancel(""), Fails(Code::kFailedPrecondition, StrEq("the round is DONE")));
  spec.clear_max_submissions();
  spec.set_min_submissions(1);
  const auto failed = Open(spec, "failed");
  EXPECT_THAT(failed->Close(), IsOk());
  AwaitEnd(*failed);
  EXPECT_THAT(failed->Cancel(""), Fails(Code::kFailedPrecondition, HasSubstr("FAILED")));
}

TEST_F(RoundLifeTest, Close_WithAnUploadOpen_DiscardsItAndTellsItsOwner) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 0, false)), IsOk());
  Event told;
  absl::Status verdict;
  const auto upload = round->intake().OpenStreamUpload("b", "b-1", [&](absl::Status status) {
    verdict = status;
    told.Notify();
  });
  ASSERT_THAT(upload, IsOk());
  EXPECT_EQ(round->Snapshot().num_uploads, 2);
  EXPECT_THAT(round->Close(), IsOk());
  told.Wait();
  EXPECT_THAT(verdict, HasCode(Code::kFailedPrecondition));
  EXPECT_EQ(round->Snapshot().num_uploads, 0);
  EXPECT_EQ(round->Snapshot().num_refused, 2);
  EXPECT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 1, true)), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(round->intake().Commit(**upload), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(ResultOf(*round), IsEmpty());
}

TEST_F(RoundLifeTest, UploadTimeout_NoChunkForThatLong_DiscardsTheUpload) {
  limits_.upload_timeout = absl::Seconds(30);
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 0, false)), IsOk());
  Advance(absl::Seconds(20));
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {2}, {1}, 1, false)), IsOk());  // starts the time anew
  Advance(absl::Seconds(20));
  RunPendingTasks();
  EXPECT_THAT(round->intake().GetProgress("a", "a-1"), IsOk());
  Advance(absl::Seconds(10));
  RunPendingTasks();
  EXPECT_THAT(round->intake().GetProgress("a", "a-1"), HasCode(Code::kNotFound));
  EXPECT_EQ(round->Snapshot().num_uploads, 0);
  EXPECT_EQ(round->Snapshot().num_refused, 1);
  EXPECT_EQ(context().uploads.taken(), 0);
}

TEST_F(RoundLifeTest, UploadTimeout_OnlyRepeatsAndGaps_DoNotKeepTheUpload) {
  limits_.upload_timeout = absl::Seconds(30);
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 0, false)), IsOk());
  Advance(absl::Seconds(20));
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 0, false)), IsOk());
  EXPECT_THAT(Put(*round, MakeChunk("", "a", {1}, {1}, 7, false)), HasCode(Code::kFailedPrecondition));
  Advance(absl::Seconds(10));
  RunPendingTasks();
  EXPECT_THAT(round->intake().GetProgress("a", "a-1"), HasCode(Code::kNotFound));
}

TEST_F(RoundLifeTest, UploadTimeout_OfAnUploadWhoseCallerHoldsIt_IsTheCallersToWatch) {
  limits_.upload_timeout = absl::Seconds(30);
  const auto round = Open(SumSpec());
  const auto upload = round->intake().OpenStreamUpload("a", "a-1", nullptr);
  ASSERT_THAT(upload, IsOk());
  Advance(absl::Seconds(100));
  RunPendingTasks();
  EXPECT_EQ(round->Snapshot().num_uploads, 1);
}

TEST_F(RoundLifeTest, ResultTtl_Passed_ForgetsTheRoundAndItsMemory) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_result_ttl()->set_seconds(60);
  {
    const auto round = Open(spec);
    ASSERT_THAT(Submit(*round, "a", {1}, {1}), IsOk());
    EXPECT_THAT(round->Close(), IsOk());
    const RoundSnapshot snapshot = AwaitEnd(*round);
    EXPECT_EQ(snapshot.expire_time - snapshot.end_time, absl::Seconds(60));
  }
  Advance(absl::Seconds(59));
  RunPendingTasks();
  EXPECT_THAT(registry().Find(kDefaultTenant, "r"), IsOk());
  Advance(absl::Seconds(1));
  RunPendingTasks();
  EXPECT_THAT(registry().Find(kDefaultTenant, "r"), HasCode(Code::kNotFound));
  EXPECT_EQ(context().budget.reserved(), 0);
}

TEST_F(RoundLifeTest, Wait_Timeout_AnswersWhileTheRoundIsOpen) {
  const auto round = Open(SumSpec());
  Event answered;
  round->Wait(absl::Seconds(5), [&] { answered.Notify(); });
  Advance(absl::Seconds(4));
  RunPendingTasks();
  EXPECT_FALSE(answered.HasHappened());
  Advance(absl::Seconds(1));
  answered.Wait();
  EXPECT_EQ(round->Snapshot().state, RoundState::kOpen);
}

TEST_F(RoundLifeTest, StopWaiting_BeforeTheEnd_IsNeverCalled) {
  const auto round = Open(SumSpec());
  const Round::WaitId id = round->Wait(absl::InfiniteDuration(), [] { FAIL(); });
  EXPECT_TRUE(round->StopWaiting(id));
  EXPECT_FALSE(round->StopWaiting(id));
  EXPECT_THAT(round->Close(), IsOk());
  AwaitEnd(*round);
  RunPendingTasks();
}

}  // namespace
}  // namespace sparseagg::service
