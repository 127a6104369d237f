#include "service/auth/identity.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"

namespace sparseagg::service {
namespace {

constexpr size_t kMaxNameBytes = 128;

bool IsNameChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

}  // namespace

absl::string_view Name(Role role) {
  switch (role) {
    case Role::kAdmin:
      return "admin";
    case Role::kCoordinator:
      return "coordinator";
    case Role::kClient:
      return "client";
    case Role::kObserver:
      break;
  }
  return "observer";
}

std::optional<Role> ParseRole(absl::string_view name) {
  for (const Role role : kAllRoles) {
    if (Name(role) == name) return role;
  }
  return std::nullopt;
}

std::string Identity::ToString() const { return absl::StrCat(tenant, "/", Name(role), "/", name); }

absl::Status CheckAuthName(absl::string_view name, absl::string_view what) {
  if (!name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), &IsNameChar)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(what, " '", absl::CHexEscape(name.substr(0, kMaxNameBytes)),
                                                 "' is not of the form [A-Za-z0-9._-]{1,128}"));
}

absl::StatusOr<Identity> ParseIdentity(absl::string_view tenant, absl::string_view role, absl::string_view name) {
  RETURN_IF_ERROR(CheckAuthName(tenant, "tenant"));
  const std::optional<Role> parsed = ParseRole(role);
  if (!parsed.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("role '", absl::CHexEscape(role.substr(0, kMaxNameBytes)),
                                                   "' is none of admin, coordinator, client and observer"));
  }
  if (!name.empty()) RETURN_IF_ERROR(CheckAuthName(name, "name"));
  return Identity{std::string(tenant), *parsed, std::string(name)};
}

}  // namespace sparseagg::service
