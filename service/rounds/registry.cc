#include "service/rounds/registry.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/mutex.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"

namespace sparseagg::service {
namespace {

absl::Status DrainingError() { return absl::UnavailableError("the server is shutting down and takes no new rounds"); }

// Returns: the key of a round in Table::names. Neither part contains a slash.
std::string KeyOf(absl::string_view tenant, absl::string_view id) { return absl::StrCat(tenant, "/", id); }

absl::Status NoRoundError(absl::string_view id) { return absl::NotFoundError(absl::StrCat("no round '", id, "'")); }

absl::Status ExistsError(absl::string_view id) {
  return absl::AlreadyExistsError(absl::StrCat("round '", id, "' exists already, with another spec"));
}

// Returns: the round that exists, if it has the spec that is asked for.
absl::StatusOr<std::shared_ptr<Round>> SameSpec(std::shared_ptr<Round> existing, const RoundConfig& asked) {
  const StreamPart* const has = existing->config().stream.get();
  const StreamPart* const wants = asked.stream.get();
  const bool is_of_same =
      has == nullptr || wants == nullptr ? has == wants : has->id == wants->id && has->version == wants->version;
  if (is_of_same && existing->config().wire_spec == asked.wire_spec) return existing;
  return ExistsError(asked.id);
}

// Returns: the id of the stream that could have a version of this name; empty if none could: Stream::VersionConfig.
absl::string_view StreamOfVersion(absl::string_view id) {
  const size_t end = id.rfind(".v");
  const bool is_version = end != absl::string_view::npos && end + 2 < id.size() &&
                          id.find_first_not_of("0123456789", end + 2) == absl::string_view::npos;
  return is_version ? id.substr(0, end) : "";
}

}  // namespace

std::string RandomId(absl::string_view prefix) {
  std::random_device random;  // allow(randomness): ids of two runs must differ
  return absl::StrFormat("%s%08x%08x", prefix, random(), random());
}

struct Registry::Table {
  using Place = std::pair<std::string, uint64_t>;  // tenant and sequence
  // What has an id.
  struct Named {
    uint64_t sequence;
    std::shared_ptr<Intake> intake;  // of the round, or of a stream
  };

  Mutex mu;
  bool draining ABSL_GUARDED_BY(mu) = false;
  uint64_t next_sequence ABSL_GUARDED_BY(mu) = 1;                      // key in `rounds` of the next one
  std::map<Place, std::shared_ptr<Round>> rounds ABSL_GUARDED_BY(mu);  // of each tenant in order of creation
  absl::flat_hash_map<std::string, Named> names ABSL_GUARDED_BY(mu);   // by KeyOf

  // Returns: the round that exists with the id and the spec; null if the tenant has no round with this id.
  // Errors: ALREADY_EXISTS: it has another spec; or a stream has, or will have, a version of this name.
  absl::StatusOr<std::shared_ptr<Round>> FindSameLocked(const RoundConfig& config) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Errors: ALREADY_EXISTS: of AddIntake.
  absl::Status CheckFreeForStreamLocked(const RoundConfig& config) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Returns: null if the tenant has no round with this id.
  std::shared_ptr<Round> FindLocked(absl::string_view tenant, absl::string_view id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto found = names.find(KeyOf(tenant, id));
    if (found == names.end()) return nullptr;
    const auto round = rounds.find({std::string(tenant), found->second.sequence});
    return round == rounds.end() ? nullptr : round->second;
  }
  bool IsStreamLocked(absl::string_view tenant, absl::string_view id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return names.contains(KeyOf(tenant, id)) && FindLocked(tenant, id) == nullptr;
  }
  void AddLocked(uint64_t sequence, const std::shared_ptr<Round>& round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const RoundConfig& config = round->config();
    rounds.emplace(Place(config.tenant, sequence), round);
    names.emplace(KeyOf(config.tenant, config.id), Named{sequence, {round, &round->intake()}});
  }
};

absl::StatusOr<std::shared_ptr<Round>> Registry::Table::FindSameLocked(const RoundConfig& config) const {
  if (std::shared_ptr<Round> existing = FindLocked(config.tenant, config.id)) {
    return SameSpec(std::move(existing), config);
  }
  if (IsStreamLocked(config.tenant, config.id)) {
    return absl::AlreadyExistsError(absl::StrCat("'", config.id, "' is a stream; rounds and streams share their ids"));
  }
  const absl::string_view stream = config.stream == nullptr ? StreamOfVersion(config.id) : "";
  if (!stream.empty() && IsStreamLocked(config.tenant, stream)) {
    return absl::AlreadyExistsError(
        absl::StrCat("'", config.id, "' is the name of a version of the stream '", stream, "'"));
  }
  return nullptr;
}

absl::Status Registry::Table::CheckFreeForStreamLocked(const RoundConfig& config) const {
  if (names.contains(KeyOf(config.tenant, config.id))) return ExistsError(config.id);
  for (auto it = rounds.lower_bound({config.tenant, 0}); it != rounds.end() && it->first.first == config.tenant; ++it) {
    const RoundConfig& other = it->second->config();
    if (other.stream != nullptr || StreamOfVersion(other.id) != config.id) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("round '", other.id, "' has a name that versions of the stream '", config.id, "' need"));
  }
  return absl::OkStatus();
}

Registry::Registry(const RoundServices& services) : services_(services), table_(std::make_shared<Table>()) {}

Registry::~Registry() = default;

absl::StatusOr<std::shared_ptr<Round>> Registry::Create(RoundConfig config) {
  uint64_t sequence;
  {
    MutexLock lock(&table_->mu);
    if (table_->draining) return DrainingError();
    if (config.id.empty()) config.id = RandomId("r-");
    ASSIGN_OR_RETURN(std::shared_ptr<Round> existing, table_->FindSameLocked(config));
    if (existing != nullptr) return existing;
    sequence = table_->next_sequence++;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Round> round, Round::Open(config, services_, ExpiryOf(config.tenant, sequence)));
  {
    MutexLock lock(&table_->mu);
    if (table_->draining) return DrainingError();
    // Another call may have been quicker.
    ASSIGN_OR_RETURN(std::shared_ptr<Round> existing, table_->FindSameLocked(config));
    if (existing != nullptr) return existing;
    RETURN_IF_ERROR(round->StartJournal(sequence));  // under the lock, so that the store has one round of a name
    table_->AddLocked(sequence, round);
  }
  ++services_.tenants.Of(config.tenant).activity.rounds;
  round->StartDeadline();  // not before: a round that had expired by then would stay listed for ever
  Log(LogLevel::kInfo, "round_created",
      {{"round", config.LogName()},
       {"tensors", config.tensors.size()},
       {"min_submissions", config.min_submissions},
       {"max_submissions", config.max_submissions}});
  return round;
}

std::function<void()> Registry::ExpiryOf(const std::string& tenant, uint64_t sequence) const {
  return [weak = std::weak_ptr<Table>(table_), place = Table::Place(tenant, sequence), pool = &services_.pool] {
    const auto table = weak.lock();
    if (table != nullptr) pool->Post([table, place] { RemoveExpired(*table, place.first, place.second); });
  };
}

absl::StatusOr<std::shared_ptr<Round>> Registry::Restore(RoundConfig config, uint64_t number, absl::Time create_time) {
  const std::string tenant = config.tenant;
  ASSIGN_OR_RETURN(std::shared_ptr<Round> round,
                   Round::Open(std::move(config), services_, ExpiryOf(tenant, number), create_time));
  MutexLock lock(&table_->mu);
  table_->next_sequence = std::max(table_->next_sequence, number + 1);
  table_->AddLocked(number, round);
  return round;
}

absl::Status Registry::AddIntake(std::shared_ptr<Intake> intake, absl::FunctionRef<absl::Status()> prepare,
                                 absl::FunctionRef<absl::Status(uint64_t)> store) {
  const RoundConfig& config = intake->config();
  uint64_t sequence;
  {
    MutexLock lock(&table_->mu);
    if (table_->draining) return DrainingError();
    RETURN_IF_ERROR(table_->CheckFreeForStreamLocked(config));
    sequence = table_->next_sequence++;
  }
  RETURN_IF_ERROR(prepare());
  MutexLock lock(&table_->mu);
  if (table_->draining) return DrainingError();
  RETURN_IF_ERROR(table_->CheckFreeForStreamLocked(config));
  RETURN_IF_ERROR(store(sequence));  // under the lock, so that the store has one stream or round of a name
  table_->names.emplace(KeyOf(config.tenant, config.id), Table::Named{sequence, std::move(intake)});
  return absl::OkStatus();
}

void Registry::RestoreIntake(std::shared_ptr<Intake> intake, uint64_t number) {
  const std::string key = KeyOf(intake->config().tenant, intake->config().id);
  MutexLock lock(&table_->mu);
  table_->next_sequence = std::max(table_->next_sequence, number + 1);
  table_->names.emplace(key, Table::Named{number, std::move(intake)});
}

uint64_t Registry::TakeNumber() {
  MutexLock lock(&table_->mu);
  return table_->next_sequence++;
}

void Registry::ReserveNumber(uint64_t number) {
  MutexLock lock(&table_->mu);
  table_->next_sequence = std::max(table_->next_sequence, number + 1);
}

void Registry::RemoveIntake(absl::string_view tenant, absl::string_view id) {
  MutexLock lock(&table_->mu);
  if (table_->IsStreamLocked(tenant, id)) table_->names.erase(KeyOf(tenant, id));
}

absl::StatusOr<std::shared_ptr<Intake>> Registry::FindIntake(absl::string_view tenant, absl::string_view id) const {
  MutexLock lock(&table_->mu);
  const auto found = table_->names.find(KeyOf(tenant, id));
  if (found == table_->names.end()) return NoRoundError(id);
  return found->second.intake;
}

absl::StatusOr<std::shared_ptr<Round>> Registry::CreatePrivate(RoundConfig config) {
  {
    MutexLock lock(&table_->mu);
    if (table_->draining) return DrainingError();
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Round> round, Round::Open(std::move(config), services_, nullptr));
  round->StartDeadline();
  return round;
}

absl::StatusOr<std::shared_ptr<Round>> Registry::Find(absl::string_view tenant, absl::string_view id) const {
  MutexLock lock(&table_->mu);
  std::shared_ptr<Round> round = table_->FindLocked(tenant, id);
  if (round != nullptr) return round;
  if (!table_->IsStreamLocked(tenant, id)) return NoRoundError(id);
  return absl::NotFoundError(absl::StrCat("no round '", id, "'; there is a stream of this id, ", StreamName(id)));
}

absl::StatusOr<Registry::Page> Registry::List(absl::string_view tenant, size_t page_size,
                                              absl::string_view page_token) const {
  uint64_t first = 0;
  if (!page_token.empty() && !absl::SimpleAtoi(page_token, &first)) {
    return absl::InvalidArgumentError(absl::StrCat("page_token '", page_token, "' is not a token of this call"));
  }
  Page page;
  MutexLock lock(&table_->mu);
  auto it = table_->rounds.lower_bound({std::string(tenant), first});
  for (; it != table_->rounds.end() && it->first.first == tenant; ++it) {
    const std::string token = absl::StrCat(it->first.second);
    if (page.entries.size() == page_size) {
      page.next_page_token = token;
      break;
    }
    page.entries.push_back({token, it->second});
  }
  return page;
}

std::array<uint64_t, kNumRoundStates> Registry::CountByState() const {
  std::vector<std::shared_ptr<Round>> rounds;
  {
    MutexLock lock(&table_->mu);
    for (const auto& [place, round] : table_->rounds) rounds.push_back(round);
  }
  std::array<uint64_t, kNumRoundStates> counts{};
  for (const auto& round : rounds) ++counts[static_cast<size_t>(round->state())];
  return counts;
}

absl::StatusOr<std::shared_ptr<Round>> Registry::Delete(absl::string_view tenant, absl::string_view id) {
  std::shared_ptr<Round> round;
  {
    MutexLock lock(&table_->mu);
    const auto found = table_->names.find(KeyOf(tenant, id));
    if (found == table_->names.end()) return NoRoundError(id);
    const auto entry = table_->rounds.find({std::string(tenant), found->second.sequence});
    if (entry == table_->rounds.end()) return NoRoundError(id);  // a stream
    RETURN_IF_ERROR(entry->second->DeleteStored());
    round = std::move(entry->second);
    table_->rounds.erase(entry);
    table_->names.erase(found);
  }
  (void)round->Cancel("the round was deleted");  // fails if the round has ended, which is fine
  Log(LogLevel::kInfo, "round_deleted", {{"round", round->config().LogName()}});
  services_.pool.Post([round] {});  // freeing a large round takes time
  return round;
}

void Registry::RemoveExpired(Table& table, const std::string& tenant, uint64_t sequence) {
  std::shared_ptr<Round> expired;
  {
    MutexLock lock(&table.mu);
    const auto entry = table.rounds.find({tenant, sequence});
    if (entry == table.rounds.end()) return;
    expired = std::move(entry->second);
    table.rounds.erase(entry);
    table.names.erase(KeyOf(tenant, expired->config().id));
  }
  // A restart finds a round that could not be removed, and that it has expired.
  expired->DeleteStored().IgnoreError();
  Log(LogLevel::kInfo, "round_expired", {{"round", expired->config().LogName()}});
}

bool Registry::draining() const {
  MutexLock lock(&table_->mu);
  return table_->draining;
}

void Registry::Drain() {
  std::vector<std::shared_ptr<Round>> rounds;
  std::vector<std::shared_ptr<Intake>> intakes;
  {
    MutexLock lock(&table_->mu);
    table_->draining = true;
    for (const auto& [place, round] : table_->rounds) rounds.push_back(round);
    for (const auto& [name, named] : table_->names) intakes.push_back(named.intake);
  }
  for (const auto& round : rounds) round->ReleaseWaiters();
  for (const auto& intake : intakes) intake->ReleaseWaiters();
}

}  // namespace sparseagg::service
