// Which web pages may call the server.
#ifndef SPARSEAGG_SERVICE_GATEWAY_BROWSER_POLICY_H_
#define SPARSEAGG_SERVICE_GATEWAY_BROWSER_POLICY_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/gateway/http_message.h"

namespace sparseagg::service {

// Which Host headers the server accepts. A server without credentials trusts every caller, and by DNS rebinding a page
// can point its own name at the server.
enum class HostRule {
  kAny,      // the server has credentials
  kPrivate,  // no credentials, reachable beyond the loopback: refuses names that public DNS could resolve
  kLocal,    // no credentials, on the loopback: accepts names of the loopback only
};

// Decides by the headers Origin and Host. Any open page can make the browser send requests, even to the loopback. So a
// server without credentials must refuse the requests of other pages itself.
//
// Immutable, and so thread-safe.
class BrowserPolicy {
 public:
  // `origins`: comma-separated origins whose pages may call, "https://app.example.org"; "*": all pages. Every rule
  // accepts their hosts.
  // Errors: INVALID_ARGUMENT: not an origin.
  static absl::StatusOr<BrowserPolicy> Create(absl::string_view origins, HostRule host_rule);

  // Errors: PERMISSION_DENIED.
  absl::Status Check(const HttpRequest& request) const;
  // Returns: the response to a CORS preflight, to which the caller adds AddHeaders; nullopt: the request is no
  // preflight. Requires: Check returned OK.
  std::optional<HttpResponse> AnswerPreflight(const HttpRequest& request) const;
  // Adds the headers with which a page of another origin may read the response.
  void AddHeaders(const HttpRequest& request, HttpResponse* response) const;

 private:
  BrowserPolicy() = default;
  bool IsListed(absl::string_view origin) const;
  // Errors: PERMISSION_DENIED.
  absl::Status CheckHost(absl::string_view host) const;

  std::vector<std::string> origins_;
  HostRule host_rule_ = HostRule::kAny;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_BROWSER_POLICY_H_
