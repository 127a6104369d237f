#include "service/store/records.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/store/records.pb.h"

namespace sparseagg::service {
std::string EncodeRecord(const RoundRecord& record) {
  store::Round message;
  message.set_tenant(record.tenant);
  message.set_id(record.id);
  message.set_spec(record.spec);
  message.set_create_time_ns(absl::ToUnixNanos(record.create_time));
  message.set_noise_key_id(record.noise_key_id);
  message.set_release_id(record.release_id);
  message.set_leaf_salt_key(record.leaf_salt_key);
  message.set_stream_spec(record.stream_spec);
  message.set_stream(record.stream);
  message.set_version(record.version);
  message.set_model_spec(record.model_spec);
  message.set_keep_versions(record.keep_versions);
  return message.SerializeAsString();
}

std::string EncodeRecord(const StateRecord& record) {
  store::State message;
  message.set_name(static_cast<store::State::Name>(record.name));
  message.set_reason(record.reason);
  message.set_close_time_ns(absl::ToUnixNanos(record.close_time));
  message.set_end_time_ns(absl::ToUnixNanos(record.end_time));
  message.set_certificate(record.certificate);
  message.set_certificate_content(record.certificate_content);
  return message.SerializeAsString();
}

std::string EncodeRecord(const SubmissionRecord& record) {
  store::Submission message;
  message.set_submission_id(record.submission_id);
  message.set_upload_tag(record.tag);
  message.set_upload(record.upload);
  message.set_num_chunks(record.num_chunks);
  message.set_num_tuples(record.num_tuples);
  message.set_num_bytes(record.num_bytes);
  message.set_hash_high(record.hash.first);
  message.set_hash_low(record.hash.second);
  if (record.weight.has_value()) message.set_weight(*record.weight);
  if (record.client_weight.has_value()) message.set_client_weight(*record.client_weight);
  if (record.num_submissions != 1) message.set_num_submissions(record.num_submissions);
  message.set_leaf(record.leaf);
  if (record.position.has_value()) {
    message.set_position(*record.position);
    message.set_base_version(record.base_version);
    message.set_client_id(record.client_id);
  }
  return message.SerializeAsString();
}

std::string EncodeRecord(const UploadRecord& record) {
  store::Upload message;
  message.set_client_id(record.client_id);
  message.set_submission_id(record.submission_id);
  message.set_upload_tag(record.tag);
  if (record.range.has_value()) {
    store::Upload::Range& range = *message.mutable_range();
    range.set_only(record.range->only);
    range.set_plan(record.range->plan);
    range.set_tensor(record.range->tensor);
    range.set_begin(record.range->begin);
    range.set_end(record.range->end);
  }
  return message.SerializeAsString();
}

std::string EncodeRecord(const ChunkReference& record) {
  store::ChunkReference message;
  message.set_offset(record.offset);
  message.set_size(record.size);
  message.set_hash_high(record.hash.first);
  message.set_hash_low(record.hash.second);
  return message.SerializeAsString();
}

std::string EncodeRecord(const SyncedRecord& record) {
  store::Synced message;
  message.set_bytes(record.num_bytes);
  return message.SerializeAsString();
}

std::string EncodeRecord(const CutRecord& record) {
  store::Cut message;
  message.set_cause(record.cause);
  message.set_time_ns(absl::ToUnixNanos(record.time));
  message.set_next_position(record.next_position);
  return message.SerializeAsString();
}

std::string EncodeRecord(const ModelVersionRecord& record) {
  store::ModelVersion message;
  message.set_source(record.source);
  message.set_empty_reason(record.empty_reason);
  if (record.learning_rate.has_value()) message.set_learning_rate(*record.learning_rate);
  message.set_digest(record.digest);
  message.set_upload(record.upload);
  message.set_num_chunks(record.num_chunks);
  message.set_num_bytes(record.num_bytes);
  return message.SerializeAsString();
}

absl::StatusOr<RoundRecord> DecodeRoundRecord(absl::string_view bytes) {
  ASSIGN_OR_RETURN(const store::Round message, ParseRecord<store::Round>(bytes));
  return RoundRecord{message.tenant(),        message.id(),
                     message.spec(),          absl::FromUnixNanos(message.create_time_ns()),
                     message.noise_key_id(),  message.release_id(),
                     message.leaf_salt_key(), message.stream_spec(),
                     message.stream(),        message.version(),
                     message.model_spec(),    message.keep_versions()};
}

absl::StatusOr<StateRecord> DecodeStateRecord(absl::string_view bytes) {
  ASSIGN_OR_RETURN(const store::State message, ParseRecord<store::State>(bytes));
  if (!store::State::Name_IsValid(message.name())) {
    return absl::DataLossError(absl::StrCat("a record has the unknown state ", static_cast<int>(message.name())));
  }
  return StateRecord{static_cast<StateRecord::Name>(message.name()),
                     message.reason(),
                     absl::FromUnixNanos(message.close_time_ns()),
                     absl::FromUnixNanos(message.end_time_ns()),
                     message.certificate(),
                     message.certificate_content()};
}

absl::StatusOr<SubmissionRecord> DecodeSubmissionRecord(absl::string_view bytes) {
  ASSIGN_OR_RETURN(const store::Submission message, ParseRecord<store::Submission>(bytes));
  SubmissionRecord record{message.submission_id(),
                          message.upload_tag(),
                          message.upload(),
                          message.num_chunks(),
                          message.num_tuples(),
                          message.num_bytes(),
                          {message.hash_high(), message.hash_low()}};
  if (message.has_weight()) record.weight = message.weight();
  if (message.has_client_weight()) record.client_weight = message.client_weight();
  if (message.num_submissions() != 0) record.num_submissions = message.num_submissions();
  record.leaf = message.leaf();
  if (message.has_position()) record.position = message.position();
  record.base_version = message.base_version();
  record.client_id = message.client_id();
  return record;
}

absl::StatusOr<UploadRecord> DecodeUploadRecord(absl::string_view bytes) {
  ASSIGN_OR_RETURN(const store::Upload message, ParseRecord<store::Upload>(bytes));
  UploadRecord record{message.client_id(), message.submission_id(), message.upload_tag()};
  const store::Upload::Range& range = message.range();
  if (message.has_range()) record.range = {range.only(), range.plan(), range.tensor(), range.begin(), range.end()};
  return record;
}

absl::StatusOr<ChunkReference> DecodeChunkReference(absl::string_view bytes) {
  ASSIGN_OR_RETURN(const store::ChunkReference message, ParseRecord<store::ChunkReference>(bytes));
  return ChunkReference{message.offset(), message.size(), {message.hash_high(), message.hash_low()}};
}

absl::StatusOr<SyncedRecord> DecodeSyncedRecord(absl::string_view bytes) {
  ASSIGN_OR_RETURN(const store::Synced message, ParseRecord<store::Synced>(bytes));
  return SyncedRecord{message.bytes()};
}

absl::StatusOr<CutRecord> DecodeCutRecord(absl::string_view bytes) {
  ASSIGN_OR_RETURN(const store::Cut message, ParseRecord<store::Cut>(bytes));
  return CutRecord{message.cause(), absl::FromUnixNanos(message.time_ns()), message.next_position()};
}

absl::StatusOr<ModelVersionRecord> DecodeModelVersionRecord(absl::string_view bytes) {
  ASSIGN_OR_RETURN(const store::ModelVersion message, ParseRecord<store::ModelVersion>(bytes));
  return ModelVersionRecord{message.source(),
                            message.empty_reason(),
                            message.has_learning_rate() ? std::optional(message.learning_rate()) : std::nullopt,
                            message.digest(),
                            message.upload(),
                            message.num_chunks(),
                            message.num_bytes()};
}

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
