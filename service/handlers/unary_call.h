// One call with one request and one response, on whatever transport.
#ifndef SPARSEAGG_SERVICE_HANDLERS_UNARY_CALL_H_
#define SPARSEAGG_SERVICE_HANDLERS_UNARY_CALL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "service/admission/in_flight_memory.h"
#include "service/admission/memory_shares.h"
#include "service/auth/authorize.h"
#include "service/handlers/caller.h"

namespace google::protobuf {
class Duration;
}

namespace sparseagg::service {

class Registry;

// A unary call, from the parsed transport to the method and back. A transport derives from it.
//
// Shared by the transport, until the response is sent, and by every task of the method. Order of calls:
//
//   (methods.*handler)(call);        // the transport, for a caller that Caller::Admit has accepted
//   call->ReserveForCall(bytes);     // the method, if the response may be large; may finish the call
//   call->ReserveAndAnswer(…);       // the method; finishes the call
//   call->Finish(status);            // the method, in place of ReserveAndAnswer; exactly once in all, on any thread
//   call->Cancel();                  // the transport, if the peer has gone; at any time after the method was called
//
// The request is serialized, because the methods bound the memory of the parsed message before they parse it
// (codec/parse.h).
class UnaryCall : public std::enable_shared_from_this<UnaryCall> {
 public:
  using Wait = InFlightMemory::Wait;

  explicit UnaryCall(ApiContext* context) : context_(*context) {}
  virtual ~UnaryCall() = default;

  virtual const Caller& caller() const = 0;
  // The serialized request.
  virtual const absl::Cord& request() const = 0;
  // Whether the thread that calls the method may block, and so does the work itself.
  virtual bool MayBlock() const { return false; }
  // Where the method puts the serialized response.
  virtual std::string* response() = 0;

  // Reserves in-flight memory that the call needs besides its response, until the call is over.
  // Returns: false for lack of memory, or of permits of the tenant; the call is then finished with RESOURCE_EXHAUSTED
  // and a suggested retry delay.
  bool ReserveForCall(uint64_t bytes);

  // Reserves in-flight memory for a response of up to `bytes`, runs `answer`, and finishes the call with the status
  // that `answer` returns. `answer` runs before the return or on the worker pool, but not at all if the peer has gone:
  // it would not learn of a change that `answer` made, such as a new round. A small response needs no reservation.
  // Errors: RESOURCE_EXHAUSTED with a suggested retry delay, if memory is short for longer than `wait` allows.
  void ReserveAndAnswer(uint64_t bytes, Wait wait, std::function<absl::Status()> answer);

  // Sends the response, or the error. From now on the peer has to read in time: the memory of ReserveForCall is
  // reclaimed from a slow peer.
  void Finish(const absl::Status& status);

  // Sets what stops the method's wait. `stop` returns true if the method will not finish the call any more.
  // Requires: the method has not returned yet.
  void StopWith(std::function<bool()> stop) { stop_ = std::move(stop); }
  // Whether the call is a long poll, which waits for an event by others. Requires: as Cancel.
  bool IsLongPoll() const { return static_cast<bool>(stop_); }
  // The peer has gone: stops the method if it waits. Finishes the call, now or when the method ends.
  // Requires: the method was called and has returned.
  void Cancel();
  // Whether Cancel was called: work that nobody will read may stop. Finish is still due.
  bool is_cancelled() const { return is_cancelled_; }

  // Whether a response is part of the memory that any call takes.
  static bool IsSmall(uint64_t bytes) { return bytes <= (16 << 10); }

 private:
  // Sends the response or the error to the peer. Called once.
  virtual void Send(const absl::Status& status) = 0;
  // Returns: a function that ends the call of a peer that does not read; other calls need its memory. The function may
  // run on any thread, again and again, and after the call.
  virtual std::function<void()> ReclaimFunction() = 0;
  // Returns: the memory of a response of `bytes` on its way out.
  virtual uint64_t ResponseMemory(uint64_t bytes) const { return PageInFlightBytes(bytes); }

  void Answer(const std::function<absl::Status()>& answer);

  ApiContext& context_;
  Transfer transfer_;
  InFlightReservation response_reservation_;
  std::function<bool()> stop_;
  std::atomic<bool> is_cancelled_ = false;
  std::atomic<uint64_t> ticket_ = 0;  // of InFlightMemory, while the call waits for the reservation
};

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
// Outlive all calls. Borrow the context. Thread-safe.
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

  explicit Methods(ApiContext* context) : context_(*context) {}

  // Runs `work` on the worker pool, and finishes the call with the status that it returns. `work` does not run if the
  // peer has gone while the call waited for a thread.
  void OnPool(const Call& call, Work work);
  // The same before the return, for work that is short.
  static void AtOnce(UnaryCall& call, const Work& work);

  // As OnPool, for calls whose response may be large: runs `plan`, reserves in-flight memory and then runs the planned
  // answer. `plan` must not change anything: without memory the call is refused, and its client tries again.
  void AnswerOnPool(const Call& call, Plan plan);
  // Something that a long poll waits for: the end of a round, the next version of a model. The functions own it.
  struct Awaited {
    std::function<uint64_t(absl::Duration, std::function<void()>)> wait;  // Round::Wait
    std::function<bool(uint64_t)> stop;                                   // Round::StopWaiting
    std::function<void()> release;                                        // Round::ReleaseWaiters
    std::function<bool()> has_come;
  };
  // Returns: the requested timeout of a long poll, at most max_wait; max_wait if none is set. Errors: of
  // DecodeDuration.
  absl::StatusOr<absl::Duration> WaitTimeout(bool is_set, const google::protobuf::Duration& wanted) const;
  // Answers as soon as it has come, or after the timeout. `most_bytes`: of the answer, asked at that time.
  // UNAVAILABLE: the server shuts down (`rounds` drains) before it has come.
  void AnswerAfter(const Call& call, const Registry& rounds, Awaited awaited, absl::Duration timeout,
                   std::function<uint64_t()> most_bytes, std::function<absl::Status()> answer);
  // The same on another pool.
  static void AnswerOn(WorkerPool& pool, const Call& call, Plan plan);
  static void AnswerAtOnce(UnaryCall& call, const Plan& plan);

  ApiContext& context_;

 private:
  // `held_bytes`: memory that `planned` uses while it waits for the reservation.
  static void RunPlanned(UnaryCall& call, uint64_t held_bytes, absl::StatusOr<PlannedAnswer> planned);
};

// ListSize: how many entries a page of a list has.
inline constexpr int kMaxListSize = 1000;

// `page_size`: of the request; 0: `default_size`. Errors: INVALID_ARGUMENT: it is negative.
inline absl::StatusOr<int> ListSize(int page_size, int default_size = 100) {
  if (page_size < 0) return absl::InvalidArgumentError(absl::StrCat("page_size ", page_size, " is negative"));
  return page_size == 0 ? default_size : std::min(page_size, kMaxListSize);
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_UNARY_CALL_H_
