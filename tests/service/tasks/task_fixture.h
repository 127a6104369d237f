// A test fixture for the task store without sockets.
#ifndef SPARSEAGG_TESTS_SERVICE_TASKS_TASK_FIXTURE_H_
#define SPARSEAGG_TESTS_SERVICE_TASKS_TASK_FIXTURE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "service/tasks/task_registry.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {

class TaskFixture : public RoundFixture {
 protected:
  static constexpr char kTenant[] = "default";

  // Made at the first use.
  TaskRegistry& tasks() {
    if (tasks_ == nullptr) tasks_ = std::make_shared<TaskRegistry>(context().ForTasks(&registry()));
    return *tasks_;
  }

  static TaskSpec Spec(std::vector<std::string> labels = {}, int32_t priority = 0) {
    TaskSpec spec;
    spec.payload = "work";
    spec.labels = std::move(labels);
    spec.priority = priority;
    spec.max_attempts = kDefaultTaskAttempts;
    spec.ttl = absl::Minutes(10);
    return spec;
  }
  static NewTask Named(const std::string& id, TaskSpec spec = Spec()) { return {id, std::move(spec)}; }
  void Create(const std::string& id, const TaskSpec& spec = Spec(), const std::string& owner = "owner") {
    EXPECT_THAT(tasks().Create(kTenant, owner, {{id, spec}}), IsOk());
  }
  TaskSnapshot Get(const std::string& id) {
    const auto task = tasks().Get(kTenant, id);
    EXPECT_THAT(task, IsOk());
    return *task;
  }
  TaskState StateOf(const std::string& id) { return Get(id).state.state; }

  // The answer to a Lease, when it has come.
  struct Answer {
    bool is_there = false;
    absl::Status status;
    std::string id;  // of the task; "": none
  };
  struct Waiting {
    TaskRegistry::WaitId id = 0;
    std::shared_ptr<Answer> answer = std::make_shared<Answer>();
  };
  Waiting Wait(const std::string& client, absl::Duration timeout, std::vector<std::string> labels = {},
               absl::Duration duration = absl::Minutes(1), const std::string& lease_id = "lease") {
    Waiting waiting;
    waiting.id = tasks().Lease({kTenant, {client, lease_id}, std::move(labels), duration}, timeout,
                               [answer = waiting.answer](absl::StatusOr<std::optional<TaskSnapshot>> leased) {
                                 EXPECT_FALSE(answer->is_there);
                                 answer->is_there = true;
                                 answer->status = leased.status();
                                 if (leased.ok() && leased->has_value()) answer->id = (*leased)->record->id;
                               });
    return waiting;
  }
  // Returns: the id of the task that the client gets at once; "" if there is none.
  std::string Lease(const std::string& client, std::vector<std::string> labels = {},
                    absl::Duration duration = absl::Minutes(1), const std::string& lease_id = "lease") {
    const Waiting waiting = Wait(client, absl::ZeroDuration(), std::move(labels), duration, lease_id);
    EXPECT_TRUE(waiting.answer->is_there);
    EXPECT_THAT(waiting.answer->status, IsOk());
    return waiting.answer->id;
  }
  static LeaseName NameOf(const std::string& id, const std::string& client, const std::string& lease_id = "lease") {
    return {kTenant, id, {client, lease_id}};
  }
  absl::Status Complete(const std::string& id, const std::string& client, const std::string& submission = "") {
    return tasks().Complete(NameOf(id, client), submission, "result").status();
  }
  absl::Status Fail(const std::string& id, const std::string& client, bool retry) {
    return tasks().Fail(NameOf(id, client), "no luck", retry).status();
  }
  absl::Status Extend(const std::string& id, const std::string& client, absl::Duration duration = absl::Minutes(1)) {
    return tasks().Extend(NameOf(id, client), duration).status();
  }
  // Moves the clock, and waits until all that is due has happened.
  void Pass(absl::Duration duration) {
    Advance(duration);
    RunPendingTasks();
  }

 private:
  std::shared_ptr<TaskRegistry> tasks_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_TASKS_TASK_FIXTURE_H_
