// The methods of sparseagg.v1.Models, whatever the transport.
#ifndef SPARSEAGG_SERVICE_HANDLERS_MODEL_METHODS_H_
#define SPARSEAGG_SERVICE_HANDLERS_MODEL_METHODS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/handlers/unary_call.h"
#include "service/models/model_registry.h"
#include "service/rounds/registry.h"

namespace sparseagg::service {

// Of a server, and of ":memory:" in the Python extension. All methods are unary, and run on the worker pool. Outlive
// all calls. Borrow the context and the registries. Thread-safe.
class ModelMethods : public Methods {
 public:
  ModelMethods(ApiContext* context, Registry* rounds, ModelRegistry* models)
      : Methods(context), rounds_(*rounds), models_(*models) {}

  // Returns: all methods.
  std::vector<MethodEntry> Entries();

 private:
  void CreateModel(const Call& call);
  // With after_version a long poll (Methods::AnswerAfter); no thread waits meanwhile.
  void GetModel(const Call& call);
  void ListModels(const Call& call);
  // Reserves memory for the whole page before it reads, as GetResult. Logs no keys.
  void ReadRows(const Call& call);
  void ApplyRound(const Call& call);
  void DeleteModel(const Call& call);

  struct PlannedRead;
  // Errors: of v1::Models.ReadRows that do not depend on the model's versions.
  absl::StatusOr<std::shared_ptr<const PlannedRead>> PlanRead(const UnaryCall& call) const;
  // Sets version and begin of a read by the token of the page before: "tensor-begin-end-since-version-key".
  static absl::Status TakePageToken(absl::string_view token, PlannedRead& read);
  // Reads, and serializes the page.
  absl::Status Read(const PlannedRead& read, std::string* response) const;

  // Errors: INVALID_ARGUMENT for another form of name than "models/{id}", NOT_FOUND.
  absl::StatusOr<std::shared_ptr<ServedModel>> FindModel(const Caller& caller, absl::string_view name) const;

  Registry& rounds_;
  ModelRegistry& models_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_MODEL_METHODS_H_
