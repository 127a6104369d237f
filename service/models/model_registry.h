// The models of a server, by id.
#ifndef SPARSEAGG_SERVICE_MODELS_MODEL_REGISTRY_H_
#define SPARSEAGG_SERVICE_MODELS_MODEL_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/name_table.h"
#include "service/models/served_model.h"
#include "service/rounds/registry.h"
#include "service/streams/stream_registry.h"

namespace sparseagg::service {

// All models of a server. Ids are apart from those of rounds and streams. A model is listed when it is complete: with
// version 0 in the store, and following its stream.
//
//   ModelRegistry models(&registry, &streams, context.ForRounds());
//   ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> model, models.Create(std::move(config)));
//
// Owned by Server. Borrows the registries. Thread-safe.
class ModelRegistry : public NameTable<ServedModel> {
 public:
  ModelRegistry(Registry* rounds, StreamRegistry* streams, const RoundServices& services)
      : NameTable("model"), rounds_(*rounds), streams_(*streams), services_(services) {}

  // Returns: the existing model, if its id and wire_spec are the same, whatever the initial round is; then stream and
  // initial round need not exist any more. Errors: of v1::Models.CreateModel. UNAVAILABLE: the server is shutting down.
  // Blocks: while version 0 is written and synced.
  absl::StatusOr<std::shared_ptr<ServedModel>> Create(ModelConfig config);
  // Reopens a model of an earlier run, before its stream's rounds are restored: so that it holds those which it needs.
  // Errors: of ServedModel::Restore.
  absl::Status Restore(ModelConfig config, uint64_t number, absl::Time create_time);
  // Returns: the first version of the stream that the tenant's models have not applied; 0: no model follows it.
  uint64_t NeededFrom(absl::string_view tenant, absl::string_view stream) const;
  // Makes the restored models follow their streams. A model whose stream is gone, or lacks a version that the model
  // needs, stays as it is; waiting_reason and a warning in the log say why.
  void FollowAll();
  // Errors: NOT_FOUND. Of Store. Returns: the model, whose journal tells when its removal is durable.
  absl::StatusOr<std::shared_ptr<ServedModel>> Delete(absl::string_view tenant, absl::string_view id);
  // Releases all calls that wait for a version. Registry::Drain comes first, and refuses new models.
  void Drain();

 private:
  Registry& rounds_;
  StreamRegistry& streams_;
  const RoundServices services_;
  Mutex create_mu_;  // held while a model is created, which may take long
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_MODELS_MODEL_REGISTRY_H_
