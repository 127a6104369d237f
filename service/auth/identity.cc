#include "service/auth/identity.h"

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/spec/ids.h"

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

}  // namespace sparseagg::service
