#include "service/codec/task_codec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/auth/authorize.h"
#include "service/codec/round_codec.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/round_config.h"

namespace sparseagg::service {
namespace {

constexpr absl::string_view kTaskPrefix = "tasks/";
constexpr size_t kMaxLabelBytes = 64;

bool IsLabel(absl::string_view label) {
  return !label.empty() && label.size() <= kMaxLabelBytes && std::all_of(label.begin(), label.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("._:=/-", absl::string_view(&c, 1));
  });
}

// Returns: the labels, ascending and each once.
absl::StatusOr<std::vector<std::string>> DecodeLabels(const google::protobuf::RepeatedPtrField<std::string>& wire) {
  if (static_cast<size_t>(wire.size()) > kMaxTaskLabels) {
    return absl::InvalidArgumentError(
        absl::StrCat("labels has ", wire.size(), " labels; up to ", kMaxTaskLabels, " are allowed"));
  }
  std::vector<std::string> labels(wire.begin(), wire.end());
  for (const std::string& label : labels) {
    if (IsLabel(label)) continue;
    return absl::InvalidArgumentError(absl::StrCat("label '", absl::CHexEscape(label.substr(0, kMaxLabelBytes)),
                                                   "' is not of the form [A-Za-z0-9._:=/-]{1,64}"));
  }
  std::sort(labels.begin(), labels.end());
  labels.erase(std::unique(labels.begin(), labels.end()), labels.end());
  return labels;
}

absl::StatusOr<TaskSpec> DecodeTaskSpec(const v1::TaskSpec& wire, const Limits& limits) {
  TaskSpec spec;
  RETURN_IF_ERROR(CheckTaskBytes(wire.payload().size(), "payload", limits));
  spec.payload = wire.payload();
  ASSIGN_OR_RETURN(spec.labels, DecodeLabels(wire.labels()));
  spec.priority = wire.priority();
  if (wire.has_deadline()) {
    ASSIGN_OR_RETURN(spec.deadline, DecodeDuration(wire.deadline(), "deadline"));
    if (spec.deadline == absl::ZeroDuration()) return absl::InvalidArgumentError("deadline is 0");
  }
  spec.max_attempts = wire.max_attempts() == 0 ? kDefaultTaskAttempts : wire.max_attempts();
  if (spec.max_attempts > kMaxTaskAttempts) {
    return absl::InvalidArgumentError(absl::StrCat("max_attempts ", spec.max_attempts, " is above ", kMaxTaskAttempts));
  }
  if (!wire.round().empty()) {
    ASSIGN_OR_RETURN(spec.round, ParseRoundName(wire.round()));
  }
  spec.ttl = limits.max_result_ttl;
  if (wire.has_ttl()) {
    ASSIGN_OR_RETURN(const absl::Duration ttl, DecodeDuration(wire.ttl(), "ttl"));
    spec.ttl = std::min(spec.ttl, ttl);
  }
  return spec;
}

static_assert(static_cast<int>(TaskState::kOpen) == v1::TASK_STATE_OPEN - 1 &&
              static_cast<int>(TaskState::kLeased) == v1::TASK_STATE_LEASED - 1 &&
              static_cast<int>(TaskState::kCompleted) == v1::TASK_STATE_COMPLETED - 1 &&
              static_cast<int>(TaskState::kFailed) == v1::TASK_STATE_FAILED - 1 &&
              static_cast<int>(TaskState::kCancelled) == v1::TASK_STATE_CANCELLED - 1);
v1::TaskState EncodeState(TaskState state) { return static_cast<v1::TaskState>(static_cast<int>(state) + 1); }

void EncodeSpec(const TaskSpec& spec, bool with_payload, v1::TaskSpec* wire) {
  if (with_payload) wire->set_payload(spec.payload);
  for (const std::string& label : spec.labels) wire->add_labels(label);
  wire->set_priority(spec.priority);
  if (spec.deadline != absl::InfiniteDuration()) EncodeDuration(spec.deadline, wire->mutable_deadline());
  wire->set_max_attempts(spec.max_attempts);
  if (!spec.round.empty()) wire->set_round(RoundName(spec.round));
  EncodeDuration(spec.ttl, wire->mutable_ttl());
}

}  // namespace

std::string TaskName(absl::string_view id) { return absl::StrCat(kTaskPrefix, id); }

absl::StatusOr<std::string> ParseTaskName(absl::string_view name) {
  absl::string_view id = name;
  if (!absl::ConsumePrefix(&id, kTaskPrefix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name ", QuotedId(name), " is not a task name; task names are tasks/ID"));
  }
  RETURN_IF_ERROR(CheckName(id, "task_id"));
  return std::string(id);
}

absl::StatusOr<std::vector<NewTask>> DecodeNewTasks(const v1::CreateTasksRequest& request, const Limits& limits) {
  const auto number = static_cast<size_t>(request.tasks_size());
  if (number == 0 || number > kMaxTasksPerCall) {
    return absl::InvalidArgumentError(
        absl::StrCat("tasks has ", number, " tasks; 1 to ", kMaxTasksPerCall, " are allowed"));
  }
  std::vector<NewTask> tasks;
  tasks.reserve(number);
  for (const v1::NewTask& wire : request.tasks()) {
    const absl::Status checked = wire.task_id().empty() ? absl::OkStatus() : CheckName(wire.task_id(), "task_id");
    absl::StatusOr<TaskSpec> spec = checked.ok() ? DecodeTaskSpec(wire.spec(), limits) : checked;
    if (!spec.ok()) {
      return absl::Status(spec.status().code(), absl::StrCat("tasks[", tasks.size(), "]: ", spec.status().message()));
    }
    tasks.push_back({wire.task_id(), *std::move(spec)});
  }
  return tasks;
}

absl::Status CheckOwner(absl::string_view owner) {
  return owner.empty() ? absl::OkStatus() : CheckName(owner, "owner");
}

absl::StatusOr<absl::Duration> DecodeLeaseDuration(bool is_set, const google::protobuf::Duration& wire,
                                                   const Limits& limits) {
  if (!is_set) return std::min(kDefaultLease, limits.max_lease);
  ASSIGN_OR_RETURN(const absl::Duration duration, DecodeDuration(wire, "lease_duration"));
  if (duration >= kMinLease && duration <= limits.max_lease) return duration;
  return absl::InvalidArgumentError(absl::StrCat("lease_duration ", absl::FormatDuration(duration), " is not from ",
                                                 absl::FormatDuration(kMinLease), " to the server's max_lease ",
                                                 absl::FormatDuration(limits.max_lease)));
}

absl::StatusOr<TaskRegistry::LeaseRequest> DecodeLease(const v1::LeaseTaskRequest& request, const Limits& limits) {
  TaskRegistry::LeaseRequest decoded;
  decoded.holder = {request.client_id(), request.lease_id()};
  if (!request.lease_id().empty()) RETURN_IF_ERROR(CheckId(request.lease_id(), "lease_id"));
  ASSIGN_OR_RETURN(decoded.labels, DecodeLabels(request.labels()));
  ASSIGN_OR_RETURN(decoded.duration,
                   DecodeLeaseDuration(request.has_lease_duration(), request.lease_duration(), limits));
  return decoded;
}

absl::StatusOr<TaskRegistry::Filter> DecodeFilter(const v1::ListTasksRequest& request) {
  TaskRegistry::Filter filter;
  if (request.state() != v1::TASK_STATE_UNSPECIFIED) {
    for (size_t i = 0; i < kNumTaskStates; ++i) {
      if (EncodeState(static_cast<TaskState>(i)) == request.state()) filter.state = static_cast<TaskState>(i);
    }
    if (!filter.state.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("state ", static_cast<int>(request.state()), " is unknown here"));
    }
  }
  if (!request.round().empty()) {
    ASSIGN_OR_RETURN(filter.round, ParseRoundName(request.round()));
  }
  return filter;
}

absl::Status CheckTaskBytes(uint64_t bytes, absl::string_view what, const Limits& limits) {
  if (limits.max_task_bytes == 0 || bytes <= limits.max_task_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " has ", bytes, " bytes, beyond the server's max_task_bytes ", limits.max_task_bytes));
}

void EncodeTask(const TaskSnapshot& task, TaskParts parts, v1::Task* wire) {
  const TaskRecord& record = *task.record;
  const TaskStateRecord& state = task.state;
  wire->set_name(TaskName(record.id));
  EncodeSpec(record.spec, parts == TaskParts::kAll, wire->mutable_spec());
  wire->set_owner(record.owner);
  wire->set_state(EncodeState(state.state));
  wire->set_state_reason(state.reason);
  wire->set_attempts(state.attempts);
  if (!state.leases.empty()) {
    v1::Lease* const lease = wire->mutable_lease();
    lease->set_client_id(state.leases.back().client_id);
    lease->set_lease_id(state.leases.back().lease_id);
    if (state.lease_expire_time != absl::InfinitePast()) {
      EncodeTime(state.lease_expire_time, lease->mutable_expire_time());
    }
    EncodeDuration(task.lease_remaining, lease->mutable_remaining());
  }
  wire->set_submission_id(state.submission_id);
  if (parts != TaskParts::kWithoutPayloadAndResult) wire->set_result(state.result);
  EncodeTime(record.create_time, wire->mutable_create_time());
  if (HasEnded(state.state)) {
    EncodeTime(state.end_time, wire->mutable_end_time());
    EncodeTime(task.expire_time, wire->mutable_expire_time());
  }
}

}  // namespace sparseagg::service
