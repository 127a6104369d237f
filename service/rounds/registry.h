// The rounds of a server, by id.
#ifndef SPARSEAGG_SERVICE_ROUNDS_REGISTRY_H_
#define SPARSEAGG_SERVICE_ROUNDS_REGISTRY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/rounds/intake.h"
#include "service/rounds/round.h"
#include "service/rounds/round_services.h"

namespace sparseagg::service {

// Returns: the prefix and 16 random hex digits: an id that nothing else has, in this run of the server or in another.
std::string RandomId(absl::string_view prefix);

// All rounds of a server but those of one-shot calls. Each tenant has names of its own: a caller finds no round of
// another tenant, and cannot learn from an error whether there is one. A round that has ended leaves by itself after
// its result_ttl.
//
//   Registry registry(context.ForRounds());
//   ASSIGN_OR_RETURN(std::shared_ptr<Round> round, registry.Create(std::move(config)));
//   ASSIGN_OR_RETURN(round, registry.Find("tenant", "id"));
//   registry.Drain();  // before the server shuts down
//
// Owned by Server. Thread-safe.
class Registry {
 public:
  explicit Registry(const RoundServices& services);
  ~Registry();

  // Opens a round of config.tenant with the id config.id, or one with a random id if config.id is empty.
  // Returns: the existing round, if its id and spec are the same.
  // Errors: ALREADY_EXISTS: a round with this id has another spec. UNAVAILABLE: the server is shutting down. Otherwise
  // as Round::Open.
  absl::StatusOr<std::shared_ptr<Round>> Create(RoundConfig config);
  // Opens the round of a one-shot call, which cannot be found or listed.
  // Errors: UNAVAILABLE: the server is shutting down. Otherwise as Round::Open.
  absl::StatusOr<std::shared_ptr<Round>> CreatePrivate(RoundConfig config);
  // Opens a round of an earlier run of the server again, and lists it. `number`: its number in the store. The caller
  // then restores its content and calls StartDeadline. Errors: as Round::Open.
  absl::StatusOr<std::shared_ptr<Round>> Restore(RoundConfig config, uint64_t number, absl::Time create_time);

  // Lists the intake of a stream under the id of its config, which rounds and streams share. `prepare`: completes the
  // stream; `store`: writes it to the store as this number. Both run before anybody finds the intake; an error of one
  // is returned, and nothing is listed. Errors: ALREADY_EXISTS: a round has the id, or one that is for versions of the
  // stream. UNAVAILABLE: as of Create.
  absl::Status AddIntake(std::shared_ptr<Intake> intake, absl::FunctionRef<absl::Status()> prepare,
                         absl::FunctionRef<absl::Status(uint64_t)> store);
  // Lists an intake of an earlier run.
  void RestoreIntake(std::shared_ptr<Intake> intake, uint64_t number);
  // Without effect on other intakes than those of streams.
  void RemoveIntake(absl::string_view tenant, absl::string_view id);
  // Returns: the intake of a round or a stream. Errors: NOT_FOUND.
  absl::StatusOr<std::shared_ptr<Intake>> FindIntake(absl::string_view tenant, absl::string_view id) const;

  // Returns: a number in the store that no round, stream or model has had.
  uint64_t TakeNumber();
  // Makes TakeNumber return larger numbers, since an earlier run has used this one.
  void ReserveNumber(uint64_t number);

  // Errors: NOT_FOUND: the tenant has no such round, whatever others have.
  absl::StatusOr<std::shared_ptr<Round>> Find(absl::string_view tenant, absl::string_view id) const;

  struct Entry {
    std::string token;  // of a page that starts with this round
    std::shared_ptr<Round> round;
  };
  struct Page {
    std::vector<Entry> entries;   // in order of creation
    std::string next_page_token;  // empty on the last page
  };
  // Returns: up to `page_size` rounds of the tenant from the token on; from the first round on if the token is empty.
  // Errors: INVALID_ARGUMENT: a malformed token.
  absl::StatusOr<Page> List(absl::string_view tenant, size_t page_size, absl::string_view page_token) const;

  // Returns: the number of rounds in each RoundState.
  std::array<uint64_t, kNumRoundStates> CountByState() const;

  // Removes the round, also from the store, and cancels it if it has not ended. Errors: NOT_FOUND. Of Store.
  // Returns: the round, whose WhenDurable tells when its removal is durable.
  absl::StatusOr<std::shared_ptr<Round>> Delete(absl::string_view tenant, absl::string_view id);

  // Refuses new rounds from now on, and releases all calls that wait for the end of a round.
  void Drain();
  bool draining() const;

 private:
  struct Table;

  // Returns: the task that removes the round when it expires.
  std::function<void()> ExpiryOf(const std::string& tenant, uint64_t sequence) const;
  static void RemoveExpired(Table& table, const std::string& tenant, uint64_t sequence);

  const RoundServices services_;
  const std::shared_ptr<Table> table_;  // expiry tasks have weak pointers to it
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_REGISTRY_H_
