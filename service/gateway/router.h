// What a request asks for: a page, a probe, or a call of a method.
#ifndef SPARSEAGG_SERVICE_GATEWAY_ROUTER_H_
#define SPARSEAGG_SERVICE_GATEWAY_ROUTER_H_

#include <google/protobuf/descriptor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "service/auth/authorize.h"
#include "service/gateway/browser_policy.h"
#include "service/gateway/http_call.h"
#include "service/gateway/http_message.h"

namespace sparseagg::service {

// A path of the API. "{round}" stands for one segment, which becomes the field of this name with the plural in front:
// "/v1/rounds/r:close" sets `round` to "rounds/r".
struct Route {
  absl::string_view verb;
  absl::string_view path;
  Method method;
  absl::string_view summary;
  bool is_body_optional = false;  // of POST: the path alone is a whole request
};

// All routes, in the order of the OpenAPI description.
absl::Span<const Route> Routes();

// Returns: the name in braces of the route's path; empty if there is none.
absl::string_view VariableOf(const Route& route);

// Returns: the method's descriptor in proto/.
const google::protobuf::MethodDescriptor* DescriptorOf(Method method);

// Whether the answer is a page of a result or of a model's rows.
bool IsPage(Method method);
// Whether the request or the answer has columns of keys and values, and so the query may have 'numbers'.
bool HasColumns(Method method);

// Where a request goes.
struct RouteMatch {
  const Route* route = nullptr;  // null: no route has this path and verb
  std::string variable;          // the value of VariableOf(*route)
  std::string other_verbs;       // that the path takes, "GET, DELETE"
};

// Errors: INVALID_ARGUMENT: malformed %-escapes.
absl::StatusOr<RouteMatch> FindRoute(const HttpRequest& request);

// Returns: the method of a path of gRPC, "/sparseagg.v1.Aggregation/GetRound"; nullopt if there is none.
std::optional<Method> FindGrpcMethod(absl::string_view path);

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

// Returns: the description, OpenAPI 3.0 in JSON. It is made from the routes and from the messages of proto/, so it says
// what the server does.
const std::string& OpenApiDescription();

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_ROUTER_H_
