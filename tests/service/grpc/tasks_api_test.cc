// The service Tasks over real connections.
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/service/support/authenticated_channel.h"
#include "tests/service/support/server_fixture.h"
#include "tests/service/support/task_client.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class TasksApiTest : public ServerFixture {
 protected:
  TaskClient& tasks() {
    if (tasks_ == nullptr) tasks_ = std::make_unique<TaskClient>(client().channel());
    return *tasks_;
  }
  // Waits until `number` calls wait for a task.
  void AwaitWaiting(uint64_t number) {
    while (server().tasks().Count().waiting != number) std::this_thread::yield();
  }

 private:
  std::unique_ptr<TaskClient> tasks_;
};

TEST_F(TasksApiTest, Lease_Waits_UntilATaskIsThere) {
  absl::StatusOr<v1::Task> leased;
  server();  // made here, not by two threads at once
  std::thread worker([&] { leased = tasks().Lease("a", absl::Minutes(1)); });
  AwaitWaiting(1);
  v1::TaskSpec spec;
  spec.set_payload(std::string(60'000, 'x'));  // needs a reservation of in-flight memory
  ASSERT_THAT(tasks().Create("task", spec), IsOk());
  worker.join();
  ASSERT_THAT(leased, IsOk());
  EXPECT_EQ(leased->spec().payload().size(), 60'000);
}

TEST_F(TasksApiTest, Lease_Cancelled_StopsWaiting) {
  v1::LeaseTaskRequest request;
  request.set_client_id("a");
  grpc::ClientContext context;
  server();  // made here, not by two threads at once
  std::thread worker([&] {
    v1::LeaseTaskResponse response;
    EXPECT_EQ(v1::Tasks::NewStub(client().channel())->LeaseTask(&context, request, &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  AwaitWaiting(1);
  context.TryCancel();
  worker.join();
  AwaitWaiting(0);
  ASSERT_THAT(tasks().Create("task"), IsOk());
  EXPECT_EQ(tasks().Get("task")->state(), v1::TASK_STATE_OPEN);
}

TEST_F(TasksApiTest, Lease_BeyondMaxWaitingLeases_IsRefused_AndDrainAnswersTheOthers) {
  options_.limits.max_waiting_leases = 1;
  absl::StatusOr<v1::Task> leased;
  server();  // made here, not by two threads at once
  std::thread worker([&] { leased = tasks().Lease("a", absl::Minutes(1)); });
  AwaitWaiting(1);
  EXPECT_THAT(tasks().Lease("b"), Fails(Code::kResourceExhausted,
                                        HasSubstr("already wait for tasks; the server's max_waiting_leases is 1")));
  server().Drain();
  worker.join();
  EXPECT_THAT(leased, Fails(Code::kUnavailable, HasSubstr("leases no tasks")));
}

TEST_F(TasksApiTest, BadInput_IsRefusedWithPlaceAndValue) {
  options_.limits.max_task_bytes = 10;
  v1::TaskSpec spec;
  spec.set_payload("12345678901");
  EXPECT_THAT(tasks().Create("t", spec), Fails(Code::kResourceExhausted,
                                               "tasks[0]: payload has 11 bytes, beyond the "
                                               "server's max_task_bytes 10"));
  spec.clear_payload();
  spec.add_labels("a b");
  EXPECT_THAT(tasks().Create("t", spec), Fails(Code::kInvalidArgument, HasSubstr("label 'a b' is not of the form")));
  spec.clear_labels();
  spec.set_max_attempts(1001);
  EXPECT_THAT(tasks().Create("t", spec), Fails(Code::kInvalidArgument, HasSubstr("max_attempts 1001")));
  spec.clear_max_attempts();
  spec.set_round("r");
  EXPECT_THAT(tasks().Create("t", spec), Fails(Code::kInvalidArgument, HasSubstr("'r' is not a round name")));
  spec.set_round("rounds/none");
  EXPECT_THAT(tasks().Create("t", spec), Fails(Code::kNotFound, "no round 'none'"));
  EXPECT_THAT(tasks().Create("a/b"), Fails(Code::kInvalidArgument, HasSubstr("task_id 'a/b'")));
  EXPECT_THAT(tasks().Create("t", {}, "a b"), Fails(Code::kInvalidArgument, HasSubstr("owner 'a b'")));
  EXPECT_THAT(tasks().Call(&v1::Tasks::Stub::CreateTasks, v1::CreateTasksRequest()),
              Fails(Code::kInvalidArgument, HasSubstr("tasks has 0 tasks; 1 to 1000")));
  v1::CreateTasksRequest many;
  for (int i = 0; i < 20'000; ++i) many.add_tasks()->mutable_spec();
  EXPECT_THAT(tasks().Call(&v1::Tasks::Stub::CreateTasks, many),
              Fails(Code::kResourceExhausted, HasSubstr("40000 fields")));
  EXPECT_THAT(tasks().Lease(""), Fails(Code::kInvalidArgument, HasSubstr("client_id has 0 bytes")));
  EXPECT_THAT(tasks().Lease("a", absl::ZeroDuration(), absl::Hours(2)),
              Fails(Code::kInvalidArgument, HasSubstr("not from 10ms to the server's max_lease 1h")));
  EXPECT_THAT(tasks().Get("none"), Fails(Code::kNotFound, "no task 'none'"));
  EXPECT_THAT(tasks().Complete("none", "a"), HasCode(Code::kNotFound));
  ASSERT_THAT(tasks().Create("t"), IsOk());
  ASSERT_THAT(tasks().Lease("a"), IsOk());
  EXPECT_THAT(tasks().Complete("t", "a", "12345678901"), Fails(Code::kResourceExhausted, HasSubstr("result has 11")));
  EXPECT_THAT(tasks().Cancel({}), Fails(Code::kInvalidArgument, HasSubstr("exactly one of names and round")));
}

TEST_F(TasksApiTest, Credentials_SayWhoTheWorkerAndTheOwnerAre) {
  options_.tokens_file = absl::StrCat(::testing::TempDir(), "/tasks_api_test.", getpid());
  ReplaceFile(options_.tokens_file, TokenLine("boss", "coordinator red boss") + TokenLine("me", "client red me") +
                                        TokenLine("other", "coordinator blue -"));
  const auto as = [&](const std::string& token) {
    return TaskClient(ConnectWith(server().grpc_address(), Bearer(token)));
  };
  TaskClient boss = as("boss");
  TaskClient me = as("me");
  EXPECT_THAT(boss.Create("task", {}, "somebody"), Fails(Code::kPermissionDenied, HasSubstr("leave owner empty")));
  ASSERT_THAT(boss.Create("task"), IsOk());
  EXPECT_EQ(boss.Get("task")->owner(), "boss");
  EXPECT_THAT(as("other").Get("task"), HasCode(Code::kNotFound));
  EXPECT_EQ(as("other").Lease("x")->name(), "");
  EXPECT_THAT(me.Lease("you"), Fails(Code::kPermissionDenied, AllOf(HasSubstr("'me'"), HasSubstr("'you'"))));
  EXPECT_EQ(me.Lease("")->lease().client_id(), "me");
  EXPECT_THAT(me.Get("task"), HasCode(Code::kPermissionDenied));
  EXPECT_THAT(me.Complete("task", ""), IsOk());
  std::remove(options_.tokens_file.c_str());
}

}  // namespace
}  // namespace sparseagg::service
