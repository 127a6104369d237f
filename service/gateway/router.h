// What a request asks for: a page, a probe, or a call of a method.
#ifndef SPARSEAGG_SERVICE_GATEWAY_ROUTER_H_
#define SPARSEAGG_SERVICE_GATEWAY_ROUTER_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "service/gateway/browser_policy.h"
#include "service/gateway/http_call.h"
#include "service/gateway/http_message.h"

namespace sparseagg::service {

// Where a request goes.
struct RoutedRequest {
  std::string route = "none";  // HttpExchange::route
  std::variant<HttpResponse, HttpCallPlan> outcome;
};

// Pages by path, such as "/metrics". The function runs for each GET and HEAD, on the gateway's thread.
using Pages = std::map<std::string, std::function<HttpResponse()>>;

// Decides by the headers of a request, before its body is read. Immutable, and so thread-safe.
class Router {
 public:
  // `policy`: of the API and the static pages; nullopt: there are only `pages`, for everybody.
  Router(std::optional<BrowserPolicy> policy, Pages pages) : policy_(std::move(policy)), pages_(std::move(pages)) {}

  // Returns: the response, also to a request that is refused, or the call to make.
  RoutedRequest Route(const HttpRequest& request) const;

  // Adds the headers that every response has.
  void AddHeaders(const HttpRequest& request, HttpResponse* response) const;

 private:
  // Returns: nullopt for other paths and methods.
  std::optional<HttpResponse> FindPage(const HttpRequest& request) const;
  static std::optional<HttpResponse> FindStaticPage(const HttpRequest& request);
  static RoutedRequest PlanCall(const HttpRequest& request);

  const std::optional<BrowserPolicy> policy_;
  const Pages pages_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_ROUTER_H_
