#include "service/models/model_registry.h"

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"

namespace sparseagg::service {
namespace {

// Sets keep_versions by the stream, if there is one.
absl::Status ResolveKeepVersions(const Stream* stream, ModelSpec& spec) {
  if (stream == nullptr) return absl::OkStatus();
  const auto least = static_cast<uint32_t>(stream->config().staleness_weights.size() + 1);  // max_staleness + 2
  if (spec.keep_versions == 0) spec.keep_versions = least;
  if (spec.keep_versions >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("keep_versions ", spec.keep_versions, " is below ", least,
                                                 ", the max_staleness of the model's stream plus 2"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<ServedModel>> ModelRegistry::Create(ModelConfig config) {
  if (rounds_.draining()) return absl::UnavailableError("the server is shutting down and takes no new models");
  if (config.id.empty()) config.id = RandomId("m-");
  MutexLock create(&create_mu_);
  if (auto found = Find(config.tenant, config.id); found.ok()) {
    if ((*found)->config().wire_spec == config.wire_spec) return found;
    return absl::AlreadyExistsError(absl::StrCat("model '", config.id, "' exists already, with another spec"));
  }
  std::shared_ptr<Stream> stream;
  if (!config.stream.empty()) {
    ASSIGN_OR_RETURN(stream, streams_.Find(config.tenant, config.stream));
  }
  RETURN_IF_ERROR(ResolveKeepVersions(stream.get(), config.spec));
  RoundRows initial;
  if (!config.initial_round.empty()) {
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, rounds_.Find(config.tenant, config.initial_round));
    ASSIGN_OR_RETURN(initial, RowsOf(config.spec, *round, /*is_initial=*/true));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> model,
                   ServedModel::Create(std::move(config), services_, rounds_.TakeNumber(), initial.delta));
  if (stream != nullptr) {
    if (absl::Status followed = model->Follow(std::move(stream)); !followed.ok()) {
      model->Delete().IgnoreError();
      return followed;
    }
  }
  Add(model->config().tenant, model->config().id, model);
  return model;
}

absl::Status ModelRegistry::Restore(ModelConfig config, uint64_t number, absl::Time create_time) {
  rounds_.ReserveNumber(number);
  ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> model,
                   ServedModel::Restore(std::move(config), services_, number, create_time));
  Add(model->config().tenant, model->config().id, model);
  return absl::OkStatus();
}

uint64_t ModelRegistry::NeededFrom(absl::string_view tenant, absl::string_view stream) const {
  for (const std::shared_ptr<ServedModel>& model : All()) {
    const ModelConfig& config = model->config();
    if (config.tenant == tenant && config.stream == stream) return model->model().version() + 1;
  }
  return 0;
}

void ModelRegistry::FollowAll() {
  for (const std::shared_ptr<ServedModel>& model : All()) {
    const ModelConfig& config = model->config();
    if (config.stream.empty()) continue;
    absl::StatusOr<std::shared_ptr<Stream>> stream = streams_.Find(config.tenant, config.stream);
    const absl::Status followed = stream.ok() ? model->Follow(*std::move(stream)) : stream.status();
    if (!followed.ok()) model->StopFollowing(followed.message());
  }
}

absl::StatusOr<std::shared_ptr<ServedModel>> ModelRegistry::Delete(absl::string_view tenant, absl::string_view id) {
  ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> model, Find(tenant, id));
  RETURN_IF_ERROR(model->Delete());
  Remove(std::string(tenant), std::string(id), model);
  Log(LogLevel::kInfo, "model_deleted", {{"model", model->config().LogName()}});
  services_.pool.Post([model] {});  // freeing a large model takes time
  return model;
}

void ModelRegistry::Drain() {
  for (const std::shared_ptr<ServedModel>& model : All()) model->ReleaseWaiters();
}

}  // namespace sparseagg::service
