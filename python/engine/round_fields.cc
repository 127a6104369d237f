#include "python/engine/round_fields.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "host/base/content_hash.h"
#include "host/result.h"
#include "host/spec/spec.h"
#include "python/engine/outputs.h"
#include "service/base/round_stage.h"
#include "service/rounds/recent_refusals.h"
#include "service/rounds/round_name.h"
#include "service/rounds/round_snapshot.h"

namespace sparseagg::python {
namespace {

namespace py = pybind11;
using namespace py::literals;  // NOLINT(google-build-using-namespace): for "name"_a

py::dict Fields(absl::Duration duration) {
  const int64_t seconds = absl::IDivDuration(duration, absl::Seconds(1), &duration);
  return py::dict("seconds"_a = seconds, "nanos"_a = absl::ToInt64Nanoseconds(duration));
}

py::dict Fields(absl::Time time) { return Fields(time - absl::UnixEpoch()); }

py::dict Fields(const service::Refusal& refusal) {
  return py::dict("client_id"_a = refusal.client_id, "code"_a = absl::StatusCodeToString(refusal.code),
                  "reason"_a = refusal.reason, "time"_a = Fields(refusal.time));
}

py::dict Fields(const service::RoundTimeline& timeline) {
  py::list stages;
  for (const service::RoundStage stage : service::kAllStages) {
    const service::StageTime& time = timeline.stages[static_cast<size_t>(stage)];
    stages.append(py::dict("stage"_a = std::string(Name(stage)), "busy"_a = Fields(time.busy),
                           "wait"_a = Fields(time.wait), "bytes"_a = time.bytes));
  }
  return py::dict("finish"_a = Fields(timeline.finish), "open"_a = Fields(timeline.open), "stages"_a = stages,
                  "longest"_a = std::string(Name(LongestStage(timeline.stages))));
}

py::dict Fields(const TensorSpec& spec, const Result& result) {
  py::dict summary("name"_a = spec.name, "num_keys"_a = result.num_keys,
                   "layout"_a = result.layout == Layout::kDense ? "TENSOR_LAYOUT_DENSE" : "TENSOR_LAYOUT_SPARSE",
                   "dtype"_a = absl::StrCat("DTYPE_", absl::AsciiStrToUpper(Name(result.dtype))),
                   "row_width"_a = result.row_width, "num_rows"_a = result.num_rows, "has_values"_a = result.has_values,
                   "has_counts"_a = ReturnsCounts(spec), "has_weights"_a = spec.aggregation.return_weights,
                   "plan"_a = result.plan, "num_cut_keys"_a = result.num_cut_keys,
                   "has_moments"_a = spec.aggregation.return_moments);
  if (result.fixed_point_shift.has_value()) summary["fixed_point_shift"] = *result.fixed_point_shift;
  return summary;
}

py::list FieldsOf(const std::vector<service::Refusal>& refusals) {
  py::list out;
  for (const service::Refusal& refusal : refusals) out.append(Fields(refusal));
  return out;
}

}  // namespace

py::dict Fields(const service::Receipt& receipt) {
  py::dict fields("client_id"_a = receipt.client_id, "submission_id"_a = receipt.submission_id,
                  "num_tuples"_a = receipt.num_tuples, "num_bytes"_a = receipt.num_bytes);
  if (!receipt.stream.has_value()) return fields;
  const service::StreamPlace& place = *receipt.stream;
  fields["stream_commit"] =
      py::dict("version"_a = place.version, "position"_a = place.position, "base_version"_a = place.base_version,
               "staleness"_a = place.staleness(), "staleness_weight"_a = place.weight);
  return fields;
}

py::dict Fields(const service::ListedSubmission& submission) {
  py::dict fields = Fields(static_cast<const service::Receipt&>(submission));
  fields["content_hash"] = py::bytes(HashBytes(submission.hash));
  if (submission.weight.has_value()) fields["weight"] = *submission.weight;
  if (submission.client_weight.has_value()) fields["client_weight"] = *submission.client_weight;
  return fields;
}

py::dict Fields(const service::Round& round, absl::string_view engine) {
  const service::RoundSnapshot snapshot = round.Snapshot();
  const service::RoundConfig& config = round.config();
  py::list results;
  for (size_t t = 0; snapshot.results != nullptr && t < config.tensors.size(); ++t) {
    results.append(Fields(config.tensors[t], (*snapshot.results)[t]));
  }
  py::dict fields(
      "name"_a = config.id.empty() ? "" : service::RoundName(config.id), "spec"_a = py::bytes(config.wire_spec),
      "state"_a = absl::StrCat("ROUND_STATE_", service::Name(snapshot.state)), "state_reason"_a = snapshot.reason,
      "num_submissions"_a = snapshot.num_submissions, "num_tuples"_a = snapshot.num_tuples,
      "num_bytes"_a = snapshot.num_bytes, "num_refused"_a = snapshot.num_refused,
      "num_uploads"_a = snapshot.num_uploads, "recent_refusals"_a = FieldsOf(snapshot.recent_refusals),
      "create_time"_a = Fields(snapshot.create_time), "timeline"_a = Fields(snapshot.timeline),
      "engine"_a = std::string(engine), "results"_a = results);
  if (config.HasClip()) fields["clip"] = ToPython(snapshot.clip);
  if (config.HasPrivacy()) fields["release_id"] = py::bytes(config.release_id);
  if (IsClosed(snapshot.state)) fields["close_time"] = Fields(snapshot.close_time);
  if (!HasEnded(snapshot.state)) return fields;
  fields["end_time"] = Fields(snapshot.end_time);
  if (snapshot.expire_time != absl::InfiniteFuture()) fields["expire_time"] = Fields(snapshot.expire_time);
  return fields;
}

py::dict Fields(const service::StreamVersion& version) {
  const service::RoundSnapshot snapshot = version.round->Snapshot();
  return py::dict("version"_a = version.version, "round"_a = service::RoundName(version.round->config().id),
                  "state"_a = absl::StrCat("ROUND_STATE_", service::Name(snapshot.state)),
                  "state_reason"_a = snapshot.reason, "num_submissions"_a = snapshot.num_submissions,
                  "cause"_a = static_cast<int>(version.cause), "cut_time"_a = Fields(version.cut_time));
}

py::dict Fields(const service::Stream& stream, const service::StreamSnapshot& snapshot) {
  const service::RoundSnapshot intake = stream.intake().Snapshot();
  return py::dict("name"_a = service::StreamName(stream.config().round.id),
                  "spec"_a = py::bytes(stream.config().wire_spec), "version"_a = snapshot.version,
                  "num_buffered"_a = snapshot.num_buffered, "num_commits"_a = snapshot.num_commits,
                  "num_refused"_a = intake.num_refused, "num_uploads"_a = intake.num_uploads,
                  "oldest_version"_a = snapshot.oldest_version, "staleness_counts"_a = snapshot.staleness_counts,
                  "create_time"_a = Fields(intake.create_time), "recent_refusals"_a = FieldsOf(intake.recent_refusals));
}

}  // namespace sparseagg::python
