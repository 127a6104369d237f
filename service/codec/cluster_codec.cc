#include "service/codec/cluster_codec.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"

namespace sparseagg::service {
namespace {

constexpr size_t kMaxHostBytes = 253;  // of a name of DNS
constexpr size_t kMaxInstanceBytes = 128;

bool IsIn(unsigned char c, absl::string_view others) {
  return absl::ascii_isalnum(c) || absl::StrContains(others, static_cast<char>(c));
}

// Returns: whether `text` is "HOST:PORT", where HOST is a name, an IPv4 address or an IPv6 address in brackets. So it
// has neither a space nor a line break, a user, a path or a query.
bool IsHostAndPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return false;
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  const bool is_ipv6 = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (is_ipv6) host = host.substr(1, host.size() - 2);
  const absl::string_view others = is_ipv6 ? absl::string_view(":.") : absl::string_view(".-_");
  if (host.empty() || host.size() > kMaxHostBytes) return false;
  if (!std::all_of(host.begin(), host.end(), [&](unsigned char c) { return IsIn(c, others); })) return false;
  uint32_t number = 0;
  return port.size() <= 5 && std::all_of(port.begin(), port.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(port, &number) && number > 0 && number <= UINT16_MAX;
}

bool IsUrl(absl::string_view text) {
  return (absl::ConsumePrefix(&text, "http://") || absl::ConsumePrefix(&text, "https://")) && IsHostAndPort(text);
}

absl::Status Invalid(int server, absl::string_view field, absl::string_view text, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("cluster.servers[", server, "].", field, " '",
                                                 absl::CEscape(text.substr(0, 64)), "' is not ", wanted));
}

}  // namespace

absl::Status ServersError(uint64_t number) {
  return absl::InvalidArgumentError(
      absl::StrCat("cluster has ", number, " servers; 1 to ", kMaxServers, " are allowed"));
}

absl::StatusOr<HomeServers> DecodeCluster(const v1::ClusterSpec& spec) {
  if (spec.servers().empty() || static_cast<uint64_t>(spec.servers_size()) > kMaxServers) {
    return ServersError(static_cast<uint64_t>(spec.servers_size()));
  }
  HomeServers homes;
  absl::flat_hash_set<absl::string_view> seen;
  for (const v1::HomeServer& server : spec.servers()) {
    const int number = static_cast<int>(homes.servers.size());
    if (!IsHostAndPort(server.address())) return Invalid(number, "address", server.address(), "HOST:PORT");
    if (!server.http_url().empty() && !IsUrl(server.http_url())) {
      return Invalid(number, "http_url", server.http_url(), "http://HOST:PORT or https://HOST:PORT");
    }
    if (server.instance().size() > kMaxInstanceBytes) {
      return Invalid(number, "instance", server.instance(), "a name of up to 128 bytes");
    }
    if (!seen.insert(server.address()).second ||
        (!server.http_url().empty() && !seen.insert(server.http_url()).second)) {
      return absl::InvalidArgumentError(
          absl::StrCat("cluster.servers[", number, "] has an address that another one has, too: ", server.address()));
    }
    homes.servers.push_back({server.address(), server.http_url()});
  }
  homes.index = spec.index();
  if (homes.index >= homes.servers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cluster.index ", spec.index(), " is not below the number of servers ", homes.servers.size()));
  }
  return homes;
}

}  // namespace sparseagg::service
