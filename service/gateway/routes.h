// The paths of the HTTP API, and the methods behind them.
#ifndef SPARSEAGG_SERVICE_GATEWAY_ROUTES_H_
#define SPARSEAGG_SERVICE_GATEWAY_ROUTES_H_

#include <google/protobuf/descriptor.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "service/auth/authorize.h"
#include "service/gateway/http_message.h"

namespace sparseagg::service {

// A path of the API. "{name}" stands for one segment, which becomes the field `field` of the request with `prefix` in
// front: "/v1/rounds/{round}:close" with field "name" and prefix "rounds/".
struct Route {
  absl::string_view verb;
  absl::string_view path;
  Method method;
  absl::string_view field;   // empty: the path has no variable
  absl::string_view prefix;  // of the variable
  absl::string_view summary;
  bool is_body_optional = false;  // of POST: the path alone is a whole request
};

// All routes, in the order of the OpenAPI description.
absl::Span<const Route> Routes();

// Returns: the method's descriptor in proto/.
const google::protobuf::MethodDescriptor* DescriptorOf(Method method);

// Where a request goes.
struct RouteMatch {
  const Route* route = nullptr;  // null: no route has this path and verb
  std::string variable;          // the value for route->field
  std::string other_verbs;       // that the path takes, "GET, DELETE"
};

// Errors: INVALID_ARGUMENT: malformed %-escapes.
absl::StatusOr<RouteMatch> FindRoute(const HttpRequest& request);

// Returns: the method of a path of gRPC, "/sparseagg.v1.Aggregation/GetRound"; nullopt if there is none.
std::optional<Method> FindGrpcMethod(absl::string_view path);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_ROUTES_H_
