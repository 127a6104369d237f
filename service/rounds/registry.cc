#include "service/rounds/registry.h"

#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"

namespace sparseagg::service {
namespace {

absl::Status Draining() { return absl::UnavailableError("the server is shutting down and takes no new rounds"); }

// Not to be guessed by accident, also not by the next run of the server.
std::string ChooseId() {
  std::random_device random;  // allow(randomness): ids of two runs must differ
  return absl::StrFormat("r-%08x%08x", random(), random());
}

}  // namespace

struct Registry::Table {
  std::mutex mu;
  // Guarded by mu.
  bool draining = false;
  uint64_t next_sequence = 1;
  std::map<uint64_t, std::shared_ptr<Round>> rounds;  // in order of creation
  absl::flat_hash_map<std::string, uint64_t> by_id;
};

Registry::Registry(ServerContext* server) : server_(*server), table_(std::make_shared<Table>()) {}

Registry::~Registry() = default;

absl::StatusOr<std::shared_ptr<Round>> Registry::Create(RoundConfig config) {
  uint64_t sequence;
  const auto standing = [&]() -> absl::StatusOr<std::shared_ptr<Round>> {
    const std::shared_ptr<Round>& round = table_->rounds.at(table_->by_id.at(config.id));
    if (round->config().wire_spec == config.wire_spec) return round;
    return absl::AlreadyExistsError(absl::StrCat("round '", config.id, "' exists already, with another spec"));
  };
  {
    std::lock_guard lock(table_->mu);
    if (table_->draining) return Draining();
    if (config.id.empty()) config.id = ChooseId();
    if (table_->by_id.contains(config.id)) return standing();
    sequence = table_->next_sequence++;
  }
  const auto on_expire = [weak = std::weak_ptr<Table>(table_), sequence, pool = &server_.pool] {
    const auto table = weak.lock();
    if (table != nullptr) pool->Post([table, sequence] { Remove(*table, sequence); });
  };
  ASSIGN_OR_RETURN(std::shared_ptr<Round> round, Round::Open(config, &server_, on_expire));
  {
    std::lock_guard lock(table_->mu);
    if (table_->draining) return Draining();
    if (table_->by_id.contains(config.id)) return standing();  // somebody was quicker
    table_->rounds.emplace(sequence, round);
    table_->by_id.emplace(config.id, sequence);
  }
  round->StartDeadline();  // not before: a round that had expired by then would stay for ever
  Log(LogLevel::kInfo, "round_created",
      {{"round", config.id},
       {"tensors", config.tensors.size()},
       {"min_submissions", config.min_submissions},
       {"max_submissions", config.max_submissions}});
  return round;
}

absl::StatusOr<std::shared_ptr<Round>> Registry::CreatePrivate(RoundConfig config) {
  {
    std::lock_guard lock(table_->mu);
    if (table_->draining) return Draining();
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Round> round, Round::Open(std::move(config), &server_, nullptr));
  round->StartDeadline();
  return round;
}

absl::StatusOr<std::shared_ptr<Round>> Registry::Find(absl::string_view id) const {
  std::lock_guard lock(table_->mu);
  const auto found = table_->by_id.find(id);
  if (found == table_->by_id.end()) return absl::NotFoundError(absl::StrCat("no round '", id, "'"));
  return table_->rounds.at(found->second);
}

absl::StatusOr<Registry::Page> Registry::List(size_t page_size, absl::string_view page_token) const {
  uint64_t first = 0;
  if (!page_token.empty() && !absl::SimpleAtoi(page_token, &first)) {
    return absl::InvalidArgumentError(absl::StrCat("page_token '", page_token, "' is none of ours"));
  }
  Page page;
  std::lock_guard lock(table_->mu);
  for (auto it = table_->rounds.lower_bound(first); it != table_->rounds.end(); ++it) {
    if (page.entries.size() == page_size) {
      page.next_page_token = absl::StrCat(it->first);
      break;
    }
    page.entries.push_back({absl::StrCat(it->first), it->second});
  }
  return page;
}

std::array<uint64_t, kNumRoundStates> Registry::CountByState() const {
  std::vector<std::shared_ptr<Round>> rounds;
  {
    std::lock_guard lock(table_->mu);
    for (const auto& [sequence, round] : table_->rounds) rounds.push_back(round);
  }
  std::array<uint64_t, kNumRoundStates> counts{};
  for (const auto& round : rounds) ++counts[static_cast<size_t>(round->state())];
  return counts;
}

absl::Status Registry::Delete(absl::string_view id) {
  std::shared_ptr<Round> round;
  {
    std::lock_guard lock(table_->mu);
    const auto found = table_->by_id.find(id);
    if (found == table_->by_id.end()) return absl::NotFoundError(absl::StrCat("no round '", id, "'"));
    const auto entry = table_->rounds.find(found->second);
    round = std::move(entry->second);
    table_->rounds.erase(entry);
    table_->by_id.erase(found);
  }
  (void)round->Cancel("the round was deleted");  // refused where it has ended, which is as good
  Log(LogLevel::kInfo, "round_deleted", {{"round", id}});
  server_.pool.Post([round = std::move(round)] {});  // freeing much memory takes time
  return absl::OkStatus();
}

void Registry::Remove(Table& table, uint64_t sequence) {
  std::shared_ptr<Round> expired;
  {
    std::lock_guard lock(table.mu);
    const auto entry = table.rounds.find(sequence);
    if (entry == table.rounds.end()) return;
    expired = std::move(entry->second);
    table.rounds.erase(entry);
    table.by_id.erase(expired->config().id);
  }
  Log(LogLevel::kInfo, "round_expired", {{"round", expired->config().id}});
}

bool Registry::draining() const {
  std::lock_guard lock(table_->mu);
  return table_->draining;
}

void Registry::Drain() {
  std::vector<std::shared_ptr<Round>> rounds;
  {
    std::lock_guard lock(table_->mu);
    table_->draining = true;
    for (const auto& [sequence, round] : table_->rounds) rounds.push_back(round);
  }
  for (const auto& round : rounds) round->ReleaseWaiters();
}

}  // namespace sparseagg::service
