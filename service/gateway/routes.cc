#include "service/gateway/routes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace sparseagg::service {
namespace {

constexpr absl::string_view kRound = "rounds/";
constexpr absl::string_view kTask = "tasks/";
constexpr absl::string_view kStream = "streams/";

constexpr Route kRoutes[] = {
    {"GET", "/v1/info", Method::kGetServerInfo, "", "", "Version, engine, features and limits of the server"},
    {"POST", "/v1/backups", Method::kCreateBackup, "", "", "Copies the data directory while the server runs"},
    {"POST", "/v1/rounds", Method::kCreateRound, "", "", "Opens a round"},
    {"GET", "/v1/rounds", Method::kListRounds, "", "", "Lists the rounds, oldest first"},
    {"GET", "/v1/rounds/{round}", Method::kGetRound, "name", kRound, "The round as it is now"},
    {"DELETE", "/v1/rounds/{round}", Method::kDeleteRound, "name", kRound, "Deletes the round and its result"},
    {"GET", "/v1/rounds/{round}:wait", Method::kWaitRound, "name", kRound,
     "Waits until the round has ended or the timeout is over, and returns the round"},
    {"POST", "/v1/rounds/{round}:seal", Method::kSealRound, "name", kRound,
     "Freezes the submissions of the round without merging them", true},
    {"POST", "/v1/rounds/{round}:close", Method::kCloseRound, "name", kRound, "Closes the round and starts the merge",
     true},
    {"POST", "/v1/rounds/{round}:cancel", Method::kCancelRound, "name", kRound, "Cancels the round", true},
    {"POST", "/v1/rounds/{round}/chunks", Method::kPutChunk, "round", kRound, "Adds one chunk to an upload"},
    {"POST", "/v1/rounds/{round}/batches", Method::kSubmitBatch, "round", kRound, "Submits for many clients at once"},
    {"GET", "/v1/rounds/{round}/uploads", Method::kGetUploadStatus, "round", kRound, "How far an upload is"},
    {"POST", "/v1/rounds/{round}/submissions", Method::kCommitSubmission, "round", kRound, "Counts a complete upload"},
    {"GET", "/v1/rounds/{round}/submissions", Method::kListSubmissions, "parent", kRound, "Lists the submissions"},
    {"DELETE", "/v1/rounds/{round}/submissions", Method::kWithdrawSubmission, "round", kRound,
     "Takes a submission out of an open round"},
    {"GET", "/v1/rounds/{round}/inspection", Method::kInspectRound, "name", kRound,
     "Inner products of the submissions of a sealed round"},
    {"GET", "/v1/rounds/{round}/result", Method::kGetResult, "name", kRound, "One page of the result of one tensor"},
    {"POST", "/v1/rounds/{round}/ranges", Method::kPutResultRange, "name", kRound,
     "Keeps a range of a cluster's result on this server"},
    {"GET", "/v1/rounds/{round}/ranges", Method::kGetResultRange, "name", kRound,
     "A range of a cluster's result, or the list of all ranges"},
    {"GET", "/v1/rounds/{round}/certificate", Method::kGetCertificate, "name", kRound,
     "The signed certificate of an ended round"},
    {"GET", "/v1/rounds/{round}/receipt", Method::kGetReceipt, "round", kRound, "What is signed about a submission"},
    {"GET", "/v1/rounds/{round}/export", Method::kExportRound, "name", kRound,
     "The submissions of a round that is done, in pages"},
    {"POST", "/v1/streams", Method::kCreateStream, "", "", "Opens a stream"},
    {"GET", "/v1/streams", Method::kListStreams, "", "", "Lists the streams"},
    {"GET", "/v1/streams/{stream}", Method::kGetStream, "name", kStream, "The stream as it is now"},
    {"DELETE", "/v1/streams/{stream}", Method::kDeleteStream, "name", kStream, "Deletes the stream and its versions"},
    {"POST", "/v1/streams/{stream}:cut", Method::kCutStream, "name", kStream, "Ends the version that is being filled",
     true},
    {"GET", "/v1/streams/{stream}:watch", Method::kWatchVersions, "name", kStream,
     "Waits until a version has ended or the timeout is over, and returns the versions that have ended"},
    {"POST", "/v1/tasks", Method::kCreateTasks, "", "", "Creates tasks, all or none"},
    {"GET", "/v1/tasks", Method::kListTasks, "", "", "Lists tasks, oldest first"},
    {"POST", "/v1/tasks:lease", Method::kLeaseTask, "", "", "Leases a task, and waits for one"},
    {"POST", "/v1/tasks:cancel", Method::kCancelTasks, "", "", "Cancels tasks that have not ended"},
    {"GET", "/v1/tasks/{task}", Method::kGetTask, "name", kTask, "The task as it is now"},
    {"POST", "/v1/tasks/{task}:extend", Method::kExtendLease, "name", kTask, "Sets the end of a lease"},
    {"POST", "/v1/tasks/{task}:complete", Method::kCompleteTask, "name", kTask, "Completes a task"},
    {"POST", "/v1/tasks/{task}:fail", Method::kFailTask, "name", kTask, "Gives a task back"},
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

const google::protobuf::MethodDescriptor* DescriptorOf(Method method) {
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
      absl::StrCat(ServiceName(method), ".", Name(method)));
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

}  // namespace sparseagg::service
