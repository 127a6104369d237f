// The part of the store that holds the tasks.
#ifndef SPARSEAGG_SERVICE_TASKS_TASK_JOURNAL_H_
#define SPARSEAGG_SERVICE_TASKS_TASK_JOURNAL_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "service/store/store.h"

namespace sparseagg::service {

// Writes what happens to tasks. Without a store it does nothing, and succeeds. Errors of all writes: as of Store.
//
// Owned by TaskRegistry. Thread-safe.
class TaskJournal {
 public:
  explicit TaskJournal(Store* store) : store_(store) {}  // null: tasks live in memory only

  absl::Status PutTasks(absl::Span<const Store::NumberedTask> tasks) {
    return Write([&] { return store_->PutTasks(tasks); });
  }
  absl::Status PutStates(absl::Span<const Store::NumberedTaskState> states) {
    return Write([&] { return store_->PutTaskStates(states); });
  }
  absl::Status PutState(uint64_t number, const TaskStateRecord& state) { return PutStates({{number, &state}}); }
  absl::Status Delete(uint64_t number) {
    return Write([&] { return store_->DeleteTask(number); });
  }

  // As Store::WhenDurable and AwaitDurable, for all that was written until now.
  void WhenDurable(Store::OnDurable done) const {
    if (latest_ == 0) return done(absl::OkStatus());
    store_->WhenDurable(latest_, std::move(done));
  }
  absl::Status AwaitDurable() const { return latest_ == 0 ? absl::OkStatus() : store_->AwaitDurable(latest_); }

 private:
  template <typename Function>
  absl::Status Write(Function write) {
    if (store_ == nullptr) return absl::OkStatus();
    const absl::StatusOr<Store::Ticket> ticket = write();
    if (!ticket.ok()) return ticket.status();
    latest_ = *ticket;  // writes follow one another: the registry holds its lock
    return absl::OkStatus();
  }

  Store* const store_;
  std::atomic<Store::Ticket> latest_ = 0;  // 0: none
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TASKS_TASK_JOURNAL_H_
