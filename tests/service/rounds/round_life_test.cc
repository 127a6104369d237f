// Rounds: the state machine, with time moved by hand.
#include "service/codec/spec_codec.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
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

}  // namespace
}  // namespace sparseagg::service
