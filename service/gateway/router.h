// What a request asks for: a page, a probe, or a call of a method.
#ifndef SPARSEAGG_SERVICE_GATEWAY_ROUTER_H_
#define SPARSEAGG_SERVICE_GATEWAY_ROUTER_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "service/gateway/browser_policy.h"
#include "service/gateway/http_call.h"
#include "service/gateway/http_message.h"

namespace sparseagg::service {

// Where a request goes.
struct RoutedRequest {
  std::string route = "none";  // HttpExchange::route
  std::variant<HttpResponse, HttpCallPlan> outcome;
};

// Decides by the headers of a request, before its body is read. Immutable, and so thread-safe.
class Router {
 public:
  // `is_ready`: what /health/ready answers.
  Router(BrowserPolicy policy, std::function<bool()> is_ready)
      : policy_(std::move(policy)), is_ready_(std::move(is_ready)) {}

  // Returns: the response, also to a request that is refused, or the call to make.
  RoutedRequest Route(const HttpRequest& request) const;

  // Adds the headers that every response has.
  void AddHeaders(const HttpRequest& request, HttpResponse* response) const;

 private:
  // Returns: a page or a probe; nullopt for other paths.
  std::optional<HttpResponse> FindPage(const HttpRequest& request) const;
  static RoutedRequest PlanCall(const HttpRequest& request);

  const BrowserPolicy policy_;
  const std::function<bool()> is_ready_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_ROUTER_H_
