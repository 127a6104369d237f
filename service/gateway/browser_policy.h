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

// Which values of the header Host a server takes. Without credentials it believes every caller, and a page could give
// its own name an address of the server (DNS rebinding): the browser then takes the server for the page's own.
enum class HostRule {
  kAny,      // the server has credentials
  kPrivate,  // it has none, and listens beyond the loopback: no name that the public name service may have
  kLocal,    // it has none, and listens on the loopback: only names of the loopback
};

// Decides by the headers Origin and Host. A browser sends requests of any page that its user opens, also to the
// loopback and without a question first, so that a server without credentials must refuse the requests of other pages
// itself.
//
// Immutable, and so thread-safe.
class BrowserPolicy {
 public:
  // `origins`: a list with commas of the origins whose pages may call, "https://app.example.org"; "*": all pages.
  // Their hosts are taken by any rule.
  // Errors: INVALID_ARGUMENT: not an origin.
  static absl::StatusOr<BrowserPolicy> Create(absl::string_view origins, HostRule host_rule);

  // Errors: PERMISSION_DENIED.
  absl::Status Check(const HttpRequest& request) const;
  // Returns: the response to a CORS preflight, without what AddHeaders adds; nullopt if the request is none. Requires:
  // Check.
  std::optional<HttpResponse> AnswerPreflight(const HttpRequest& request) const;
  // Adds the headers with which a page of another origin may read the response. Requires: Check.
  void AddHeaders(const HttpRequest& request, HttpResponse* response) const;

 private:
  bool IsListed(absl::string_view origin) const;
  // Errors: PERMISSION_DENIED.
  absl::Status CheckHost(absl::string_view host) const;

  std::vector<std::string> origins_;
  HostRule host_rule_ = HostRule::kAny;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_BROWSER_POLICY_H_
