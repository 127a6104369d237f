// Who calls: the identity that a credential gives.
#ifndef SPARSEAGG_SERVICE_AUTH_IDENTITY_H_
#define SPARSEAGG_SERVICE_AUTH_IDENTITY_H_

#include <cstddef>
#include <iterator>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_AUTH_IDENTITY_H_
