#include "service/rounds/round_config.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/base/refusals.h"

namespace sparseagg::service {
namespace {

constexpr absl::string_view kRoundPrefix = "rounds/";
constexpr size_t kMaxReasonBytes = 1024;

// FNV-1a.
uint64_t HashOf(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return hash;
}

// The finalizer of MurmurHash3.
uint64_t Mix(uint64_t bits) {
  bits = (bits ^ bits >> 33) * 0xff51afd7ed558ccd;
  bits = (bits ^ bits >> 33) * 0xc4ceb9fe1a85ec53;
  return bits ^ bits >> 33;
}

}  // namespace

std::string RoundName(absl::string_view id) { return absl::StrCat(kRoundPrefix, id); }

absl::StatusOr<std::string> ParseRoundName(absl::string_view name) {
  absl::string_view id = name;
  if (!absl::ConsumePrefix(&id, kRoundPrefix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name ", QuotedId(name), " is not a round name; round names are rounds/ID"));
  }
  RETURN_IF_ERROR(CheckName(id, "round_id"));
  return std::string(id);
}

std::string StreamName(absl::string_view id) { return absl::StrCat(kStreamPrefix, id); }

absl::StatusOr<std::string> ParseStreamName(absl::string_view name) {
  absl::string_view id = name;
  if (!absl::ConsumePrefix(&id, kStreamPrefix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name ", QuotedId(name), " is not a stream name; stream names are streams/ID"));
  }
  RETURN_IF_ERROR(CheckName(id, "stream_id"));
  return std::string(id);
}

absl::Status CheckReason(absl::string_view reason) {
  if (reason.size() <= kMaxReasonBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("reason has ", reason.size(), " bytes; up to ", kMaxReasonBytes, " are allowed"));
}

size_t HomeOf(absl::string_view client_id, size_t num_servers) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  const uint64_t hash = HashOf(client_id);
  size_t home = 0;
  uint64_t most = 0;
  for (size_t index = 0; index < num_servers; ++index) {
    const uint64_t score = Mix(hash ^ (index + 1) * kGolden);
    if (index > 0 && score <= most) continue;
    home = index;
    most = score;
  }
  return home;
}

absl::Status HomeServers::CheckHome(absl::string_view client_id) const {
  if (servers.empty()) return absl::OkStatus();
  const size_t home = HomeOf(client_id, servers.size());
  if (home == index) return absl::OkStatus();
  return HomeElsewhere(client_id, servers[home].address, servers[home].http_url);
}

absl::StatusOr<size_t> RoundConfig::FindTensor(absl::string_view name) const {
  const auto found = tensor_index.find(name);
  if (found != tensor_index.end()) return found->second;
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown tensor '", name, "'; this round has ",
      absl::StrJoin(tensors, ", ",
                    [](std::string* out, const TensorSpec& spec) { absl::StrAppend(out, "'", spec.name, "'"); })));
}

absl::StatusOr<size_t> RoundConfig::ChooseTensor(absl::string_view name) const {
  if (!name.empty()) return FindTensor(name);
  if (tensors.size() == 1) return 0;
  return absl::InvalidArgumentError(
      absl::StrCat("the round has ", tensors.size(), " tensors; the request must name one"));
}

std::string RoundConfig::LogName() const { return tenant == kDefaultTenant ? id : absl::StrCat(tenant, "/", id); }

bool RoundConfig::MergesOnArrival() const {
  return !keep_submissions && !std::all_of(tensors.begin(), tensors.end(), OrderMatters);
}

bool RoundConfig::KeepsSubmissions() const {
  return keep_submissions || std::any_of(tensors.begin(), tensors.end(), OrderMatters);
}

bool RoundConfig::HasClip() const {
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorSpec& spec) { return spec.clip.has_bound(); });
}

}  // namespace sparseagg::service
