#include "service/gateway/browser_policy.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"
#include "service/net/address.h"

namespace sparseagg::service {
namespace {

// Returns: "HOST[:PORT]" of "http[s]://HOST[:PORT]"; empty for anything else.
absl::string_view HostOfOrigin(absl::string_view origin) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (absl::StartsWithIgnoreCase(origin, scheme)) {
      origin.remove_prefix(scheme.size());
      return origin.find_first_of("/?#@ ") == absl::string_view::npos ? origin : "";
    }
  }
  return "";
}

// Checks that a browser may send the origin just so, but for the case.
// Errors: INVALID_ARGUMENT, which says what it would send.
absl::Status CheckOrigin(absl::string_view origin) {
  const auto fail = [origin](absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat("--http-origins: '", origin, "' ", reason));
  };
  const absl::string_view authority = HostOfOrigin(origin);
  if (authority.empty()) return fail("is not an origin such as https://app.example.org");
  if (absl::StrContains(authority, '*')) {
    return fail("has a pattern, which matches nothing: list each origin, or give * alone for all pages");
  }
  absl::string_view host = authority;
  absl::string_view port;
  if (const size_t colon = authority.rfind(':'); colon != absl::string_view::npos && authority.back() != ']') {
    host = authority.substr(0, colon);
    port = authority.substr(colon + 1);
    uint32_t number = 0;
    if (!absl::SimpleAtoi(port, &number) || number == 0 || number > 65535 || absl::StrCat(number) != port) {
      return fail("has no port from 1 to 65535 after its last colon");
    }
    const bool is_default = number == (absl::StartsWithIgnoreCase(origin, "https:") ? 443 : 80);
    if (is_default) return fail("has the port that browsers leave out: leave it out, too");
  }
  if (absl::ConsumePrefix(&host, "[")) {
    in6_addr v6;
    char canonical[INET6_ADDRSTRLEN];
    if (!absl::ConsumeSuffix(&host, "]") || inet_pton(AF_INET6, std::string(host).c_str(), &v6) != 1) {
      return fail("has no IPv6 address in its brackets");
    }
    inet_ntop(AF_INET6, &v6, canonical, sizeof(canonical));
    if (absl::EqualsIgnoreCase(host, canonical)) return absl::OkStatus();
    return fail(absl::StrCat("has an address that browsers send as [", canonical, "]"));
  }
  const auto in_a_name = [](unsigned char c) { return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_'; };
  if (!host.empty() && std::all_of(host.begin(), host.end(), in_a_name)) return absl::OkStatus();
  return fail("has a host of other characters than letters, digits, '.', '-' and '_'; browsers send names in Punycode");
}

// Returns: `host` with a port, as CheckLoopback wants it.
std::string WithPort(absl::string_view host) {
  const size_t colon = host.rfind(':');
  const bool has_port = colon != absl::string_view::npos && host.find(']', colon) == absl::string_view::npos;
  return has_port ? std::string(host) : absl::StrCat(host, ":80");
}

// Returns: whether the public name service may have the host. It has no addresses, no names without a dot, and none in
// the domains that are reserved for private networks or that clusters use.
bool MayBePublic(std::string host) {
  absl::AsciiStrToLower(&host);
  if (absl::EndsWith(host, ".")) host.pop_back();
  std::array<char, sizeof(in6_addr)> address;
  if (inet_pton(AF_INET, host.c_str(), address.data()) == 1 || inet_pton(AF_INET6, host.c_str(), address.data()) == 1) {
    return false;
  }
  if (!absl::StrContains(host, '.')) return false;
  constexpr std::array kPrivate = {".svc", ".local", ".localhost", ".internal", ".home.arpa"};
  return std::none_of(kPrivate.begin(), kPrivate.end(), [&](const char* end) { return absl::EndsWith(host, end); });
}

}  // namespace

absl::StatusOr<BrowserPolicy> BrowserPolicy::Create(absl::string_view origins, HostRule host_rule) {
  BrowserPolicy policy;
  policy.host_rule_ = host_rule;
  for (absl::string_view origin : absl::StrSplit(origins, ',', absl::SkipWhitespace())) {
    origin = absl::StripAsciiWhitespace(origin);
    if (origin != "*") RETURN_IF_ERROR(CheckOrigin(origin));
    policy.origins_.push_back(absl::AsciiStrToLower(origin));
  }
  return policy;
}

bool BrowserPolicy::IsListed(absl::string_view origin) const {
  const std::string lower = absl::AsciiStrToLower(origin);
  return std::any_of(origins_.begin(), origins_.end(), [&](const auto& each) { return each == "*" || each == lower; });
}

absl::Status BrowserPolicy::CheckHost(absl::string_view host) const {
  const std::string with_port = WithPort(host);
  absl::string_view lack;
  if (host_rule_ == HostRule::kLocal && !CheckLoopback(with_port, "").ok()) {
    lack = "which is not this machine; a server without credentials takes only localhost, 127.0.0.1 and [::1]";
  } else if (host_rule_ == HostRule::kPrivate && MayBePublic(HostOf(with_port))) {
    lack = "a public name; a server without credentials takes those alone that --http-origins lists";
  }
  const auto is_listed = [&] {
    return IsListed(absl::StrCat("http://", host)) || IsListed(absl::StrCat("https://", host));
  };
  if (lack.empty() || is_listed()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the header Host is ", JsonQuote(host.substr(0, 128)), ", ", lack));
}

absl::Status BrowserPolicy::Check(const HttpRequest& request) const {
  const absl::string_view host = request.Header("host");
  const absl::string_view origin = request.Header("origin");
  RETURN_IF_ERROR(CheckHost(host));
  if (origin.empty() || IsListed(origin)) return absl::OkStatus();
  if (!host.empty() && absl::EqualsIgnoreCase(HostOfOrigin(origin), host)) return absl::OkStatus();  // our own page
  return absl::PermissionDeniedError(
      absl::StrCat("pages of the origin ", JsonQuote(origin.substr(0, 128)), " may not call; see --http-origins"));
}

std::optional<HttpResponse> BrowserPolicy::AnswerPreflight(const HttpRequest& request) const {
  if (request.method != "OPTIONS" || request.Header("access-control-request-method").empty()) return std::nullopt;
  HttpResponse response;
  response.status = 204;
  response.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                      {"Access-Control-Allow-Headers",
                       "accept, authorization, content-type, sparseagg-tenant, traceparent, x-grpc-web, x-user-agent"},
                      {"Access-Control-Max-Age", "600"}};
  return response;
}

void BrowserPolicy::AddHeaders(const HttpRequest& request, HttpResponse* response) const {
  const absl::string_view origin = request.Header("origin");
  if (origin.empty() || !IsListed(origin)) return;
  response->headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  response->headers.emplace_back("Access-Control-Expose-Headers", "Retry-After");
  response->headers.emplace_back("Vary", "Origin");
}

}  // namespace sparseagg::service
