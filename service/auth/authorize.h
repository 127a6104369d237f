// What a caller may do: one decision for every transport.
#ifndef SPARSEAGG_SERVICE_AUTH_AUTHORIZE_H_
#define SPARSEAGG_SERVICE_AUTH_AUTHORIZE_H_

#include <cstddef>
#include <iterator>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/base/clock.h"
#include "service/base/log.h"

namespace sparseagg::service {

// What a caller may do; docs/security.md has the table.
enum class Role { kAdmin, kCoordinator, kClient, kObserver };
inline constexpr Role kAllRoles[] = {Role::kAdmin, Role::kCoordinator, Role::kClient, Role::kObserver};

constexpr absl::string_view Name(Role role) {
  constexpr absl::string_view kNames[std::size(kAllRoles)] = {"admin", "coordinator", "client", "observer"};
  return kNames[static_cast<size_t>(role)];
}
// Returns: nullopt for a name of no role.
std::optional<Role> ParseRole(absl::string_view name);

// The tenant of all callers on a server without credentials.
inline constexpr absl::string_view kDefaultTenant = "default";

struct Identity {
  std::string tenant = std::string(kDefaultTenant);  // whose rounds the caller sees
  Role role = Role::kAdmin;
  std::string name;  // a client's id; empty: the credential names nobody in particular

  // Returns: "TENANT/ROLE/NAME", for the log.
  std::string ToString() const;
};

// Makes an identity of its parts. `name`: nullopt: the credential names nobody in particular.
// Errors: INVALID_ARGUMENT: an unknown role, or a tenant or a name that CheckName refuses, such as the empty one.
absl::StatusOr<Identity> ParseIdentity(absl::string_view tenant, absl::string_view role,
                                       std::optional<absl::string_view> name);

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
  kCreateModel,
  kGetModel,
  kListModels,
  kReadRows,
  kApplyRound,
  kDeleteModel,
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

// Returns: the name of the service that has the method, "sparseagg.v1.Aggregation", "sparseagg.v1.Models" or
// "sparseagg.v1.Tasks".
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

// Logs refused calls, as many as LineLimit allows: a caller without a credential must not flood the log.
//
// Owned by ServerContext. Thread-safe.
class AuditLog {
 public:
  explicit AuditLog(const Clock* clock) : lines_(clock) {}  // borrowed

  // Logs the refusal of a call. `caller` is empty if the caller is unknown.
  // Returns: whether there is a line.
  bool Denied(absl::string_view method, absl::string_view caller, absl::string_view peer, const absl::Status& reason);

 private:
  LineLimit lines_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_AUTH_AUTHORIZE_H_
