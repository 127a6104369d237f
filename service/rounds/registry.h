// The rounds of a server, by name.
#ifndef SPARSEAGG_SERVICE_ROUNDS_REGISTRY_H_
#define SPARSEAGG_SERVICE_ROUNDS_REGISTRY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/rounds/round.h"
#include "service/server_context.h"  // allow(inner-include): to be narrowed

namespace sparseagg::service {

// Thread-safe. Ended rounds leave by themselves when their result_ttl has passed.
class Registry {
 public:
  explicit Registry(ServerContext* server);  // borrowed
  ~Registry();

  // Opens the round, or finds the standing one of the same id and spec. An empty id is replaced by one of our choice.
  // ALREADY_EXISTS: the id is taken by a round with another spec. UNAVAILABLE: the server is shutting down. Otherwise
  // as Round::Open.
  absl::StatusOr<std::shared_ptr<Round>> Create(RoundConfig config);
  // A round of one call: never listed. UNAVAILABLE and otherwise as Create.
  absl::StatusOr<std::shared_ptr<Round>> CreatePrivate(RoundConfig config);

  absl::StatusOr<std::shared_ptr<Round>> Find(absl::string_view id) const;  // NOT_FOUND

  struct Entry {
    std::string token;  // a page that starts with this round has it
    std::shared_ptr<Round> round;
  };
  struct Page {
    std::vector<Entry> entries;   // in order of creation
    std::string next_page_token;  // empty on the last page
  };
  // INVALID_ARGUMENT: a token that is not ours.
  absl::StatusOr<Page> List(size_t page_size, absl::string_view page_token) const;

  // How many rounds are in each state, by its number.
  std::array<uint64_t, kNumRoundStates> CountByState() const;

  // Forgets the round; cancels it first if it has not ended. NOT_FOUND.
  absl::Status Delete(absl::string_view id);

  // No new rounds from here on, and nobody waits for the end of one any longer.
  void Drain();
  bool draining() const;

 private:
  struct Table;

  static void Remove(Table& table, uint64_t sequence);

  ServerContext& server_;
  const std::shared_ptr<Table> table_;  // shared with the expiry tasks, weakly
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_REGISTRY_H_
