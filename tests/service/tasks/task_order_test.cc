// Which worker gets which task.
#include "tests/service/tasks/task_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using Code = absl::StatusCode;

class TaskOrderTest : public TaskFixture {};

TEST_F(TaskOrderTest, Tasks_OfOneOwner_OldestFirst) {
  for (const char* id : {"b", "a", "c"}) Create(id);
  EXPECT_EQ(Lease("1"), "b");
  EXPECT_EQ(Lease("2"), "a");
  EXPECT_THAT(Fail("b", "1", /*retry=*/true), IsOk());
  EXPECT_EQ(Lease("3"), "b");  // again in its old place
  EXPECT_EQ(Lease("4"), "c");
  EXPECT_EQ(Lease("5"), "");
}

TEST_F(TaskOrderTest, Priority_GoesBeforeAgeAndOwner) {
  Create("low", Spec({}, -1), "x");
  Create("middle", Spec({}, 0), "x");
  Create("high", Spec({"gpu"}, 7), "x");
  Create("other", Spec({}, -1), "y");
  EXPECT_EQ(Lease("1"), "middle");  // has no GPU
  EXPECT_EQ(Lease("2", {"gpu"}), "high");
  EXPECT_EQ(Lease("3", {"gpu"}), "other");  // x had its turns
  EXPECT_EQ(Lease("4"), "low");
}

TEST_F(TaskOrderTest, Owners_TakeTurns_AlsoOverLabels) {
  for (const char* id : {"x1", "x2", "x3", "x4"}) Create(id, Spec(), "x");
  Create("y1", Spec({"gpu"}), "y");
  Create("y2", Spec({"gpu"}), "y");
  Create("z1", Spec({"a", "gpu"}), "z");
  std::vector<std::string> order;
  for (int i = 0; i < 7; ++i) order.push_back(Lease(std::to_string(i), {"a", "b", "gpu"}));
  EXPECT_THAT(order, ElementsAre("x1", "y1", "z1", "x2", "y2", "x3", "x4"));
}

TEST_F(TaskOrderTest, Labels_WorkerHasAllOfThem) {
  Create("task", Spec({"cpu", "site:7"}));
  EXPECT_EQ(Lease("1"), "");
  EXPECT_EQ(Lease("1", {"cpu"}), "");
  EXPECT_EQ(Lease("1", {"cpu", "site:8"}), "");
  EXPECT_EQ(Lease("1", {"arm", "cpu", "site:7"}), "task");
}

TEST_F(TaskOrderTest, Waits_LongestWaitingWorkerWithTheLabels) {
  const Waiting plain = Wait("plain", absl::Minutes(1));
  const Waiting gpu = Wait("gpu", absl::Minutes(1), {"gpu"});
  const Waiting both = Wait("both", absl::Minutes(1), {"cpu", "gpu"});
  Create("1", Spec({"gpu"}));
  EXPECT_EQ(gpu.answer->id, "1");
  Create("2", Spec({"cpu", "gpu"}));
  EXPECT_EQ(both.answer->id, "2");
  EXPECT_FALSE(plain.answer->is_there);
  const Waiting later = Wait("later", absl::Minutes(1), {"a"});
  Create("3");
  EXPECT_EQ(plain.answer->id, "3");
  EXPECT_FALSE(later.answer->is_there);
}

TEST_F(TaskOrderTest, Waits_CreatedTogether_WorkerGetsTheBest) {
  const Waiting waiting = Wait("1", absl::Minutes(1), {"gpu"});
  ASSERT_THAT(tasks().Create(kTenant, "", {Named("a"), Named("b", Spec({"gpu"}, 5)), Named("c", Spec({"x"}, 9))}),
              IsOk());
  EXPECT_EQ(waiting.answer->id, "b");
}

TEST_F(TaskOrderTest, Waits_EndAfterTheirTimeout_WithoutATask) {
  const Waiting waiting = Wait("1", absl::Seconds(5));
  Pass(absl::Seconds(4));
  EXPECT_FALSE(waiting.answer->is_there);
  Pass(absl::Seconds(1));
  EXPECT_TRUE(waiting.answer->is_there);
  EXPECT_EQ(waiting.answer->id, "");
  EXPECT_FALSE(tasks().StopWaiting(waiting.id));
  Create("task");
  EXPECT_EQ(StateOf("task"), TaskState::kOpen);
}

TEST_F(TaskOrderTest, Waits_Stopped_GetNothing) {
  const Waiting waiting = Wait("1", absl::Seconds(5));
  EXPECT_TRUE(tasks().StopWaiting(waiting.id));
  EXPECT_FALSE(tasks().StopWaiting(waiting.id));
  Create("task");
  EXPECT_FALSE(waiting.answer->is_there);
  EXPECT_EQ(tasks().Count().waiting, 0);
}

TEST_F(TaskOrderTest, Tenants_DoNotSeeEachOther) {
  ASSERT_THAT(tasks().Create("red", "", {Named("task")}), IsOk());
  ASSERT_THAT(tasks().Create("blue", "", {Named("task", Spec({}, 3))}), IsOk());
  EXPECT_EQ(Lease("1"), "");
  EXPECT_THAT(tasks().Get(kTenant, "task"), Fails(Code::kNotFound, "no task 'task'"));
  EXPECT_EQ(tasks().Get("red", "task")->record->spec.priority, 0);
  EXPECT_EQ(tasks().List("blue", {}, 10, 1 << 20, "")->tasks.size(), 1);
}

TEST_F(TaskOrderTest, Drain_EndsWaits_AndKeepsLeases) {
  Create("task");
  EXPECT_EQ(Lease("1"), "task");
  const Waiting waiting = Wait("2", absl::Minutes(1));
  tasks().Drain();
  EXPECT_THAT(waiting.answer->status, HasCode(Code::kUnavailable));
  EXPECT_THAT(Wait("3", absl::Minutes(1)).answer->status, HasCode(Code::kUnavailable));
  EXPECT_THAT(Extend("task", "1"), IsOk());
  EXPECT_THAT(Complete("task", "1"), IsOk());
}

}  // namespace
}  // namespace sparseagg::service
