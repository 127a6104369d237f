#include "service/streams/stream_registry.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"

namespace sparseagg::service {

absl::StatusOr<std::shared_ptr<Stream>> StreamRegistry::Create(StreamConfig config) {
  if (config.staleness_weights.empty()) config.staleness_weights = {1.0};
  if (config.round.id.empty()) config.round.id = RandomId("s-");
  RETURN_IF_ERROR(config.Check());
  MutexLock create(&create_mu_);
  if (auto found = Find(config.round.tenant, config.round.id); found.ok()) {
    if ((*found)->config().wire_spec == config.wire_spec) return found;
    return absl::AlreadyExistsError(absl::StrCat("stream '", config.round.id, "' exists already, with another spec"));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Stream> stream, Stream::Create(std::move(config), &registry_, services_));
  Add(stream->config().round.tenant, stream->config().round.id, stream);
  Log(LogLevel::kInfo, "stream_created",
      {{"stream", stream->config().round.LogName()}, {"buffer", stream->config().buffer}});
  return stream;
}

absl::Status StreamRegistry::Restore(std::shared_ptr<Stream> stream, const Stream::Stored& stored) {
  RETURN_IF_ERROR(stream->RestoreVersions(stored));
  const RoundConfig& round = stream->config().round;
  Add(round.tenant, round.id, std::move(stream));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Intake>> StreamRegistry::FindIntake(absl::string_view tenant,
                                                                   absl::string_view name) const {
  if (absl::StartsWith(name, kStreamPrefix)) {
    ASSIGN_OR_RETURN(const std::string id, ParseStreamName(name));
    ASSIGN_OR_RETURN(const std::shared_ptr<Stream> stream, Find(tenant, id));
    return std::shared_ptr<Intake>(stream, &stream->intake());
  }
  ASSIGN_OR_RETURN(const std::string id, ParseRoundName(name));
  ASSIGN_OR_RETURN(std::shared_ptr<Intake> intake, registry_.FindIntake(tenant, id));
  const StreamPart* const stream = intake->config().stream.get();
  if (stream == nullptr) return intake;
  return absl::FailedPreconditionError(
      absl::StrCat(name, " is a version of a stream; submissions go to ", StreamName(stream->id)));
}

absl::StatusOr<std::shared_ptr<Stream>> StreamRegistry::Delete(absl::string_view tenant, absl::string_view id) {
  ASSIGN_OR_RETURN(std::shared_ptr<Stream> stream, Find(tenant, id));
  RETURN_IF_ERROR(stream->Delete());
  Remove(std::string(tenant), std::string(id), stream);
  Log(LogLevel::kInfo, "stream_deleted", {{"stream", stream->config().round.LogName()}});
  return stream;
}

}  // namespace sparseagg::service
