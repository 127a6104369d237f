#include "service/gateway/router.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/gateway/grpc_web.h"
#include "service/gateway/openapi.h"
#include "service/gateway/routes.h"
#include "service/gateway/static_files.h"

namespace sparseagg::service {
namespace {

constexpr absl::string_view kJson = "application/json";
constexpr absl::string_view kProtobuf = "application/x-protobuf";
constexpr absl::string_view kBulk = "application/octet-stream";

// Pages of the server use nothing but the server.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpResponse NotFound(const HttpRequest& request, absl::string_view hint) {
  return MakeProblem(absl::NotFoundError(absl::StrCat("no path ", JsonQuote(request.path.substr(0, 128)), hint)));
}

HttpResponse WrongVerb(const std::string& verbs) {
  HttpResponse response = MakeProblem(absl::UnimplementedError(absl::StrCat("the path takes ", verbs)), 405);
  response.headers.emplace_back("Allow", verbs);
  return response;
}

// Errors: INVALID_ARGUMENT; the caller answers 415.
absl::StatusOr<BodyFormat> RequestFormat(const HttpRequest& request, Method method) {
  const std::string type = request.MediaType("content-type");
  if (type == kJson) return BodyFormat::kJson;
  if (type == kProtobuf) return BodyFormat::kProtobuf;
  if (type == kBulk && method == Method::kPutChunk) return BodyFormat::kBulk;
  if (type.empty() && request.body_bytes == 0) return BodyFormat::kJson;
  return absl::InvalidArgumentError(absl::StrCat("Content-Type ", JsonQuote(type.substr(0, 64)), "; taken here are ",
                                                 kJson, ", ", kProtobuf, method == Method::kPutChunk ? ", " : "",
                                                 method == Method::kPutChunk ? kBulk : ""));
}

BodyFormat ResponseFormat(const HttpRequest& request, Method method) {
  const absl::string_view accept = request.Header("accept");
  if (absl::StrContains(accept, kProtobuf)) return BodyFormat::kProtobuf;
  const bool is_page = method == Method::kGetResult || method == Method::kGetResultRange;
  if (absl::StrContains(accept, kBulk) && is_page) return BodyFormat::kBulk;
  return BodyFormat::kJson;
}

}  // namespace

RoutedRequest Router::Route(const HttpRequest& request) const {
  RoutedRequest routed;
  if (const absl::Status allowed = policy_ ? policy_->Check(request) : absl::OkStatus(); !allowed.ok()) {
    routed.outcome = MakeProblem(allowed);
  } else if (auto preflight = policy_ ? policy_->AnswerPreflight(request) : std::nullopt) {
    routed.outcome = *std::move(preflight);
  } else if (auto page = FindPage(request)) {
    routed.route = request.path;
    routed.outcome = *std::move(page);
  } else if (policy_) {
    routed = PlanCall(request);
  } else {
    routed.outcome = NotFound(request, "");
  }
  return routed;
}

void Router::AddHeaders(const HttpRequest& request, HttpResponse* response) const {
  response->headers.emplace_back("Cache-Control", "no-store");
  response->headers.emplace_back("X-Content-Type-Options", "nosniff");
  if (policy_) policy_->AddHeaders(request, response);
}

std::optional<HttpResponse> Router::FindPage(const HttpRequest& request) const {
  if (request.method != "GET" && request.method != "HEAD") return std::nullopt;
  if (const auto page = pages_.find(request.path); page != pages_.end()) return page->second();
  return policy_ ? FindStaticPage(request) : std::nullopt;
}

std::optional<HttpResponse> Router::FindStaticPage(const HttpRequest& request) {
  if (request.path == "/v1/openapi.json") return MakeResponse(200, kJson, OpenApiDescription());
  for (const StaticFile& file : StaticFiles()) {
    if (request.path != file.path) continue;
    HttpResponse response = MakeResponse(200, file.content_type, std::string(file.content));
    response.headers.emplace_back("Content-Security-Policy", kPolicy);
    response.headers.emplace_back("Referrer-Policy", "no-referrer");
    return response;
  }
  return std::nullopt;
}

RoutedRequest Router::PlanCall(const HttpRequest& request) {
  HttpCallPlan plan;
  if (!request.Header("content-encoding").empty() && request.Header("content-encoding") != "identity") {
    return {.outcome = MakeProblem(
                absl::InvalidArgumentError("a Content-Encoding is not accepted; send the body as it is"), 415)};
  }
  if (const auto method = FindGrpcMethod(request.path)) {
    if (request.method != "POST" || !IsGrpcWeb(request.MediaType("content-type"))) {
      return {request.path,
              MakeProblem(absl::UnimplementedError(absl::StrCat("this path takes POST with ", kGrpcWebType)), 405)};
    }
    plan.method = *method;
    plan.request_format = plan.response_format = BodyFormat::kGrpcWeb;
    if (const auto* type = DescriptorOf(*method); type->client_streaming() || type->server_streaming()) {
      return {request.path,
              MakeGrpcWebResponse(absl::UnimplementedError("streaming methods are not served over gRPC-Web"), "")};
    }
    if (const absl::string_view timeout = request.Header("grpc-timeout"); !timeout.empty()) {
      const absl::StatusOr<absl::Duration> parsed = ParseGrpcTimeout(timeout);
      if (!parsed.ok()) return {request.path, MakeGrpcWebResponse(parsed.status(), "")};
      plan.timeout = *parsed;
    }
    return {request.path, plan};
  }
  const absl::StatusOr<RouteMatch> match = FindRoute(request);
  if (!match.ok()) return {.outcome = MakeProblem(match.status())};
  if (match->route == nullptr) {
    return {.outcome = match->other_verbs.empty() ? NotFound(request, "; /v1/openapi.json lists all")
                                                  : WrongVerb(match->other_verbs)};
  }
  const struct Route& route = *match->route;
  plan.method = route.method;
  absl::StatusOr<BodyFormat> format = RequestFormat(request, route.method);
  if (!format.ok()) return {std::string(route.path), MakeProblem(format.status(), 415)};
  plan.request_format = *format;
  plan.response_format = ResponseFormat(request, route.method);
  plan.variable_field = std::string(route.field);
  if (!route.field.empty()) plan.variable = absl::StrCat(route.prefix, match->variable);
  return {std::string(route.path), std::move(plan)};
}

}  // namespace sparseagg::service
