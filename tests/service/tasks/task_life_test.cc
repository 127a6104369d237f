// From the creation of a task to its end.
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

TEST_F(TaskLifeTest, Create_WithoutIds_ChoosesDifferentOnes) {
  const auto ids = tasks().Create(kTenant, "", {Named(""), Named("")});
  ASSERT_THAT(ids, IsOk());
  EXPECT_NE((*ids)[0], (*ids)[1]);
  EXPECT_EQ(Get((*ids)[1]).record->spec.payload, "work");
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

TEST_F(TaskLifeTest, Lease_Repeated_IsTheSameTask) {
  Create("1");
  Create("2");
  EXPECT_EQ(Lease("client"), "1");
  EXPECT_EQ(Lease("client"), "1");
  EXPECT_EQ(Get("1").state.attempts, 1);
  EXPECT_EQ(Lease("client", {}, absl::Minutes(1), "another"), "2");
  // The same, where both calls wait.
  const Waiting first = Wait("late", absl::Minutes(1));
  const Waiting second = Wait("late", absl::Minutes(1));
  Create("3");
  EXPECT_EQ(first.answer->id, "3");
  Create("4");
  EXPECT_EQ(second.answer->id, "3");
  EXPECT_EQ(StateOf("4"), TaskState::kOpen);
}

TEST_F(TaskLifeTest, Lease_Expires_TaskIsHandedOn) {
  Create("task");
  EXPECT_EQ(Lease("1", {}, absl::Seconds(10)), "task");
  const Waiting waiting = Wait("2", absl::Minutes(1));
  Pass(absl::Seconds(9));
  EXPECT_FALSE(waiting.answer->is_there);
  Pass(absl::Seconds(1));
  EXPECT_EQ(waiting.answer->id, "task");
  const TaskSnapshot task = Get("task");
  EXPECT_EQ(task.state.attempts, 2);
  EXPECT_EQ(task.state.leases.back().client_id, "2");
  EXPECT_EQ(task.lease_remaining, absl::Minutes(1));
}

TEST_F(TaskLifeTest, Extend_KeepsTheLease_AndRenewsAnExpiredOne) {
  Create("task");
  EXPECT_EQ(Lease("1", {}, absl::Seconds(10)), "task");
  Pass(absl::Seconds(9));
  ASSERT_THAT(Extend("task", "1", absl::Seconds(10)), IsOk());
  Pass(absl::Seconds(9));
  EXPECT_EQ(StateOf("task"), TaskState::kLeased);
  Pass(absl::Seconds(1));
  EXPECT_EQ(StateOf("task"), TaskState::kOpen);
  ASSERT_THAT(Extend("task", "1", absl::Seconds(10)), IsOk());  // nobody has taken it
  EXPECT_EQ(StateOf("task"), TaskState::kLeased);
  EXPECT_EQ(Get("task").state.attempts, 1);
  Pass(absl::Seconds(10));
  EXPECT_EQ(Lease("2"), "task");
  EXPECT_THAT(Extend("task", "1"),
              Fails(Code::kFailedPrecondition, "the task has been leased to another worker since"));
  EXPECT_THAT(Extend("task", "3"), Fails(Code::kFailedPrecondition, "client '3' has no lease 'lease' of this task"));
}

TEST_F(TaskLifeTest, Extend_OfALeaseGivenBack_IsRefused) {
  Create("task");
  EXPECT_EQ(Lease("1"), "task");
  ASSERT_THAT(Fail("task", "1", /*retry=*/true), IsOk());
  EXPECT_THAT(Extend("task", "1"), Fails(Code::kFailedPrecondition, "the lease was given back"));
  EXPECT_THAT(Fail("task", "1", /*retry=*/true), IsOk());  // a repetition
  EXPECT_EQ(StateOf("task"), TaskState::kOpen);
  EXPECT_THAT(Fail("task", "1", /*retry=*/false), IsOk());  // and this is none
  EXPECT_EQ(StateOf("task"), TaskState::kFailed);
}

TEST_F(TaskLifeTest, Complete_Once) {
  Create("task");
  EXPECT_EQ(Lease("1"), "task");
  ASSERT_THAT(tasks().Complete(NameOf("task", "1"), "s", "answer"), IsOk());
  EXPECT_THAT(tasks().Complete(NameOf("task", "1"), "s", "answer"), IsOk());
  EXPECT_THAT(Complete("task", "1", "other"), Fails(Code::kFailedPrecondition, "the task is COMPLETED"));
  EXPECT_THAT(tasks().Complete(NameOf("task", "1"), "s", "another answer"),
              Fails(Code::kFailedPrecondition, "the task is COMPLETED"));
  EXPECT_THAT(Complete("task", "2", "s"), HasCode(Code::kFailedPrecondition));
  EXPECT_THAT(Fail("task", "1", false), HasCode(Code::kFailedPrecondition));
  const TaskSnapshot task = Get("task");
  EXPECT_EQ(task.state.submission_id, "s");
  EXPECT_EQ(task.state.result, "answer");
  EXPECT_EQ(task.record->spec.payload, "");
  EXPECT_EQ(task.expire_time, task.state.end_time + absl::Minutes(10));
  EXPECT_EQ(tasks().Count().tasks[static_cast<size_t>(TaskState::kCompleted)], 1);
}

TEST_F(TaskLifeTest, Complete_ByAnExpiredLease_UnlessSomebodyElseHas) {
  Create("1");
  Create("2");
  EXPECT_EQ(Lease("early", {}, absl::Seconds(1)), "1");
  Pass(absl::Seconds(1));
  EXPECT_THAT(Complete("1", "early"), IsOk());  // OPEN again
  EXPECT_EQ(Lease("early", {}, absl::Seconds(1), "second"), "2");
  Pass(absl::Seconds(1));
  EXPECT_EQ(Lease("late"), "2");
  EXPECT_THAT(tasks().Complete(NameOf("2", "early", "second"), "", ""), IsOk());  // while another works on it
  EXPECT_EQ(Get("2").state.leases.back().client_id, "early");
  EXPECT_THAT(Complete("2", "late"), Fails(Code::kFailedPrecondition, "the task is COMPLETED"));
  EXPECT_THAT(Complete("2", "nobody"), HasCode(Code::kFailedPrecondition));
}

TEST_F(TaskLifeTest, Attempts_Exhausted_TaskFails) {
  TaskSpec spec = Spec();
  spec.max_attempts = 2;
  Create("task", spec);
  EXPECT_EQ(Lease("1", {}, absl::Seconds(1)), "task");
  Pass(absl::Seconds(1));
  EXPECT_EQ(Lease("2"), "task");
  ASSERT_THAT(Fail("task", "2", /*retry=*/true), IsOk());
  EXPECT_EQ(StateOf("task"), TaskState::kFailed);
  EXPECT_EQ(Get("task").state.reason, "no attempt is left of 2; the last: no luck");
  EXPECT_THAT(Complete("task", "1"),
              Fails(Code::kFailedPrecondition, "the task is FAILED: no attempt is left of 2; the last: no luck"));
}

TEST_F(TaskLifeTest, Fail_WithoutRetry_IsFinal) {
  Create("task");
  EXPECT_EQ(Lease("1"), "task");
  ASSERT_THAT(Fail("task", "1", /*retry=*/false), IsOk());
  EXPECT_THAT(Fail("task", "1", /*retry=*/false), IsOk());
  EXPECT_EQ(StateOf("task"), TaskState::kFailed);
  EXPECT_EQ(Get("task").state.reason, "no luck");
  EXPECT_EQ(Lease("2"), "");
}

TEST_F(TaskLifeTest, Deadline_EndsOpenAndLeasedTasks) {
  TaskSpec spec = Spec();
  spec.deadline = absl::Seconds(5);
  Create("1", spec);
  Create("2", spec);
  EXPECT_EQ(Lease("1"), "1");
  Pass(absl::Seconds(5));
  for (const char* id : {"1", "2"}) {
    EXPECT_EQ(StateOf(id), TaskState::kFailed);
    EXPECT_EQ(Get(id).state.reason, "its deadline of 5s is over");
  }
  EXPECT_THAT(Complete("1", "1"), HasCode(Code::kFailedPrecondition));
}

TEST_F(TaskLifeTest, Cancel_EndsWhatHasNotEnded) {
  for (const char* id : {"1", "2", "3"}) Create(id);
  EXPECT_EQ(Lease("1"), "1");
  EXPECT_EQ(Lease("2"), "2");
  ASSERT_THAT(Complete("1", "1"), IsOk());
  EXPECT_THAT(tasks().Cancel(kTenant, {"2", "none"}, "why"), Fails(Code::kNotFound, "no task 'none'"));
  EXPECT_EQ(StateOf("2"), TaskState::kLeased);
  EXPECT_EQ(*tasks().Cancel(kTenant, {"1", "2", "3", "2"}, "why"), 2);
  EXPECT_EQ(*tasks().Cancel(kTenant, {"1", "2", "3"}, "again"), 0);
  EXPECT_THAT(Extend("2", "2"), Fails(Code::kFailedPrecondition, "the task is CANCELLED: why"));
  EXPECT_EQ(Lease("3"), "");
}

TEST_F(TaskLifeTest, Ended_AreDeletedAfterTheirTtl) {
  Create("task");
  EXPECT_EQ(Lease("1"), "task");
  ASSERT_THAT(Complete("task", "1"), IsOk());
  Pass(absl::Minutes(10) - absl::Seconds(1));
  EXPECT_EQ(StateOf("task"), TaskState::kCompleted);
  Pass(absl::Seconds(1));
  EXPECT_THAT(tasks().Get(kTenant, "task"), HasCode(Code::kNotFound));
  EXPECT_THAT(Complete("task", "1"), HasCode(Code::kNotFound));
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

}  // namespace
}  // namespace sparseagg::service
