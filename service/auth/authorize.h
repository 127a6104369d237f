// What a caller may do: one decision for every transport.
#ifndef SPARSEAGG_SERVICE_AUTH_AUTHORIZE_H_
#define SPARSEAGG_SERVICE_AUTH_AUTHORIZE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/auth/identity.h"

namespace sparseagg::service {

// The methods of the API, whatever the transport.
enum class Method {
  kGetServerInfo,
  kCreateRound,
  kGetRound,
  kListRounds,
  kWaitRound,
  kSealRound,
  kCloseRound,
  kCancelRound,
  kDeleteRound,
  kPutChunk,
  kCommitSubmission,
  kGetUploadStatus,
  kListSubmissions,
  kInspectRound,
  kExportSubmissions,
  kExportPartial,
  kPutResultRange,
  kGetResultRange,
  kWithdrawSubmission,
  kSubmitUpdate,
  kSubmitBatch,
  kGetResult,
  kGetCertificate,
  kGetReceipt,
  kExportRound,
  kStreamResult,
  kAggregate,
  kCreateStream,
  kGetStream,
  kListStreams,
  kCutStream,
  kDeleteStream,
  kWatchVersions,
  kCreateBackup,
  kCreateTasks,
  kLeaseTask,
  kExtendLease,
  kCompleteTask,
  kFailTask,
  kGetTask,
  kListTasks,
  kCancelTasks,
};
inline constexpr size_t kNumMethods = static_cast<size_t>(Method::kCancelTasks) + 1;

// Returns: the method's name in the API, such as "GetRound".
absl::string_view Name(Method method);

// Returns: the name of the service that has the method, "sparseagg.v1.Aggregation" or "sparseagg.v1.Tasks".
absl::string_view ServiceName(Method method);

// What a call is about, as far as it is known yet.
struct Resource {
  std::optional<absl::string_view> tenant;     // whose rounds the call names
  std::optional<absl::string_view> client_id;  // whose submission or lease the call is about
  std::optional<absl::string_view> owner;      // whose tasks the call creates
};

// Decides whether `caller` may call `method` on `resource`. A transport asks twice: without a resource before it reads
// the request, and with the resource when the request is decoded.
//
// Rounds of other tenants need no decision here: a round is looked up among those of the caller's tenant, so that the
// rounds of others do not exist for the caller (Registry::Find).
//
// Errors: PERMISSION_DENIED.
absl::Status Authorize(const Identity& caller, Method method, const Resource& resource = {});

// Returns: the table of methods and roles as the lines of a table in Markdown, for docs/security.md.
std::string PermissionTable();

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_AUTH_AUTHORIZE_H_
