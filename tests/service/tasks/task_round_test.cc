// Tasks that belong to a round.
#include "tests/service/support/busy_pool.h"
#include "tests/service/tasks/task_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

class TaskRoundTest : public TaskFixture {
 protected:
  static TaskSpec OfRound(const std::string& round = "r") {
    TaskSpec spec = Spec();
    spec.round = round;
    return spec;
  }
  // A submission with the id of its client.
  static void SubmitOf(Round& round, const std::string& client) {
    ASSERT_THAT(Submit(round, client, {1}, {1}), IsOk());
  }
};

TEST_F(TaskRoundTest, Create_NeedsAnOpenRound) {
  EXPECT_THAT(tasks().Create(kTenant, "", {Named("task", OfRound())}), Fails(Code::kNotFound, "no round 'r'"));
  const auto round = Open(SumSpec(), "r");
  Create("task", OfRound());
  ASSERT_THAT(round->Cancel("enough"), IsOk());
  EXPECT_THAT(tasks().Create(kTenant, "", {Named("other", OfRound())}),
              Fails(Code::kFailedPrecondition, "round 'r' is CANCELLED"));
  Create("task", OfRound());  // a repetition
}

TEST_F(TaskRoundTest, Complete_NeedsACommittedSubmissionOfThisClient) {
  const auto round = Open(SumSpec(), "r");
  Create("task", OfRound());
  EXPECT_EQ(Lease("1"), "task");
  const std::string submission = MakeChunk("", "1", {1}, {1}).submission_id();
  EXPECT_THAT(Complete("task", "1", submission),
              Fails(Code::kFailedPrecondition,
                    HasSubstr("client '1' has no committed submission '" + submission + "' in round 'r'")));
  SubmitOf(*round, "2");
  EXPECT_THAT(Complete("task", "1", MakeChunk("", "2", {1}, {1}).submission_id()), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(Complete("task", "1", ""), HasCode(Code::kFailedPrecondition));
  SubmitOf(*round, "1");
  EXPECT_THAT(Complete("task", "1", "another"), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(Complete("task", "1", submission), IsOk());
}

TEST_F(TaskRoundTest, RoundEnds_OpenTasksAreCancelled_LeasedOnesMayBeCompleted) {
  const auto round = Open(SumSpec(), "r");
  for (const char* id : {"1", "2", "3"}) Create(id, OfRound());
  EXPECT_EQ(Lease("a"), "1");
  EXPECT_EQ(Lease("b"), "2");
  SubmitOf(*round, "a");
  ASSERT_THAT(round->Close(), IsOk());
  AwaitEnd(*round);
  RunPendingTasks();  // among them the one that ends the round and posts the next one
  RunPendingTasks();
  EXPECT_EQ(StateOf("3"), TaskState::kCancelled);
  EXPECT_EQ(Get("3").state.reason, "its round is DONE");
  EXPECT_THAT(Complete("1", "a", MakeChunk("", "a", {1}, {1}).submission_id()), IsOk());
  EXPECT_EQ(StateOf("2"), TaskState::kLeased);
  EXPECT_THAT(Extend("2", "b"), IsOk());
  Pass(absl::Minutes(1));
  EXPECT_EQ(StateOf("2"), TaskState::kCancelled);
  EXPECT_EQ(Lease("c"), "");
}

TEST_F(TaskRoundTest, RoundSealed_OpenTasksAreCancelled_LeasedOnesMayBeCompleted) {
  const auto round = Open(SumSpec(), "r");
  for (const char* id : {"1", "2"}) Create(id, OfRound());
  EXPECT_EQ(Lease("a"), "1");
  SubmitOf(*round, "a");
  ASSERT_THAT(round->Seal(), IsOk());
  RunPendingTasks();
  RunPendingTasks();
  EXPECT_EQ(StateOf("2"), TaskState::kCancelled);
  EXPECT_EQ(Get("2").state.reason, "its round is SEALED");
  EXPECT_THAT(Complete("1", "a", MakeChunk("", "a", {1}, {1}).submission_id()), IsOk());
  EXPECT_THAT(tasks().Create(kTenant, "", {Named("3", OfRound())}),
              Fails(Code::kFailedPrecondition, "round 'r' is SEALED"));
}

TEST_F(TaskRoundTest, RoundDeleted_TasksAreCancelled) {
  Open(SumSpec(), "r");
  Create("1", OfRound());
  Create("2", OfRound());
  EXPECT_EQ(Lease("a"), "1");
  ASSERT_THAT(registry().Delete(kTenant, "r"), IsOk());
  RunPendingTasks();
  EXPECT_EQ(StateOf("2"), TaskState::kCancelled);
  EXPECT_THAT(Complete("1", "a", "s"), Fails(Code::kFailedPrecondition, "no round 'r'"));
  ASSERT_THAT(Fail("1", "a", /*retry=*/true), IsOk());
  EXPECT_EQ(StateOf("1"), TaskState::kCancelled);
}

TEST_F(TaskRoundTest, RoundDeletedAndMadeAgain_KeepsTheTasksOfTheNewRound) {
  const auto old_round = Open(SumSpec(), "r");
  Create("old", OfRound());
  Create("leased", OfRound());
  EXPECT_EQ(Lease("a"), "old");
  // The pool cannot yet run what the end of the old round has posted.
  BusyPool busy(context().pool);
  ASSERT_THAT(registry().Delete(kTenant, "r"), IsOk());
  const auto new_round = Open(SumSpec(), "r");
  ASSERT_NE(new_round, old_round);
  Create("new", OfRound());
  busy.Release();
  RunPendingTasks();
  EXPECT_EQ(StateOf("leased"), TaskState::kCancelled);
  EXPECT_EQ(StateOf("new"), TaskState::kOpen);
  SubmitOf(*new_round, "a");
  EXPECT_THAT(Complete("old", "a", MakeChunk("", "a", {1}, {1}).submission_id()),
              Fails(Code::kFailedPrecondition, HasSubstr("a later round has its name")));
  ASSERT_THAT(new_round->Cancel("enough"), IsOk());
  RunPendingTasks();
  EXPECT_EQ(StateOf("new"), TaskState::kCancelled);
}

TEST_F(TaskRoundTest, CancelRound_CancelsItsTasksOnly) {
  Open(SumSpec(), "r");
  Open(SumSpec(), "s");
  Create("1", OfRound());
  Create("2", OfRound("s"));
  Create("3", OfRound());
  EXPECT_EQ(*tasks().CancelRound(kTenant, "r", "why"), 2);
  EXPECT_EQ(*tasks().CancelRound(kTenant, "none", "why"), 0);
  EXPECT_EQ(*tasks().CancelRound("other", "s", "why"), 0);
  EXPECT_EQ(Lease("1"), "2");
}

}  // namespace
}  // namespace sparseagg::service
