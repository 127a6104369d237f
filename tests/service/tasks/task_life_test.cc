// From the creation of a task to its end, and tasks that belong to a round.
#include "tests/service/support/threads.h"
#include "tests/service/tasks/task_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class TaskLifeTest : public TaskFixture {
 protected:
  std::vector<std::string> Ids(const TaskRegistry::Filter& filter, size_t page_size = 2) {
    std::vector<std::string> ids;
    std::string token;
    do {
      const auto page = tasks().List(kTenant, filter, page_size, 1 << 20, token);
      EXPECT_THAT(page, IsOk());
      for (const TaskSnapshot& task : page->tasks) ids.push_back(task.record->id);
      token = page->next_page_token;
    } while (!token.empty());
    return ids;
  }
};

TEST_F(TaskLifeTest, Create_Repeated_ChangesNothing_AndOtherContentIsRefused) {
  const TaskSpec spec = Spec({"gpu"}, 3);
  Create("task", spec);
  EXPECT_THAT(tasks().Create(kTenant, "owner", {Named("task", spec), Named("new")}), IsOk());
  EXPECT_EQ(Lease("1", {"gpu"}), "task");
  ASSERT_THAT(Complete("task", "1"), IsOk());
  Create("task", spec);  // also after the end, when the payload is gone
  EXPECT_EQ(StateOf("task"), TaskState::kCompleted);
  TaskSpec other = spec;
  other.payload = "other work";
  EXPECT_THAT(tasks().Create(kTenant, "owner", {Named("third"), Named("task", other)}),
              Fails(Code::kAlreadyExists, "task 'task' exists already, with another spec or owner"));
  EXPECT_THAT(tasks().Create(kTenant, "somebody", {Named("task", spec)}), HasCode(Code::kAlreadyExists));
  EXPECT_THAT(tasks().Create(kTenant, "owner", {Named("x"), Named("x")}),
              Fails(Code::kInvalidArgument, "task_id 'x' is there twice"));
  EXPECT_THAT(tasks().Get(kTenant, "third"), HasCode(Code::kNotFound));  // all or none
}

TEST_F(TaskLifeTest, MaxOpenTasks_RefusesMore_EndedOnesDoNotCount) {
  limits_.max_open_tasks = 2;
  Create("1");
  EXPECT_THAT(tasks().Create(kTenant, "", {Named("2"), Named("3")}),
              Fails(Code::kResourceExhausted, AllOf(HasSubstr("1 tasks are open"), HasSubstr("max_open_tasks 2"))));
  EXPECT_EQ(Lease("1"), "1");
  Create("2");
  EXPECT_THAT(tasks().Create(kTenant, "", {Named("3")}), HasCode(Code::kResourceExhausted));
  ASSERT_THAT(Complete("1", "1"), IsOk());
  Create("3");
}

TEST_F(TaskLifeTest, Memory_IsReserved_AndRefusedBeyondTheLimit) {
  limits_.memory_limit_bytes = 100'000;
  TaskSpec spec = Spec();
  spec.payload = std::string(40'000, 'x');
  Create("1", spec);
  Create("2", spec);
  EXPECT_THAT(tasks().Create(kTenant, "", {Named("3", spec)}), HasCode(Code::kResourceExhausted));
  const uint64_t before = tasks().Count().bytes;
  EXPECT_EQ(before, context().budget.reserved());
  EXPECT_GT(before, 80'000);
  EXPECT_EQ(Lease("1"), "1");
  ASSERT_THAT(Complete("1", "1"), IsOk());
  EXPECT_LT(tasks().Count().bytes, before - 38'000);  // the payload is gone
  Create("3", spec);
  ASSERT_THAT(tasks().Cancel(kTenant, {"2", "3"}, "enough"), IsOk());
  Pass(absl::Minutes(11));
  EXPECT_EQ(tasks().Count().bytes, 0);
  EXPECT_EQ(context().budget.reserved(), 0);
}

TEST_F(TaskLifeTest, List_PagesAndFilters) {
  Open(SumSpec(), "r");
  TaskSpec of_round = Spec();
  of_round.round = "r";
  for (const char* id : {"a", "b", "c", "d", "e"}) Create(id, id[0] < 'c' ? of_round : Spec());
  EXPECT_EQ(Lease("1"), "a");
  EXPECT_EQ(Lease("2"), "b");
  EXPECT_EQ(Lease("3"), "c");
  ASSERT_THAT(Complete("c", "3"), IsOk());
  EXPECT_THAT(Ids({}), ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_THAT(Ids({TaskState::kLeased, ""}, 1), ElementsAre("a", "b"));
  EXPECT_THAT(Ids({TaskState::kOpen, ""}), ElementsAre("d", "e"));
  EXPECT_THAT(Ids({std::nullopt, "r"}, 1), ElementsAre("a", "b"));
  EXPECT_THAT(Ids({TaskState::kOpen, "r"}), ElementsAre());
  EXPECT_EQ(tasks().List(kTenant, {}, 5, 1, "")->tasks.size(), 1);  // by bytes
  EXPECT_THAT(tasks().List(kTenant, {}, 5, 1, "x"), HasCode(Code::kInvalidArgument));
}

TEST_F(TaskLifeTest, Tenants_DoNotSeeEachOther) {
  ASSERT_THAT(tasks().Create("red", "", {Named("task")}), IsOk());
  ASSERT_THAT(tasks().Create("blue", "", {Named("task", Spec({}, 3))}), IsOk());
  EXPECT_EQ(Lease("1"), "");
  EXPECT_THAT(tasks().Get(kTenant, "task"), Fails(Code::kNotFound, "no task 'task'"));
  EXPECT_EQ(tasks().Get("red", "task")->record->spec.priority, 0);
  EXPECT_EQ(tasks().List("blue", {}, 10, 1 << 20, "")->tasks.size(), 1);
}

TEST_F(TaskLifeTest, Drain_EndsWaits_AndKeepsLeases) {
  Create("task");
  EXPECT_EQ(Lease("1"), "task");
  const Waiting waiting = Wait("2", absl::Minutes(1));
  tasks().Drain();
  EXPECT_THAT(waiting.answer->status, HasCode(Code::kUnavailable));
  EXPECT_THAT(Wait("3", absl::Minutes(1)).answer->status, HasCode(Code::kUnavailable));
  EXPECT_THAT(Extend("task", "1"), IsOk());
  EXPECT_THAT(Complete("task", "1"), IsOk());
}

// ---- Tasks that belong to a round.

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
