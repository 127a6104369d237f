#include "service/store/task_records.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/store/parse_record.h"
#include "service/store/records.pb.h"

namespace sparseagg::service {
namespace {

// On disk, 0 is no time.
int64_t ToNanos(absl::Time time) { return time == absl::InfinitePast() ? 0 : absl::ToUnixNanos(time); }
absl::Time FromNanos(int64_t nanos) { return nanos == 0 ? absl::InfinitePast() : absl::FromUnixNanos(nanos); }

}  // namespace

std::string EncodeRecord(const TaskRecord& record) {
  store::Task message;
  message.set_tenant(record.tenant);
  message.set_id(record.id);
  message.set_owner(record.owner);
  message.set_payload(record.spec.payload);
  for (const std::string& label : record.spec.labels) message.add_labels(label);
  message.set_priority(record.spec.priority);
  if (record.spec.deadline != absl::InfiniteDuration()) {
    message.set_deadline_ns(absl::ToInt64Nanoseconds(record.spec.deadline));
  }
  message.set_max_attempts(record.spec.max_attempts);
  message.set_round(record.spec.round);
  message.set_ttl_ns(absl::ToInt64Nanoseconds(record.spec.ttl));
  message.set_create_time_ns(absl::ToUnixNanos(record.create_time));
  return message.SerializeAsString();
}

std::string EncodeRecord(const TaskStateRecord& record) {
  store::TaskState message;
  message.set_name(static_cast<store::TaskState::Name>(record.state));
  message.set_attempts(record.attempts);
  for (const LeaseHolder& holder : record.leases) {
    store::TaskState::Lease* const lease = message.add_leases();
    lease->set_client_id(holder.client_id);
    lease->set_lease_id(holder.lease_id);
  }
  message.set_lease_expire_time_ns(ToNanos(record.lease_expire_time));
  if (record.lease_duration != absl::InfiniteDuration()) {
    message.set_lease_duration_ns(absl::ToInt64Nanoseconds(record.lease_duration));
  }
  message.set_reason(record.reason);
  message.set_submission_id(record.submission_id);
  message.set_result(record.result);
  message.set_end_time_ns(ToNanos(record.end_time));
  return message.SerializeAsString();
}

absl::StatusOr<TaskRecord> DecodeTaskRecord(absl::string_view bytes) {
  ASSIGN_OR_RETURN(store::Task message, ParseRecord<store::Task>(bytes));
  TaskRecord record;
  record.tenant = std::move(*message.mutable_tenant());
  record.id = std::move(*message.mutable_id());
  record.owner = std::move(*message.mutable_owner());
  record.spec.payload = std::move(*message.mutable_payload());
  record.spec.labels.assign(message.labels().begin(), message.labels().end());
  record.spec.priority = message.priority();
  if (message.has_deadline_ns()) record.spec.deadline = absl::Nanoseconds(message.deadline_ns());
  record.spec.max_attempts = message.max_attempts();
  record.spec.round = std::move(*message.mutable_round());
  record.spec.ttl = absl::Nanoseconds(message.ttl_ns());
  record.create_time = absl::FromUnixNanos(message.create_time_ns());
  return record;
}

absl::StatusOr<TaskStateRecord> DecodeTaskStateRecord(absl::string_view bytes) {
  ASSIGN_OR_RETURN(store::TaskState message, ParseRecord<store::TaskState>(bytes));
  if (!store::TaskState::Name_IsValid(message.name())) {
    return absl::DataLossError(absl::StrCat("a record has the unknown task state ", static_cast<int>(message.name())));
  }
  TaskStateRecord record;
  record.state = static_cast<TaskState>(message.name());
  record.attempts = message.attempts();
  for (store::TaskState::Lease& lease : *message.mutable_leases()) {
    record.leases.push_back({std::move(*lease.mutable_client_id()), std::move(*lease.mutable_lease_id())});
  }
  record.lease_expire_time = FromNanos(message.lease_expire_time_ns());
  if (message.has_lease_duration_ns()) record.lease_duration = absl::Nanoseconds(message.lease_duration_ns());
  record.reason = std::move(*message.mutable_reason());
  record.submission_id = std::move(*message.mutable_submission_id());
  record.result = std::move(*message.mutable_result());
  record.end_time = FromNanos(message.end_time_ns());
  return record;
}

}  // namespace sparseagg::service
