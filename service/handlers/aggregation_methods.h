// The unary methods of sparseagg.v1.Aggregation, whatever the transport.
#ifndef SPARSEAGG_SERVICE_HANDLERS_AGGREGATION_METHODS_H_
#define SPARSEAGG_SERVICE_HANDLERS_AGGREGATION_METHODS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/handlers/caller.h"
#include "service/handlers/unary_call.h"
#include "service/rounds/registry.h"
#include "service/rounds/round.h"
#include "service/streams/stream_registry.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

// The methods decode the request, call the registry or a round, and encode the response. Outlive all calls. Borrow the
// context and the registries. Thread-safe.
class AggregationMethods : public Methods {
 public:
  AggregationMethods(ApiContext* context, Registry* registry, StreamRegistry* streams)
      : Methods(context), registry_(*registry), streams_(*streams) {}

  // Returns: all unary methods but those below.
  std::vector<MethodEntry> Entries();

  // A call whose request is so large that memory is reserved before it is received. Caller and response live until
  // `done` is called.
  struct LargeCall {
    const Caller& caller;
    absl::Cord message;
    absl::Duration read_time;    // how long the read took
    absl::Duration received_at;  // when the read ended: Clock::Monotonic
    std::string* response;
    std::function<bool()> is_cancelled;             // whether the peer has gone, which ends the work
    std::function<void(const absl::Status&)> done;  // ends the call
  };
  // Whether a method has such requests.
  static bool IsLarge(Method method) {
    return method == Method::kPutChunk || method == Method::kSubmitBatch || method == Method::kPutResultRange;
  }
  // Runs such a method, which frees the message as soon as the round has its content, and calls `done` once: before the
  // return, or later on the worker pool. Call it on the worker pool.
  void RunLarge(Method method, LargeCall call) const;

  // Finds a round of the caller's tenant by its resource name, "rounds/{id}".
  // Errors: INVALID_ARGUMENT for another form of name, NOT_FOUND.
  absl::StatusOr<std::shared_ptr<Round>> FindRound(const Caller& caller, absl::string_view name) const;
  // The same for a call about one client's submission. `client_id`: as of Caller::ResolveClientId.
  // Errors: also FAILED_PRECONDITION (HomeElsewhere): another server of the round's cluster is the client's home.
  absl::StatusOr<std::shared_ptr<Round>> FindRoundOf(absl::string_view client_id, const Caller& caller,
                                                     absl::string_view name) const;
  // StreamRegistry::FindIntake, and the check of FindRoundOf.
  absl::StatusOr<std::shared_ptr<Intake>> FindIntakeOf(absl::string_view client_id, const Caller& caller,
                                                       absl::string_view name) const;
  // Encodes the spec and the present figures of a round.
  // `caller`: one of the role client sees no other client's refusals.
  void Encode(const Round& round, const Identity& caller, v1::Round* wire) const;
  // Returns: whether the caller must not see the number of submissions of the round, and fields that reveal it.
  static bool HidesCounts(const Round& round, const Identity& caller);

 private:
  // rounds.cc
  void GetServerInfo(const Call& call);
  void CreateBackup(const Call& call);
  void CreateRound(const Call& call);
  void GetRound(const Call& call);
  void ListRounds(const Call& call);
  void SealRound(const Call& call);
  void CloseRound(const Call& call);
  void CancelRound(const Call& call);
  void DeleteRound(const Call& call);
  // wait.cc: long polls. No thread waits meanwhile.
  void WaitRound(const Call& call);
  static Awaited AwaitedEnd(const std::shared_ptr<Round>& round);
  // uploads.cc
  absl::Status PutChunk(LargeCall& call) const;
  void CommitSubmission(const Call& call);
  void GetUploadStatus(const Call& call);
  // batches.cc, with RunLarge: a batch runs in turns, between which the pool has time for others
  struct Batch;
  absl::Status BeginBatch(Batch& batch) const;
  // Submits until the turn is over. Returns: whether the batch has ended. Errors: those of the batch as a whole.
  absl::StatusOr<bool> RunTurn(Batch& batch) const;
  void RunTurns(const std::shared_ptr<Batch>& batch) const;
  // submissions.cc
  void ListSubmissions(const Call& call);
  void InspectRound(const Call& call);
  void WithdrawSubmission(const Call& call);
  // results.cc
  void GetResult(const Call& call);
  absl::Status PutResultRange(LargeCall& call) const;
  void GetResultRange(const Call& call);
  // certificates.cc
  void GetCertificate(const Call& call);
  void GetReceipt(const Call& call);
  void ExportRound(const Call& call);

  // streams.cc
  void CreateStream(const Call& call);
  void GetStream(const Call& call);
  void ListStreams(const Call& call);
  void CutStream(const Call& call);
  void DeleteStream(const Call& call);
  void WatchVersions(const Call& call);

  // Errors: INVALID_ARGUMENT for another form of name than "streams/{id}", NOT_FOUND.
  absl::StatusOr<std::shared_ptr<Stream>> FindStream(const Caller& caller, absl::string_view name) const;
  // Encodes the spec and the present figures of a stream.
  static void Encode(const Stream& stream, const Identity& caller, v1::Stream* wire);
  // Errors: FAILED_PRECONDITION: the round is a version of a stream, and cannot be `verb` ("closed") by itself.
  static absl::Status CheckNotOfStream(const Round& round, absl::string_view verb);

  // Answers a call about one round: parses the request, finds the round, runs `act` and responds with the round.
  // `changes`: `act` changes the round, and waits for the disk if there is a store.
  template <typename Request>
  void AnswerWithRound(const Call& call, bool changes,
                       std::function<absl::Status(const Caller&, const Request&, Round&)> act);
  // Answers a CloseRound with a list of clients, or with their weights.
  void CloseWithList(const Call& call);
  // Serializes a page of rounds: as many as fit `max_bytes` and a result page, and at least one.
  absl::Status RespondWithList(UnaryCall& call, int size, const std::string& token, uint64_t max_bytes) const;
  // Serializes what Encode makes, as the response of a call.
  absl::Status Respond(const Round& round, UnaryCall& call) const;
  // Returns: about the most bytes of that response.
  static uint64_t MostBytesOf(const Round& round);

  Registry& registry_;
  StreamRegistry& streams_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_AGGREGATION_METHODS_H_
