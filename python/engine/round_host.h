// RoundHost: the API's rounds in a process that is no server.
#ifndef SPARSEAGG_PYTHON_ENGINE_ROUND_HOST_H_
#define SPARSEAGG_PYTHON_ENGINE_ROUND_HOST_H_

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "python/engine/local_runtime.h"
#include "service/base/limits.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/api_context.h"
#include "service/handlers/model_methods.h"
#include "service/models/model_registry.h"
#include "service/rounds/registry.h"
#include "service/rounds/round.h"
#include "service/streams/stream_registry.h"

namespace sparseagg::python {

using service::Round;

// Limits on what a caller asks of its own process: none.
service::Limits NoLimits();

// A context, the registries, and the methods that a server calls for its clients. None of its threads uses Python, so
// that whoever holds the GIL may wait for them. Thread-safe.
class RoundHost {
 public:
  // The end of a call of Start, or of AwaitEnd.
  struct Ended {
    uint64_t number;
    absl::Status status;
    std::string response;  // serialised
  };

  using Done = std::function<void(const absl::Status&, std::string response)>;

  // `merges`: how many rounds merge at once; each merge uses all cores. 0: none ever does, for tests. `noise_key`: of
  // private rounds. `runtime`: whose engine merges; it is never destroyed.
  RoundHost(int merges, std::string noise_key, const LocalRuntime& runtime);
  RoundHost(const RoundHost&) = delete;
  RoundHost& operator=(const RoundHost&) = delete;
  ~RoundHost();

  service::Registry& registry() { return registry_; }
  service::StreamRegistry& streams() { return streams_; }
  service::ModelRegistry& models() { return models_; }
  const LocalRuntime& runtime() const { return runtime_; }
  absl::string_view engine_name() const { return runtime_.engine.name(); }
  uint64_t memory_bytes() const { return context_.budget.reserved(); }
  // A forked child has the memory of its parent's rounds but none of their threads, and leaves both alone.
  bool IsOfParent() const { return getpid() != pid_; }

  // Calls a unary method of v1.Aggregation or v1.Models. Returns: the serialised response. Errors: of the method.
  // UNIMPLEMENTED: it is not among those that a process has. Blocks: until the method has answered.
  absl::StatusOr<std::string> Call(absl::string_view method, std::string request);
  // Has NextEnded return the end of such a call.
  void Start(absl::string_view method, std::string request, uint64_t number);
  // Has NextEnded return `number` when the round has ended, or after `timeout`.
  void AwaitEnd(Round& round, absl::Duration timeout, uint64_t number) {
    round.Wait(timeout, [this, number] { Push({number, absl::OkStatus(), ""}); });
  }
  // Returns: calls and waits that are over; none after EndWaits. Blocks: until there is one.
  std::vector<Ended> NextEnded();
  void EndWaits();

 private:
  service::RoundServices Services();
  // Calls a method, which calls `done` once, on any thread. `may_block`: UnaryCall::MayBlock.
  void Begin(absl::string_view method, std::string request, bool may_block, Done done);
  void Push(Ended ended);

  const pid_t pid_ = getpid();
  const LocalRuntime& runtime_;
  Mutex mu_;
  CondVar changed_;
  std::vector<Ended> ended_ ABSL_GUARDED_BY(mu_);
  bool ends_waits_ ABSL_GUARDED_BY(mu_) = false;
  service::ApiContext context_;
  service::WorkerPool merges_;  // apart from the context's pool: a call does not wait for a merge
  service::Registry registry_;
  service::StreamRegistry streams_;
  service::ModelRegistry models_;
  service::AggregationMethods methods_;
  service::ModelMethods model_methods_;
  std::map<absl::string_view, service::MethodHandler> handlers_;  // by name
};

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_ROUND_HOST_H_
