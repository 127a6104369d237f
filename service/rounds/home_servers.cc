#include "service/rounds/home_servers.h"

#include <cstdint>

#include "service/base/refusals.h"

namespace sparseagg::service {
namespace {

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

}  // namespace sparseagg::service
