// Store: tasks, and the time.
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/store/database.h"
#include "service/store/keys.h"
#include "service/store/records.h"
#include "service/store/records.pb.h"
#include "service/store/store.h"

namespace sparseagg::service {

using keys::TaskKind;

absl::StatusOr<Store::Ticket> Store::PutTasks(absl::Span<const NumberedTask> tasks) {
  rocksdb::WriteBatch batch;
  for (const auto& [number, task] : tasks) {
    const std::string record = EncodeRecord(*task);
    batch.Put(keys::Task(number, TaskKind::kTask), record);
    unreclaimed_bytes_ += record.size();
  }
  FailPoint("before_tasks");
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_tasks");
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::PutTaskStates(absl::Span<const NumberedTaskState> states) {
  rocksdb::WriteBatch batch;
  for (const auto& [number, state] : states) {
    batch.Put(keys::Task(number, TaskKind::kState), EncodeRecord(*state));
  }
  FailPoint("before_task_state");
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_task_state");
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::DeleteTask(uint64_t number) {
  rocksdb::WriteBatch batch;
  batch.Delete(keys::Task(number, TaskKind::kTask));
  batch.Delete(keys::Task(number, TaskKind::kState));
  FailPoint("before_task_delete");
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_task_delete");
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::PutSeen(absl::Time time) {
  store::Seen record;
  record.set_time_ns(absl::ToUnixNanos(time));
  rocksdb::WriteBatch batch;
  batch.Put(keys::Seen(), record.SerializeAsString());
  return Write(batch);
}

absl::Status Store::ReadSeen() {
  Database::Range range(*database_, keys::Seen(), keys::Seen() + '\0');
  if (!range.Valid()) return range.status();
  ASSIGN_OR_RETURN(const store::Seen record, ParseRecord<store::Seen>(range.value()));
  last_seen_ = absl::FromUnixNanos(record.time_ns());
  return absl::OkStatus();
}

absl::Status Store::ForEachTask(const std::function<absl::Status(uint64_t, TaskRecord, TaskStateRecord)>& take) const {
  Database::Range range(*database_, keys::EndOfRounds(), keys::EndOfTasks());
  while (range.Valid()) {
    const absl::string_view key = range.key();
    if (key.size() != keys::kTaskKindAt + 1 || static_cast<TaskKind>(key[keys::kTaskKindAt]) != TaskKind::kTask) {
      return absl::DataLossError(
          absl::StrCat("the data directory has a key of ", key.size(), " bytes where a task begins: it is damaged"));
    }
    const uint64_t number = keys::NumberAt(key.substr(1));
    ASSIGN_OR_RETURN(TaskRecord record, DecodeTaskRecord(range.value()));
    range.Next();
    TaskStateRecord state;
    if (range.Valid() && range.key() == keys::Task(number, TaskKind::kState)) {
      ASSIGN_OR_RETURN(state, DecodeTaskStateRecord(range.value()));
      range.Next();
    }
    RETURN_IF_ERROR(take(number, std::move(record), std::move(state)));
  }
  return range.status();
}

}  // namespace sparseagg::service
