// What the unary methods of all services have in common.
#ifndef SPARSEAGG_SERVICE_HANDLERS_METHODS_H_
#define SPARSEAGG_SERVICE_HANDLERS_METHODS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/auth/authorize.h"
#include "service/handlers/unary_call.h"
#include "service/server_context.h"

namespace sparseagg::service {

// Carries out a call of one method, and finishes it.
using MethodHandler = std::function<void(const std::shared_ptr<UnaryCall>&)>;

// A method and its handler.
struct MethodEntry {
  Method method;
  MethodHandler handler;
};

// The base of the methods of a service: it runs their work.
//
// A transport calls a handler on one of its own threads, where it must not block: a handler answers at once only if the
// work is short, otherwise it posts the work to the worker pool. It runs only for callers that may call the method
// (Caller::Admit); the transport sees to that.
//
// Owned by the server, which outlives all calls. Borrows the server context. Thread-safe.
class Methods {
 public:
  // Errors: RESOURCE_EXHAUSTED if a message of `bytes` exceeds max_message_bytes.
  absl::Status CheckMessageSize(uint64_t bytes) const;
  // Returns: the size of a result page for a request of `asked` bytes (0: the default), within max_page_bytes.
  uint64_t PageBytes(uint64_t asked) const;

 protected:
  using Call = std::shared_ptr<UnaryCall>;
  using Work = std::function<absl::Status(UnaryCall&)>;

  // A checked call whose response needs a reservation of in-flight memory.
  struct PlannedAnswer {
    uint64_t max_bytes;                    // of the response
    std::function<absl::Status()> answer;  // does the work of the call, and serializes the response
  };
  using Plan = std::function<absl::StatusOr<PlannedAnswer>(UnaryCall&)>;

  explicit Methods(ServerContext* server) : server_(*server) {}

  // Runs `work` on the worker pool, and finishes the call with the status that it returns. `work` does not run if the
  // peer has gone while the call waited for a thread.
  void OnPool(const Call& call, Work work);
  // The same before the return, for work that is short.
  static void AtOnce(UnaryCall& call, const Work& work);

  // As OnPool, for calls whose response may be large: runs `plan`, reserves in-flight memory and then runs the planned
  // answer. `plan` must not change anything: without memory the call is refused, and its client tries again.
  void AnswerOnPool(const Call& call, Plan plan);
  // The same on another pool.
  static void AnswerOn(WorkerPool& pool, const Call& call, Plan plan);
  static void AnswerAtOnce(UnaryCall& call, const Plan& plan);

  ServerContext& server_;

 private:
  // `held_bytes`: memory that `planned` uses while it waits for the reservation.
  static void RunPlanned(UnaryCall& call, uint64_t held_bytes, absl::StatusOr<PlannedAnswer> planned);
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_METHODS_H_
