// TaskRegistry: the tasks of all tenants, their order and their leases.
#ifndef SPARSEAGG_SERVICE_TASKS_TASK_REGISTRY_H_
#define SPARSEAGG_SERVICE_TASKS_TASK_REGISTRY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "host/base/mutex.h"
#include "service/admission/memory_budget.h"
#include "service/base/clock.h"
#include "service/store/journal.h"
#include "service/tasks/task.h"
#include "service/tasks/task_tenant.h"

namespace sparseagg::service {

// Work that coordinators create and workers fetch.
//
//   state      entered by                                               then
//   OPEN       Create; the end of a lease: Fail, or its time            waits for a worker that has its labels
//   LEASED     Lease; Extend of an expired lease                        its worker extends, completes or fails it
//   COMPLETED  Complete, by the latest lease or an earlier one          there are a submission id and a result
//   FAILED     Fail without retry, the end of the last attempt's lease, there is a reason
//              the deadline
//   CANCELLED  Cancel; the end of its round, unless it is LEASED, and   there is a reason
//              then the end of the lease
//
// A task in one of the last three states has ended: its payload is freed, and spec.ttl later it is deleted.
//
// A worker gets, of the tasks of its tenant whose labels it has, one of the highest priority; among those, one of the
// owner that was served least recently; of this owner, the oldest. A task that becomes OPEN goes to the worker that has
// waited longest among those that have its labels.
//
//   auto tasks = std::make_shared<TaskRegistry>(services);
//   RETURN_IF_ERROR(tasks->Create("tenant", "owner", {{"id", spec}}).status());
//   tasks->Lease({"tenant", {"client", "lease"}, labels, absl::Minutes(1)}, absl::Seconds(30),
//                [](absl::StatusOr<std::optional<TaskSnapshot>> leased) { … });
//   RETURN_IF_ERROR(tasks->Complete({"tenant", "id", {"client", "lease"}}, "submission", "result").status());
//   tasks->Drain();  // before the server shuts down
//
// With a store on disk, each call writes its change before it makes the change: what cannot be written does not happen,
// and the call returns the error of Store. What no call asks for (the end of a lease, of a deadline, of a round)
// happens even if it cannot be written; a restart does it again. WhenDurable tells when a change may be acknowledged.
//
// Owned by Server, by shared_ptr: callbacks on the timer and the pool hold weak pointers. Thread-safe: one lock, with a
// store held also for the write. Lease, Extend, Complete and Fail hold it for a time that grows with the label sets and
// owners that match, not with the number of tasks; Create, Cancel, CancelRound and List: O(tasks that they look at).
class TaskRegistry : public std::enable_shared_from_this<TaskRegistry> {
 public:
  explicit TaskRegistry(const TaskServices& services);
  ~TaskRegistry();  // drops the waits without calling them

  // ---- coordinators ----

  // Creates tasks, all or none. A task whose id, spec and owner are those of an existing one stays as it is.
  // Returns: the ids, chosen by the registry where empty, in the order of `tasks`.
  // Requires: labels are sorted and each is there once; max_attempts and ttl are set.
  // Errors: ALREADY_EXISTS: an id has another spec or owner. NOT_FOUND, FAILED_PRECONDITION: a round does not exist or
  // is not OPEN. INVALID_ARGUMENT: an id is there twice. RESOURCE_EXHAUSTED: too many open tasks, or no memory.
  absl::StatusOr<std::vector<std::string>> Create(const std::string& tenant, const std::string& owner,
                                                  std::vector<NewTask> tasks);
  // Errors: NOT_FOUND.
  absl::StatusOr<TaskSnapshot> Get(const std::string& tenant, absl::string_view id) const;
  // Returns: which version of the task's stream a worker that leases it now starts from; nullopt: it has no stream.
  std::optional<uint64_t> BaseVersionOf(const TaskSnapshot& task) const;
  struct Filter {
    std::optional<TaskState> state;
    std::string round;  // id; empty: all tasks
  };
  struct Page {
    std::vector<TaskSnapshot> tasks;  // in order of creation
    std::string next_page_token;      // empty on the last page
  };
  // Returns: up to `page_size` tasks that pass the filter. A page ends early when their results have more than
  // `max_bytes`, or when 10,000 tasks were looked at; only an empty next_page_token means the last page.
  // Errors: INVALID_ARGUMENT: not a token of this call.
  absl::StatusOr<Page> List(const std::string& tenant, const Filter& filter, size_t page_size, uint64_t max_bytes,
                            absl::string_view page_token) const;
  // Cancels those of the tasks that have not ended. Returns: their number. Errors, which change nothing: NOT_FOUND.
  absl::StatusOr<uint64_t> Cancel(const std::string& tenant, absl::Span<const std::string> ids,
                                  const std::string& reason);
  // The same for all tasks of a round, which need not exist.
  absl::StatusOr<uint64_t> CancelRound(const std::string& tenant, const std::string& round, const std::string& reason);

  // ---- workers ----

  struct LeaseRequest {
    std::string tenant;
    LeaseHolder holder;               // an empty lease_id is replaced by a random one
    std::vector<std::string> labels;  // what the worker has: ascending, each once
    absl::Duration duration;
  };
  // nullopt: no task came within the timeout.
  using OnLease = std::function<void(absl::StatusOr<std::optional<TaskSnapshot>>)>;
  using WaitId = uint64_t;  // never 0
  // Leases a task and calls `done` once: before the return if a task is there, the timeout is 0 or the registry is
  // drained; else later, on a thread of another caller or of the pool, for which `done` must be short. A holder whose
  // lease is under way gets the same task, with the lease as it is (`duration` has no effect), also after Drain.
  // Returns: an id for StopWaiting, also if `done` has been called. Errors, given to `done`: UNAVAILABLE: drained. Of
  // Store.
  WaitId Lease(LeaseRequest request, absl::Duration timeout, OnLease done);
  // Ends a wait. Returns: true if `done` will not be called; false if it has been, or another thread is about to.
  bool StopWaiting(WaitId id);
  // Sets the end of the lease to `duration` from now, of an expired lease too. Errors: NOT_FOUND: no task.
  // FAILED_PRECONDITION: the task has ended, another lease has followed, Fail has given the lease back, or the holder
  // uses the lease id for another task now.
  absl::StatusOr<TaskSnapshot> Extend(const LeaseName& lease, absl::Duration duration);
  // Completes the task. The latest lease may do so, and each earlier one, until the task has ended. The same
  // lease, submission and result again change nothing.
  // Errors: NOT_FOUND: no task. FAILED_PRECONDITION: the task has ended; the holder never had a lease; or the task has
  // a round in which the client has no committed submission with this id. RESOURCE_EXHAUSTED: no memory for the result.
  absl::StatusOr<TaskSnapshot> Complete(const LeaseName& lease, const std::string& submission_id,
                                        const std::string& result);
  // Ends the lease: the task is OPEN again if `retry` and it has attempts left, else FAILED. Again: no effect,
  // but that a task that is still OPEN is FAILED if the repetition says so.
  // Errors: NOT_FOUND: no task. FAILED_PRECONDITION: the task has ended, or the lease has passed on.
  absl::StatusOr<TaskSnapshot> Fail(const LeaseName& lease, const std::string& reason, bool retry);

  // ---- the server ----

  // Calls `done` once, when all changes until now will survive what the server's durability promises; as
  // Store::WhenDurable.
  void WhenDurable(Store::OnDurable done) const { journal_.WhenDurable(std::move(done)); }
  absl::Status AwaitDurable() const { return journal_.AwaitDurable(); }
  // Reads the tasks of an earlier run from the store. Leases go on until the time at which they would have expired.
  // Call it once, before all else, after the rounds are restored.
  // Errors: RESOURCE_EXHAUSTED: no memory. DATA_LOSS. Of Store.
  absl::Status Restore();
  // Hands out no more leases, and ends all waits with UNAVAILABLE.
  void Drain();

  struct Counts {
    std::array<uint64_t, kNumTaskStates> tasks{};
    uint64_t waiting = 0;  // calls that wait for a task
    uint64_t bytes = 0;    // of memory reserved for tasks
  };
  Counts Count() const;

 private:
  // A call that waits for a task.
  struct Wait {
    TaskTenant* tenant = nullptr;
    LeaseRequest request;
    absl::Duration end;  // Clock::Monotonic
    OnLease done;
  };
  // Calls of OnLease, made after the lock is released.
  using Answers = std::vector<std::function<void()>>;
  using Leased = absl::StatusOr<std::optional<TaskSnapshot>>;

  // task_registry.cc: tasks, by name and in lists
  TaskEntry* FindLocked(const std::string& tenant, absl::string_view id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<TaskEntry*> GetLocked(const std::string& tenant, absl::string_view id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  TaskSnapshot SnapshotLocked(const TaskEntry& task) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds a task to all maps but that of its state.
  TaskEntry& InsertLocked(uint64_t number, TaskRecord record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeleteLocked(TaskEntry& task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<uint64_t> CancelLocked(absl::Span<TaskEntry* const> tasks, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // task_creation.cc
  struct RoundCheck {
    absl::Status status;  // whether tasks may be created for it
    std::shared_ptr<Intake> round;
  };
  std::map<std::string, RoundCheck> CheckRounds(const std::string& tenant, absl::Span<const NewTask> tasks) const;
  // Returns: whether the task is there already. Errors: ALREADY_EXISTS.
  absl::StatusOr<bool> IsRepeatedLocked(const std::string& tenant, const std::string& owner, const NewTask& task) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls EndRound when the round is sealed or ends, unless that is arranged.
  void Watch(const std::string& tenant, const std::shared_ptr<Intake>& round);
  // Cancels the tasks of a round, or has the ends of their leases do so. `round`: null: those whose round is gone.
  void EndRound(const std::string& tenant, const std::string& id, const std::shared_ptr<Intake>& round,
                const std::string& reason);

  // task_leases.cc: from a lease to its end
  // Leases `task` for `request`. Errors, which change nothing: of Store.
  absl::Status GrantLocked(TaskEntry& task, const LeaseRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Requires: `task` has just become OPEN. Gives the longest-waiting worker that has its labels the best task for that
  // worker, perhaps another one; again until `task` is not OPEN or no such worker waits.
  void OfferLocked(TaskEntry& task, Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnswerLocked(std::map<WaitId, Wait>::iterator wait, Leased leased, Answers& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Errors: of Store.
  absl::Status WriteStateLocked(const TaskEntry& task, const TaskStateRecord& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes a state, then sets it. Errors, which change nothing: of Store.
  absl::Status ChangeLocked(TaskEntry& task, TaskStateRecord next, absl::Duration lease_end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts tasks that have ended, in the metrics.
  void CountEnd(TaskState state, uint64_t number);
  // Sets the state of a task and what goes with it: the queue, the count, the timer and the memory. The caller has
  // written the state, and offers a task that is OPEN.
  void SetStateLocked(TaskEntry& task, TaskStateRecord state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns: the state after the end of a lease.
  TaskStateRecord AfterLeaseLocked(const TaskEntry& task, const std::string& reason) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  TaskStateRecord EndedLocked(const TaskEntry& task, TaskState state, std::string reason) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Checks what Complete asks for, but for the round.
  absl::Status CheckMayCompleteLocked(const TaskEntry& task, const LeaseHolder& holder) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // task_timer.cc: what happens by itself
  void SetDueLocked(TaskEntry& task, absl::Duration when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ArmTimerLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunDue();
  void OnDueLocked(TaskEntry& task, absl::Duration now, Answers& answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns: the end of `length` from `start` on, by the monotonic clock. A time of day that was set back, so that
  // `start` lies ahead, makes the time that is left no longer than `length`.
  absl::Duration EndOf(absl::Time start, absl::Duration length) const;

  const TaskServices services_;
  const std::string run_;  // a part of ids that other runs of the server do not make
  Journal journal_;

  mutable Mutex mu_;
  bool is_drained_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_number_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t next_wait_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<std::string, TaskTenant> tenants_ ABSL_GUARDED_BY(mu_);
  std::map<WaitId, Wait> waits_ ABSL_GUARDED_BY(mu_);
  std::set<std::pair<absl::Duration, WaitId>> wait_ends_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<absl::Duration, uint64_t>, TaskEntry*> due_ ABSL_GUARDED_BY(mu_);  // by time and number
  std::array<uint64_t, kNumTaskStates> counts_ ABSL_GUARDED_BY(mu_){};
  Reservation reservation_ ABSL_GUARDED_BY(mu_);
  Timer::Id timer_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration timer_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();  // when the timer calls RunDue
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TASKS_TASK_REGISTRY_H_
