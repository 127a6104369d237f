#include "service/gateway/router.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "service/gateway/http_message.h"
#include "service/gateway/json.h"
#include "service/gateway/static_files.h"

namespace sparseagg::service {
namespace {

constexpr Route kRoutes[] = {
    {"GET", "/v1/info", Method::kGetServerInfo, "Version, engine, features and limits of the server"},
    {"POST", "/v1/backups", Method::kCreateBackup, "Copies the data directory while the server runs"},
    {"POST", "/v1/rounds", Method::kCreateRound, "Opens a round"},
    {"GET", "/v1/rounds", Method::kListRounds, "Lists the rounds, oldest first"},
    {"GET", "/v1/rounds/{round}", Method::kGetRound, "The round as it is now"},
    {"DELETE", "/v1/rounds/{round}", Method::kDeleteRound, "Deletes the round and its result"},
    {"GET", "/v1/rounds/{round}:wait", Method::kWaitRound,
     "Waits until the round has ended or the timeout is over, and returns the round"},
    {"POST", "/v1/rounds/{round}:seal", Method::kSealRound, "Freezes the submissions of the round without merging them",
     true},
    {"POST", "/v1/rounds/{round}:close", Method::kCloseRound, "Closes the round and starts the merge", true},
    {"POST", "/v1/rounds/{round}:cancel", Method::kCancelRound, "Cancels the round", true},
    {"POST", "/v1/rounds/{round}/chunks", Method::kPutChunk, "Adds one chunk to an upload"},
    {"POST", "/v1/rounds/{round}/batches", Method::kSubmitBatch, "Submits for many clients at once"},
    {"GET", "/v1/rounds/{round}/uploads", Method::kGetUploadStatus, "How far an upload is"},
    {"POST", "/v1/rounds/{round}/submissions", Method::kCommitSubmission, "Counts a complete upload"},
    {"GET", "/v1/rounds/{round}/submissions", Method::kListSubmissions, "Lists the submissions"},
    {"DELETE", "/v1/rounds/{round}/submissions", Method::kWithdrawSubmission,
     "Takes a submission out of an open round"},
    {"GET", "/v1/rounds/{round}/inspection", Method::kInspectRound,
     "Inner products of the submissions of a sealed round"},
    {"GET", "/v1/rounds/{round}/result", Method::kGetResult, "One page of the result of one tensor"},
    {"POST", "/v1/rounds/{round}/ranges", Method::kPutResultRange,
     "Keeps a range of a cluster's result on this server"},
    {"GET", "/v1/rounds/{round}/ranges", Method::kGetResultRange,
     "A range of a cluster's result, or the list of all ranges"},
    {"GET", "/v1/rounds/{round}/certificate", Method::kGetCertificate, "The signed certificate of an ended round"},
    {"GET", "/v1/rounds/{round}/receipt", Method::kGetReceipt, "What is signed about a submission"},
    {"GET", "/v1/rounds/{round}/export", Method::kExportRound, "The submissions of a round that is done, in pages"},
    {"POST", "/v1/streams", Method::kCreateStream, "Opens a stream"},
    {"GET", "/v1/streams", Method::kListStreams, "Lists the streams"},
    {"GET", "/v1/streams/{stream}", Method::kGetStream, "The stream as it is now"},
    {"DELETE", "/v1/streams/{stream}", Method::kDeleteStream, "Deletes the stream and its versions"},
    {"POST", "/v1/streams/{stream}:cut", Method::kCutStream, "Ends the version that is being filled", true},
    {"GET", "/v1/streams/{stream}:watch", Method::kWatchVersions,
     "Waits until a version has ended or the timeout is over, and returns the versions that have ended"},
    {"POST", "/v1/models", Method::kCreateModel, "Creates a model"},
    {"GET", "/v1/models", Method::kListModels, "Lists the models"},
    {"GET", "/v1/models/{model}", Method::kGetModel,
     "The model as it is now; with after_version, waits for a newer version"},
    {"DELETE", "/v1/models/{model}", Method::kDeleteModel, "Deletes the model"},
    {"POST", "/v1/models/{model}:apply", Method::kApplyRound, "Makes a version of a round's result"},
    {"POST", "/v1/models/{model}/rows", Method::kReadRows, "Reads rows of one tensor at one version"},
    {"POST", "/v1/tasks", Method::kCreateTasks, "Creates tasks, all or none"},
    {"GET", "/v1/tasks", Method::kListTasks, "Lists tasks, oldest first"},
    {"POST", "/v1/tasks:lease", Method::kLeaseTask, "Leases a task, and waits for one"},
    {"POST", "/v1/tasks:cancel", Method::kCancelTasks, "Cancels tasks that have not ended"},
    {"GET", "/v1/tasks/{task}", Method::kGetTask, "The task as it is now"},
    {"POST", "/v1/tasks/{task}:extend", Method::kExtendLease, "Sets the end of a lease"},
    {"POST", "/v1/tasks/{task}:complete", Method::kCompleteTask, "Completes a task"},
    {"POST", "/v1/tasks/{task}:fail", Method::kFailTask, "Gives a task back"},
};

// Returns: the segment for "{…}" in `pattern`; nullopt if the path does not have this form.
std::optional<absl::string_view> Match(absl::string_view pattern, absl::string_view path) {
  const size_t begin = pattern.find('{');
  if (begin == absl::string_view::npos) return pattern == path ? std::optional(absl::string_view()) : std::nullopt;
  if (!absl::ConsumePrefix(&path, pattern.substr(0, begin))) return std::nullopt;
  if (!absl::ConsumeSuffix(&path, pattern.substr(pattern.find('}') + 1))) return std::nullopt;
  if (path.empty() || path.find_first_of("/:") != absl::string_view::npos) return std::nullopt;
  return path;
}

}  // namespace

absl::Span<const Route> Routes() { return kRoutes; }

absl::string_view VariableOf(const Route& route) {
  const size_t open = route.path.find('{');
  if (open == absl::string_view::npos) return "";
  return route.path.substr(open + 1, route.path.find('}') - open - 1);
}

const google::protobuf::MethodDescriptor* DescriptorOf(Method method) {
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
      absl::StrCat(ServiceName(method), ".", Name(method)));
}

bool IsPage(Method method) {
  return method == Method::kGetResult || method == Method::kGetResultRange || method == Method::kReadRows;
}

bool HasColumns(Method method) {
  return method == Method::kPutChunk || method == Method::kSubmitBatch || IsPage(method);
}

absl::StatusOr<RouteMatch> FindRoute(const HttpRequest& request) {
  RouteMatch match;
  for (const Route& route : kRoutes) {
    const auto segment = Match(route.path, request.path);
    if (!segment.has_value()) continue;
    if (route.verb != request.method) {
      absl::StrAppend(&match.other_verbs, match.other_verbs.empty() ? "" : ", ", route.verb);
      continue;
    }
    match.route = &route;
    if (PercentDecode(*segment, false, &match.variable)) return match;
    return absl::InvalidArgumentError("the path has a malformed %-escape");
  }
  return match;
}

std::optional<Method> FindGrpcMethod(absl::string_view path) {
  for (size_t i = 0; i < kNumMethods; ++i) {
    const auto method = static_cast<Method>(i);
    if (path == absl::StrCat("/", ServiceName(method), "/", Name(method))) return method;
  }
  return std::nullopt;
}

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

// Takes 'numbers' out of the parameters. Returns: its value; false if it is not there.
// Errors: INVALID_ARGUMENT.
absl::StatusOr<bool> TakeNumbers(HttpFields* parameters) {
  const auto found = std::find_if(parameters->begin(), parameters->end(),
                                  [](const auto& parameter) { return parameter.first == "numbers"; });
  if (found == parameters->end()) return false;
  bool value = false;
  if (!absl::SimpleAtob(found->second, &value)) return absl::InvalidArgumentError("'numbers' is 1 or 0");
  parameters->erase(found);
  return value;
}

BodyFormat ResponseFormat(const HttpRequest& request, Method method) {
  const absl::string_view accept = request.Header("accept");
  if (absl::StrContains(accept, kProtobuf)) return BodyFormat::kProtobuf;
  if (absl::StrContains(accept, kBulk) && IsPage(method)) return BodyFormat::kBulk;
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
  absl::StatusOr<HttpFields> parameters = ParseQuery(request.query);
  if (!parameters.ok()) return {std::string(route.path), MakeProblem(parameters.status())};
  if (HasColumns(route.method)) {
    const absl::StatusOr<bool> numbers = TakeNumbers(&*parameters);
    if (!numbers.ok()) return {std::string(route.path), MakeProblem(numbers.status())};
    plan.has_numbers = *numbers;
  }
  plan.parameters = *std::move(parameters);
  plan.variable_field = std::string(VariableOf(route));
  if (!plan.variable_field.empty()) plan.variable = absl::StrCat(plan.variable_field, "s/", match->variable);
  return {std::string(route.path), std::move(plan)};
}

}  // namespace sparseagg::service
