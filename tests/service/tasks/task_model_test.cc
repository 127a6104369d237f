// The task store against a slow and obvious model, with random operations.
#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/service/tasks/task_fixture.h"
#include "tests/support/random.h"

namespace sparseagg::service {
namespace {

using testing::Rng;

constexpr absl::Duration kNever = absl::InfiniteDuration();

struct ModelTask {
  std::string id;
  std::string owner;
  TaskSpec spec;
  TaskState state = TaskState::kOpen;
  std::vector<std::string> clients;  // of its leases
  bool is_given_back = false;
  absl::Duration created;
  absl::Duration lease_end;
  absl::Duration ended;

  absl::Duration Due() const {
    if (HasEnded(state)) return ended + spec.ttl;
    const absl::Duration deadline = spec.deadline == kNever ? kNever : created + spec.deadline;
    return state == TaskState::kLeased ? std::min(lease_end, deadline) : deadline;
  }
};

struct ModelWait {
  std::string client;
  std::vector<std::string> labels;
  absl::Duration lease;
  absl::Duration end;
};

// What the class comment of TaskRegistry says, by search through all tasks. The lease id of a client is always the
// same, so that a client has one lease at a time.
class Model {
 public:
  std::vector<ModelTask> tasks;      // in order of creation
  std::map<int, ModelWait> waits;    // in order of arrival
  std::map<int, std::string> given;  // answers to waits: ids; "": none
  absl::Duration now;

  ModelTask* Find(const std::string& id) {
    for (ModelTask& task : tasks) {
      if (task.id == id) return &task;
    }
    return nullptr;
  }
  ModelTask* LeasedTo(const std::string& client) {
    for (ModelTask& task : tasks) {
      if (task.state == TaskState::kLeased && task.clients.back() == client) return &task;
    }
    return nullptr;
  }
  ModelTask* Best(const std::vector<std::string>& labels) {
    ModelTask* best = nullptr;
    for (ModelTask& task : tasks) {
      if (task.state != TaskState::kOpen || !HasAll(labels, task.spec.labels)) continue;
      if (best == nullptr || Rank(task) < Rank(*best)) best = &task;
    }
    return best;
  }
  void Grant(ModelTask& task, const std::string& client, absl::Duration lease) {
    task.state = TaskState::kLeased;
    task.clients.push_back(client);
    task.is_given_back = false;
    task.lease_end = now + lease;
    served[task.owner] = ++turn;
  }
  void Offer() {
    for (bool again = true; again;) {
      again = false;
      for (const auto& [id, wait] : waits) {
        ModelTask* task = Best(wait.labels);
        if (task == nullptr) continue;
        ModelTask* const held = LeasedTo(wait.client);
        if (held == nullptr) Grant(*task, wait.client, wait.lease);
        given[id] = (held == nullptr ? task : held)->id;
        waits.erase(id);
        again = true;
        break;
      }
    }
  }
  void End(ModelTask& task, TaskState state) {
    task.state = state;
    task.ended = now;
    if (state != TaskState::kCompleted && task.clients.size() > 1) task.clients = {task.clients.back()};
  }
  void EndLease(ModelTask& task) {
    if (task.clients.size() >= task.spec.max_attempts) return End(task, TaskState::kFailed);
    task.state = TaskState::kOpen;
    Offer();
  }
  void Advance(absl::Duration duration) {
    now += duration;
    while (true) {
      ModelTask* first = nullptr;
      for (ModelTask& task : tasks) {
        if (task.Due() <= now && (first == nullptr || task.Due() < first->Due())) first = &task;
      }
      if (first == nullptr) break;
      if (HasEnded(first->state)) {
        const std::string owner = first->owner;
        tasks.erase(tasks.begin() + (first - tasks.data()));
        // An owner without tasks is forgotten.
        if (std::none_of(tasks.begin(), tasks.end(), [&](const ModelTask& task) { return task.owner == owner; })) {
          served.erase(owner);
        }
      } else if (first->spec.deadline != kNever && first->created + first->spec.deadline <= now) {
        End(*first, TaskState::kFailed);
      } else {
        EndLease(*first);
      }
    }
    for (auto it = waits.begin(); it != waits.end();) {
      if (it->second.end > now) {
        ++it;
        continue;
      }
      given[it->first] = "";
      it = waits.erase(it);
    }
  }

 private:
  static bool HasAll(const std::vector<std::string>& labels, const std::vector<std::string>& wanted) {
    return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& label) {
      return std::find(labels.begin(), labels.end(), label) != labels.end();
    });
  }
  std::tuple<int, uint64_t, const ModelTask*> Rank(const ModelTask& task) {
    return {-task.spec.priority, served[task.owner], &task};
  }

  std::map<std::string, uint64_t> served;
  uint64_t turn = 0;
};

class TaskModelTest : public TaskFixture, public ::testing::WithParamInterface<uint64_t> {
 protected:
  std::vector<std::string> RandomLabels() {
    std::vector<std::string> labels;
    for (const char* label : {"a", "b", "c", "d"}) {
      if (rng_.OneIn(3)) labels.push_back(label);
    }
    return labels;
  }
  std::string RandomClient() { return absl::StrCat("client-", rng_.Below(4)); }
  absl::Duration RandomTime() { return absl::Seconds(rng_.Between(1, 20)); }
  // An id of a task, perhaps of one that is gone.
  std::string RandomId() { return absl::StrCat("t", rng_.Below(std::max<uint64_t>(num_created_, 1))); }

  void CreateSome() {
    std::vector<NewTask> created;
    const std::string owner = absl::StrCat("owner-", rng_.Below(3));
    for (uint64_t n = rng_.Between(1, 3); n > 0; --n) {
      TaskSpec spec = Spec(RandomLabels(), static_cast<int32_t>(rng_.Between(0, 2)));
      spec.max_attempts = static_cast<uint32_t>(rng_.Between(1, 3));
      spec.ttl = absl::Seconds(30);
      if (rng_.OneIn(4)) spec.deadline = RandomTime() * 3;
      created.push_back(Named(absl::StrCat("t", num_created_++), spec));
      ModelTask task;
      task.id = created.back().id;
      task.owner = owner;
      task.spec = spec;
      task.created = model_.now;
      model_.tasks.push_back(std::move(task));
    }
    ASSERT_THAT(tasks().Create(kTenant, owner, created), IsOk());
    model_.Offer();
  }

  void LeaseOne() {
    const std::string client = RandomClient();
    const std::vector<std::string> labels = RandomLabels();
    const absl::Duration lease = RandomTime();
    const absl::Duration timeout = rng_.Coin() ? absl::ZeroDuration() : RandomTime();
    const int id = static_cast<int>(waits_.size());
    if (ModelTask* const held = model_.LeasedTo(client); held != nullptr) {
      model_.given[id] = held->id;
    } else if (ModelTask* const best = model_.Best(labels); best != nullptr) {
      model_.Grant(*best, client, lease);
      model_.given[id] = best->id;
    } else if (timeout == absl::ZeroDuration()) {
      model_.given[id] = "";
    } else {
      model_.waits[id] = {client, labels, lease, model_.now + timeout};
    }
    waits_.push_back(Wait(client, timeout, labels, lease));
  }

  void StopOne() {
    if (waits_.empty()) return;
    const int id = static_cast<int>(rng_.Below(waits_.size()));
    EXPECT_EQ(tasks().StopWaiting(waits_[id].id), model_.waits.erase(id) == 1);
  }

  void ChangeOne() {
    const std::string id = RandomId();
    const std::string client = RandomClient();
    ModelTask* const task = model_.Find(id);
    const bool is_open = task != nullptr && !HasEnded(task->state);
    const bool is_latest = task != nullptr && !task->clients.empty() && task->clients.back() == client;
    switch (rng_.Below(3)) {
      case 0: {
        const bool had = task != nullptr && std::count(task->clients.begin(), task->clients.end(), client) > 0;
        const bool again = task != nullptr && task->state == TaskState::kCompleted && is_latest;
        EXPECT_EQ(Complete(id, client).ok(), (is_open && had) || again) << id << " " << client;
        if (!is_open || !had) return;
        task->clients = {client};
        return model_.End(*task, TaskState::kCompleted);
      }
      case 1: {
        const absl::Duration lease = RandomTime();
        const bool is_free = is_open && (task->state == TaskState::kLeased ||
                                         (!task->is_given_back && model_.LeasedTo(client) == nullptr));
        EXPECT_EQ(Extend(id, client, lease).ok(), is_latest && is_free) << id << " " << client;
        if (!is_latest || !is_free) return;
        task->state = TaskState::kLeased;
        task->lease_end = model_.now + lease;
        return;
      }
      default: {
        const bool retry = rng_.Coin();
        const bool again = is_latest && task->is_given_back &&
                           ((task->state == TaskState::kOpen && retry) || task->state == TaskState::kFailed);
        EXPECT_EQ(Fail(id, client, retry).ok(), (is_open && is_latest) || again) << id << " " << client;
        if (!is_open || !is_latest || again) return;
        task->is_given_back = true;
        if (retry) return model_.EndLease(*task);
        return model_.End(*task, TaskState::kFailed);
      }
    }
  }

  void CancelOne() {
    ModelTask* const task = model_.Find(RandomId());
    if (task == nullptr) return;
    const bool is_open = !HasEnded(task->state);
    EXPECT_EQ(*tasks().Cancel(kTenant, {task->id}, "why"), is_open ? 1 : 0);
    if (is_open) model_.End(*task, TaskState::kCancelled);
  }

  void Compare() {
    const auto page = tasks().List(kTenant, {}, 10'000, 1 << 30, "");
    ASSERT_THAT(page, IsOk());
    ASSERT_EQ(page->tasks.size(), model_.tasks.size());
    for (size_t i = 0; i < model_.tasks.size(); ++i) {
      const ModelTask& expected = model_.tasks[i];
      const TaskSnapshot& task = page->tasks[i];
      ASSERT_EQ(task.record->id, expected.id);
      ASSERT_EQ(task.state.state, expected.state) << expected.id;
      ASSERT_EQ(task.state.leases.empty(), expected.clients.empty()) << expected.id;
      if (!expected.clients.empty()) {
        ASSERT_EQ(task.state.leases.back().client_id, expected.clients.back()) << expected.id;
      }
      if (!HasEnded(expected.state)) {
        ASSERT_EQ(task.state.attempts, expected.clients.size()) << expected.id;
      }
      if (expected.state == TaskState::kLeased) {
        ASSERT_EQ(task.lease_remaining, expected.lease_end - model_.now) << expected.id;
      }
    }
    for (size_t i = 0; i < waits_.size(); ++i) {
      const auto given = model_.given.find(static_cast<int>(i));
      ASSERT_EQ(waits_[i].answer->is_there, given != model_.given.end()) << i;
      if (given == model_.given.end()) continue;
      ASSERT_EQ(waits_[i].answer->id, given->second) << i;
    }
    ASSERT_EQ(tasks().Count().waiting, model_.waits.size());
  }

  Rng rng_{GetParam()};
  Model model_;
  uint64_t num_created_ = 0;
  std::vector<Waiting> waits_;
};

TEST_P(TaskModelTest, RandomOperations_AreThoseOfTheModel) {
  SCOPED_TRACE(absl::StrCat("seed ", GetParam()));
  model_.now = clock_.Monotonic();
  for (int step = 0; step < 600; ++step) {
    SCOPED_TRACE(step);
    const uint64_t choice = rng_.Below(20);
    if (choice < 3) {
      CreateSome();
    } else if (choice < 9) {
      LeaseOne();
    } else if (choice < 15) {
      ChangeOne();
    } else if (choice == 15) {
      CancelOne();
    } else if (choice == 16) {
      StopOne();
    } else {
      const absl::Duration time = absl::Seconds(rng_.Between(0, 8));
      Pass(time);
      model_.Advance(time);
    }
    Compare();
    if (HasFailure()) return;
  }
  Pass(absl::Hours(1));
  Pass(absl::Hours(1));
  EXPECT_EQ(tasks().Count().waiting, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, TaskModelTest, ::testing::Range(uint64_t{1}, uint64_t{21}));

}  // namespace
}  // namespace sparseagg::service
