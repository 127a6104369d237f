#include "service/streams/stream_registry.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"

namespace sparseagg::service {
namespace {

absl::Status NoStreamError(absl::string_view id) { return absl::NotFoundError(absl::StrCat("no stream '", id, "'")); }

}  // namespace

absl::StatusOr<std::shared_ptr<Stream>> StreamRegistry::Create(StreamConfig config) {
  if (config.staleness_weights.empty()) config.staleness_weights = {1.0};
  if (config.round.id.empty()) config.round.id = RandomId("s-");
  RETURN_IF_ERROR(config.Check());
  Name name(config.round.tenant, config.round.id);
  MutexLock create(&create_mu_);
  if (auto found = Find(name.first, name.second); found.ok()) {
    if ((*found)->config().wire_spec == config.wire_spec) return found;
    return absl::AlreadyExistsError(absl::StrCat("stream '", name.second, "' exists already, with another spec"));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Stream> stream, Stream::Create(std::move(config), &registry_, services_));
  {
    MutexLock lock(&mu_);
    streams_.emplace(std::move(name), stream);
  }
  Log(LogLevel::kInfo, "stream_created",
      {{"stream", stream->config().round.LogName()}, {"buffer", stream->config().buffer}});
  return stream;
}

absl::Status StreamRegistry::Restore(std::shared_ptr<Stream> stream, const Stream::Stored& stored) {
  RETURN_IF_ERROR(stream->RestoreVersions(stored));
  MutexLock lock(&mu_);
  Name name(stream->config().round.tenant, stream->config().round.id);
  streams_.emplace(std::move(name), std::move(stream));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Stream>> StreamRegistry::Find(absl::string_view tenant, absl::string_view id) const {
  MutexLock lock(&mu_);
  const auto found = streams_.find({std::string(tenant), std::string(id)});
  if (found == streams_.end()) return NoStreamError(id);
  return found->second;
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

StreamRegistry::Page StreamRegistry::List(absl::string_view tenant, size_t size, const std::string& token) const {
  Page page;
  MutexLock lock(&mu_);
  for (auto it = streams_.upper_bound({std::string(tenant), token}); it != streams_.end(); ++it) {
    if (it->first.first != tenant) break;
    if (page.first.size() == size) {
      page.second = page.first.back()->config().round.id;
      break;
    }
    page.first.push_back(it->second);
  }
  return page;
}

std::vector<std::shared_ptr<Stream>> StreamRegistry::All() const {
  std::vector<std::shared_ptr<Stream>> all;
  MutexLock lock(&mu_);
  all.reserve(streams_.size());
  for (const auto& [name, stream] : streams_) all.push_back(stream);
  return all;
}

absl::StatusOr<std::shared_ptr<Stream>> StreamRegistry::Delete(absl::string_view tenant, absl::string_view id) {
  ASSIGN_OR_RETURN(std::shared_ptr<Stream> stream, Find(tenant, id));
  RETURN_IF_ERROR(stream->Delete());
  {
    MutexLock lock(&mu_);
    const auto found = streams_.find({std::string(tenant), std::string(id)});
    if (found != streams_.end() && found->second == stream) streams_.erase(found);
  }
  Log(LogLevel::kInfo, "stream_deleted", {{"stream", stream->config().round.LogName()}});
  return stream;
}

}  // namespace sparseagg::service
