#include "service/net/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"

namespace sparseagg::service {
namespace {

bool IsPort(absl::string_view port) {
  uint32_t number = 0;
  return std::all_of(port.begin(), port.end(), absl::ascii_isdigit) && absl::SimpleAtoi(port, &number) &&
         number <= std::numeric_limits<uint16_t>::max();
}

}  // namespace

std::string HostOf(absl::string_view address) {
  absl::string_view host = address.substr(0, address.rfind(':'));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return std::string(host);
}

// getaddrinfo() would take 99999 for 34463, and an empty string for any port.
absl::Status CheckPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon != absl::string_view::npos && IsPort(address.substr(colon + 1))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not HOST:PORT with a port up to 65535"));
}

absl::Status CheckLoopback(absl::string_view address, absl::string_view lack) {
  if (absl::StartsWith(address, "unix:")) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPort(address));
  const std::string host = HostOf(address);
  in_addr v4;
  in6_addr v6;
  const bool loopback = host == "localhost" ||
                        (inet_pton(AF_INET, host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127) ||
                        (inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
  if (loopback) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("other machines can reach ", address, ", and the server has no ", lack,
                                                 " there; --insecure allows the address nevertheless"));
}

}  // namespace sparseagg::service
