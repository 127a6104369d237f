#include "service/auth/authorize.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/base/log.h"

namespace sparseagg::service {

std::optional<Role> ParseRole(absl::string_view name) {
  for (const Role role : kAllRoles) {
    if (Name(role) == name) return role;
  }
  return std::nullopt;
}

std::string Identity::ToString() const { return absl::StrCat(tenant, "/", Name(role), "/", name); }

absl::StatusOr<Identity> ParseIdentity(absl::string_view tenant, absl::string_view role,
                                       std::optional<absl::string_view> name) {
  RETURN_IF_ERROR(CheckName(tenant, "tenant"));
  const std::optional<Role> parsed = ParseRole(role);
  if (!parsed.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("role ", QuotedId(role), " is none of admin, coordinator, client and observer"));
  }
  if (name.has_value()) RETURN_IF_ERROR(CheckName(*name, "name"));
  return Identity{std::string(tenant), *parsed, std::string(name.value_or(""))};
}

namespace {

enum class Allowed {
  kNo,
  kYes,
  kOwn,  // for the client id that is the caller's name; for any, if the credential has no name
};
constexpr Allowed kNo = Allowed::kNo;
constexpr Allowed kYes = Allowed::kYes;
constexpr Allowed kOwn = Allowed::kOwn;

struct Rule {
  absl::string_view method;
  std::array<Allowed, 4> roles;  // in the order of Role
};

// In the order of Method. A coordinator may upload under any client id: frameworks bring the updates to the coordinator
// over connections of their own, and the coordinator decides in any case whose submissions count (CloseRound).
// clang-format off
constexpr std::array<Rule, kNumMethods> kRules = {{
    // admin, coordinator, client, observer
    {"GetServerInfo", {kYes, kYes, kYes, kYes}},
    {"CreateRound", {kYes, kYes, kNo, kNo}},
    {"GetRound", {kYes, kYes, kYes, kYes}},
    {"ListRounds", {kYes, kYes, kYes, kYes}},
    {"WaitRound", {kYes, kYes, kYes, kYes}},
    {"SealRound", {kYes, kYes, kNo, kNo}},
    {"CloseRound", {kYes, kYes, kNo, kNo}},
    {"CancelRound", {kYes, kYes, kNo, kNo}},
    {"DeleteRound", {kYes, kYes, kNo, kNo}},
    {"PutChunk", {kYes, kYes, kOwn, kNo}},
    {"CommitSubmission", {kYes, kYes, kOwn, kNo}},
    {"GetUploadStatus", {kYes, kYes, kOwn, kNo}},
    {"ListSubmissions", {kYes, kYes, kNo, kYes}},
    {"InspectRound", {kYes, kYes, kNo, kNo}},
    {"ExportSubmissions", {kYes, kYes, kNo, kNo}},
    {"ExportPartial", {kYes, kYes, kNo, kNo}},
    {"PutResultRange", {kYes, kYes, kNo, kNo}},
    {"GetResultRange", {kYes, kYes, kYes, kYes}},
    {"WithdrawSubmission", {kYes, kYes, kOwn, kNo}},
    {"SubmitUpdate", {kYes, kYes, kOwn, kNo}},
    {"SubmitBatch", {kYes, kYes, kOwn, kNo}},
    {"GetResult", {kYes, kYes, kYes, kYes}},
    {"GetCertificate", {kYes, kYes, kYes, kYes}},
    {"GetReceipt", {kYes, kYes, kOwn, kNo}},
    {"ExportRound", {kYes, kYes, kNo, kNo}},
    {"StreamResult", {kYes, kYes, kYes, kYes}},
    {"Aggregate", {kYes, kYes, kNo, kNo}},
    {"CreateStream", {kYes, kYes, kNo, kNo}},
    {"GetStream", {kYes, kYes, kYes, kYes}},
    {"ListStreams", {kYes, kYes, kYes, kYes}},
    {"CutStream", {kYes, kYes, kNo, kNo}},
    {"DeleteStream", {kYes, kYes, kNo, kNo}},
    {"WatchVersions", {kYes, kYes, kYes, kYes}},
    {"CreateBackup", {kYes, kNo, kNo, kNo}},
    {"CreateModel", {kYes, kYes, kNo, kNo}},
    {"GetModel", {kYes, kYes, kYes, kYes}},
    {"ListModels", {kYes, kYes, kYes, kYes}},
    {"ReadRows", {kYes, kYes, kYes, kYes}},
    {"ApplyRound", {kYes, kYes, kNo, kNo}},
    {"DeleteModel", {kYes, kYes, kNo, kNo}},
    {"CreateTasks", {kYes, kYes, kNo, kNo}},
    {"LeaseTask", {kYes, kYes, kOwn, kNo}},
    {"ExtendLease", {kYes, kYes, kOwn, kNo}},
    {"CompleteTask", {kYes, kYes, kOwn, kNo}},
    {"FailTask", {kYes, kYes, kOwn, kNo}},
    {"GetTask", {kYes, kYes, kNo, kYes}},
    {"ListTasks", {kYes, kYes, kNo, kYes}},
    {"CancelTasks", {kYes, kYes, kNo, kNo}},
}};
// clang-format on

constexpr size_t kMaxShownBytes = 128;

std::string Shown(absl::string_view text) { return absl::CHexEscape(text.substr(0, kMaxShownBytes)); }

}  // namespace

absl::string_view Name(Method method) { return kRules[static_cast<size_t>(method)].method; }

absl::string_view ServiceName(Method method) {
  return method < Method::kCreateModel   ? "sparseagg.v1.Aggregation"
         : method < Method::kCreateTasks ? "sparseagg.v1.Models"
                                         : "sparseagg.v1.Tasks";
}

absl::Status Authorize(const Identity& caller, Method method, const Resource& resource) {
  const Rule& rule = kRules[static_cast<size_t>(method)];
  const Allowed allowed = rule.roles[static_cast<size_t>(caller.role)];
  if (allowed == Allowed::kNo) {
    return absl::PermissionDeniedError(
        absl::StrCat("the role '", Name(caller.role), "' of this credential may not call ", rule.method));
  }
  if (resource.tenant.has_value() && *resource.tenant != caller.tenant && caller.role != Role::kAdmin) {
    return absl::PermissionDeniedError(
        absl::StrCat("only an admin may name another tenant than its own: '", Shown(*resource.tenant), "'"));
  }
  if (allowed == Allowed::kOwn && resource.client_id.has_value() && !caller.name.empty() &&
      *resource.client_id != caller.name) {
    return absl::PermissionDeniedError(absl::StrCat("the credential is of client '", caller.name,
                                                    "', and the request of client '", Shown(*resource.client_id),
                                                    "'; leave client_id empty"));
  }
  if (resource.owner.has_value() && !caller.name.empty() && *resource.owner != caller.name &&
      caller.role != Role::kAdmin) {
    return absl::PermissionDeniedError(absl::StrCat("the credential is of '", caller.name, "', and the request names '",
                                                    Shown(*resource.owner), "' as the owner; leave owner empty"));
  }
  return absl::OkStatus();
}

std::string PermissionTable() {
  std::string table = "| methods |";
  for (const Role role : kAllRoles) absl::StrAppend(&table, " ", Name(role), " |");
  table += "\n|---|---|---|---|---|\n";
  // One line for all methods of equal rules, where the first of them stands.
  std::vector<std::array<Allowed, 4>> lines;
  for (const Rule& rule : kRules) {
    if (std::find(lines.begin(), lines.end(), rule.roles) == lines.end()) lines.push_back(rule.roles);
  }
  for (const std::array<Allowed, 4>& roles : lines) {
    absl::string_view separator = "| `";
    for (const Rule& rule : kRules) {
      if (rule.roles == roles) absl::StrAppend(&table, std::exchange(separator, ", `"), rule.method, "`");
    }
    table += " |";
    for (const Allowed allowed : roles) {
      table += allowed == Allowed::kYes ? " yes |" : allowed == Allowed::kOwn ? " own id |" : " – |";
    }
    table += '\n';
  }
  return table;
}

bool AuditLog::Denied(absl::string_view method, absl::string_view caller, absl::string_view peer,
                      const absl::Status& reason) {
  const std::optional<uint64_t> omitted = lines_.TryTake();
  if (!omitted.has_value()) return false;
  Log(LogLevel::kWarning, "denied",
      {{"method", method},
       {"caller", caller},
       {"peer", peer},
       {"code", absl::StatusCodeToString(reason.code())},
       {"reason", reason.message()},
       {"omitted", *omitted}});
  return true;
}

}  // namespace sparseagg::service
