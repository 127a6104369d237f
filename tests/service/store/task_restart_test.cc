// Tasks of a server with a data directory, started again.
#include <thread>

#include "tests/service/support/stored_server.h"
#include "tests/service/support/task_client.h"

namespace sparseagg::service {
namespace {

using Code = absl::StatusCode;

class TaskRestartTest : public StoredServer, public ::testing::WithParamInterface<Durability> {
 protected:
  TaskRestartTest() : StoredServer(GetParam()) { Connect(); }

  void Connect() { tasks_ = std::make_unique<TaskClient>(client().channel()); }
  void Restart() {
    tasks_.reset();
    StoredServer::Restart();
    Connect();
  }
  v1::TaskState StateOf(const std::string& id) {
    const auto task = tasks_->Get(id);
    EXPECT_THAT(task, IsOk());
    return task.ok() ? task->state() : v1::TASK_STATE_UNSPECIFIED;
  }
  // Waits until what the clock has made due has happened.
  void AwaitState(const std::string& id, v1::TaskState state) {
    while (StateOf(id) != state) std::this_thread::yield();
  }

  std::unique_ptr<TaskClient> tasks_;
};

TEST_P(TaskRestartTest, Tasks_SurviveInTheirStates) {
  v1::TaskSpec spec;
  spec.set_payload(std::string(5000, 'x'));
  spec.add_labels("gpu");
  spec.set_priority(-2);
  spec.set_max_attempts(2);
  for (const char* id : {"completed", "failed", "cancelled", "leased", "open"}) {
    ASSERT_THAT(tasks_->Create(id, spec, "me"), IsOk());
  }
  const auto lease = [&](const std::string& client) {
    return tasks_->Lease(client, absl::ZeroDuration(), absl::Minutes(1), {"gpu"})->name();
  };
  EXPECT_EQ(lease("a"), "tasks/completed");
  EXPECT_EQ(lease("b"), "tasks/failed");
  ASSERT_THAT(tasks_->Complete("completed", "a", "result"), IsOk());
  ASSERT_THAT(tasks_->Fail("failed", "b", /*retry=*/false), IsOk());
  v1::CancelTasksRequest cancel;
  cancel.add_names("tasks/cancelled");
  ASSERT_THAT(tasks_->Cancel(cancel), IsOk());
  EXPECT_EQ(lease("c"), "tasks/leased");
  const auto list = [&] {
    std::vector<std::string> texts;
    const auto response = tasks_->List();
    EXPECT_THAT(response, IsOk());
    if (!response.ok()) return texts;
    for (const v1::Task& task : response->tasks()) texts.push_back(task.DebugString());
    return texts;
  };
  const std::vector<std::string> before = list();
  EXPECT_EQ(before.size(), 5);
  Restart();
  EXPECT_EQ(list(), before);
  EXPECT_EQ(tasks_->Get("open")->spec().payload(), spec.payload());
  EXPECT_EQ(tasks_->Get("completed")->spec().payload(), "");
  ASSERT_THAT(tasks_->Create("completed", spec, "me"), IsOk());  // a repetition
  EXPECT_THAT(tasks_->Create("completed", {}, "me"), HasCode(Code::kAlreadyExists));
  ASSERT_THAT(tasks_->Create("new", spec, "me"), IsOk());
  EXPECT_EQ(lease("d"), "tasks/open");
  EXPECT_EQ(lease("e"), "tasks/new");
  ASSERT_THAT(tasks_->Complete("leased", "c"), IsOk());
  Advance(options_.limits.max_result_ttl);
  while (tasks_->Get("completed").ok()) std::this_thread::yield();
  Restart();
  EXPECT_THAT(tasks_->Get("completed"), HasCode(Code::kNotFound));
}

TEST_P(TaskRestartTest, Lease_LastsForItsRemainingTime) {
  ASSERT_THAT(tasks_->Create("task"), IsOk());
  ASSERT_THAT(tasks_->Lease("a", absl::ZeroDuration(), absl::Seconds(20)), IsOk());
  Advance(absl::Seconds(5));
  ASSERT_THAT(tasks_->Extend("task", "a", absl::Seconds(20)), IsOk());
  Advance(absl::Seconds(5));
  Restart();
  EXPECT_EQ(tasks_->Get("task")->lease().remaining().seconds(), 15);
  EXPECT_EQ(tasks_->Lease("a")->name(), "tasks/task");  // the answer was lost
  EXPECT_EQ(tasks_->Lease("b")->name(), "");
  Advance(absl::Seconds(15));
  AwaitState("task", v1::TASK_STATE_OPEN);
  Restart();
  EXPECT_EQ(tasks_->Get("task")->attempts(), 1);
  EXPECT_THAT(tasks_->Complete("task", "a"), IsOk());  // late, and the earlier lease is known
}

TEST_P(TaskRestartTest, TimeOfDay_SetBackByAYear_ExtendsNothing) {
  v1::TaskSpec with_deadline;
  with_deadline.mutable_deadline()->set_seconds(60);
  ASSERT_THAT(tasks_->Create("leased"), IsOk());
  ASSERT_THAT(tasks_->Lease("a", absl::ZeroDuration(), absl::Seconds(5)), IsOk());
  ASSERT_THAT(tasks_->Create("done"), IsOk());
  ASSERT_THAT(tasks_->Lease("b"), IsOk());
  ASSERT_THAT(tasks_->Complete("done", "b"), IsOk());
  ASSERT_THAT(tasks_->Create("late", with_deadline), IsOk());
  clock_.SetWall(-absl::Hours(24 * 365));
  Restart();
  const auto leased = tasks_->Get("leased");
  ASSERT_THAT(leased, IsOk());
  EXPECT_EQ(leased->lease().remaining().seconds(), 5);
  EXPECT_EQ(leased->lease().expire_time().seconds(), absl::ToUnixSeconds(clock_.WallTime()) + 5);
  EXPECT_EQ(tasks_->Get("done")->expire_time().seconds(),
            absl::ToUnixSeconds(clock_.WallTime() + options_.limits.max_result_ttl));
  Advance(absl::Seconds(5));
  AwaitState("leased", v1::TASK_STATE_OPEN);
  Advance(absl::Seconds(55));
  AwaitState("late", v1::TASK_STATE_FAILED);
  Advance(options_.limits.max_result_ttl);
  while (tasks_->Get("done").ok()) std::this_thread::yield();
}

TEST_P(TaskRestartTest, Lease_ThatExpiresWithoutAServer_IsHandedOn) {
  v1::TaskSpec spec;
  spec.set_max_attempts(1);
  ASSERT_THAT(tasks_->Create("twice"), IsOk());
  ASSERT_THAT(tasks_->Create("once", spec), IsOk());
  ASSERT_THAT(tasks_->Lease("a", absl::ZeroDuration(), absl::Seconds(20)), IsOk());
  ASSERT_THAT(tasks_->Lease("b", absl::ZeroDuration(), absl::Seconds(20)), IsOk());
  server_.reset();
  clock_.Advance(absl::Seconds(30), *std::make_unique<Timer>(&clock_));
  Restart();
  AwaitState("twice", v1::TASK_STATE_OPEN);
  AwaitState("once", v1::TASK_STATE_FAILED);
  EXPECT_EQ(tasks_->Lease("c")->name(), "tasks/twice");
}

TEST_P(TaskRestartTest, TwoTasksOfOneName_KeepsTheLatest) {
  v1::TaskSpec spec;
  spec.set_payload("old");
  ASSERT_THAT(tasks_->Create("ended", spec), IsOk());
  ASSERT_THAT(tasks_->Create("open", spec), IsOk());
  EXPECT_EQ(tasks_->Lease("a")->name(), "tasks/ended");
  ASSERT_THAT(tasks_->Complete("ended", "a"), IsOk());
  tasks_.reset();
  Stop();
  {
    // The disk was full when the ended tasks were to be removed.
    auto store = Store::Open({options_.data_dir, options_.durability, 0});
    ASSERT_THAT(store, IsOk());
    TaskRecord record;
    record.tenant = "default";
    record.spec.payload = "new";
    record.spec.max_attempts = 1;
    record.spec.ttl = absl::Hours(1);
    record.create_time = clock_.WallTime();
    for (uint64_t number : {7, 8}) {
      record.id = number == 7 ? "ended" : "open";
      ASSERT_THAT((*store)->PutTasks({{number, &record}}), IsOk());
    }
  }
  for (int start = 0; start < 2; ++start) {
    ASSERT_THAT(Start(), IsOk());
    Connect();
    for (const char* id : {"ended", "open"}) {
      const auto task = tasks_->Get(id);
      ASSERT_THAT(task, IsOk());
      EXPECT_EQ(task->spec().payload(), "new");
      EXPECT_EQ(task->state(), v1::TASK_STATE_OPEN);
    }
    EXPECT_EQ(tasks_->List()->tasks_size(), 2);
    tasks_.reset();
    Stop();
  }
}

TEST_P(TaskRestartTest, Round_OfATask_IsFoundAgain) {
  for (const char* id : {"kept", "gone"}) ASSERT_THAT(client().Create(SumSpec(), id), IsOk());
  v1::TaskSpec spec;
  for (const char* id : {"kept", "gone"}) {
    spec.set_round(std::string("rounds/") + id);
    ASSERT_THAT(tasks_->Create(id, spec), IsOk());
  }
  ASSERT_THAT(client().Delete("rounds/gone"), IsOk());
  AwaitState("gone", v1::TASK_STATE_CANCELLED);
  Restart();
  EXPECT_EQ(StateOf("gone"), v1::TASK_STATE_CANCELLED);
  EXPECT_EQ(tasks_->Lease("a")->name(), "tasks/kept");
  const v1::UpdateChunk chunk = MakeChunk("rounds/kept", "a", {1}, {1});
  ASSERT_THAT(client().SubmitStream({chunk}), IsOk());
  Restart();
  EXPECT_THAT(tasks_->Complete("kept", "a", "", chunk.submission_id()), IsOk());
}

INSTANTIATE_TEST_SUITE_P(Levels, TaskRestartTest, ::testing::Values(Durability::kAsync, Durability::kSync));

}  // namespace
}  // namespace sparseagg::service
