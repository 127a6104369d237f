// Which web pages may call the server.
#ifndef SPARSEAGG_SERVICE_HTTP_BROWSER_POLICY_H_
#define SPARSEAGG_SERVICE_HTTP_BROWSER_POLICY_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/http/http_message.h"

namespace sparseagg::service {

// Decides by the headers Origin and Host. A browser sends requests of any page that its user opens, also to the
// loopback and without a question first, so that a server without credentials must refuse the requests of other pages
// itself.
//
// Immutable, and so thread-safe.
class BrowserPolicy {
 public:
  // `origins`: a list with commas of the origins whose pages may call, "https://app.example.org"; "*": all pages.
  // `needs_local_host`: the server believes every caller and is meant for this machine, so that Host must name the
  // loopback. Otherwise a page could give its own name the address 127.0.0.1 (DNS rebinding).
  // Errors: INVALID_ARGUMENT: not an origin.
  static absl::StatusOr<BrowserPolicy> Create(absl::string_view origins, bool needs_local_host);

  // Errors: PERMISSION_DENIED.
  absl::Status Check(const HttpRequest& request) const;
  // Returns: the response to a CORS preflight; nullopt if the request is none. Requires: Check.
  std::optional<HttpResponse> AnswerPreflight(const HttpRequest& request) const;
  // Adds the headers with which a page of another origin may read the response. Requires: Check.
  void AddHeaders(const HttpRequest& request, HttpResponse* response) const;

 private:
  bool IsListed(absl::string_view origin) const;

  std::vector<std::string> origins_;
  bool needs_local_host_ = false;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HTTP_BROWSER_POLICY_H_
