// Refusals of a client whose submissions another server of the cluster takes.
#ifndef SPARSEAGG_SERVICE_BASE_HOME_ELSEWHERE_H_
#define SPARSEAGG_SERVICE_BASE_HOME_ELSEWHERE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// The trailing metadata of such an answer.
inline constexpr char kHomeMetadata[] = "sparseagg-home";
inline constexpr char kHomeUrlMetadata[] = "sparseagg-home-url";

// Makes a FAILED_PRECONDITION status with the address in the message, and both for HomeAddress and HomeUrl.
// `address`: of gRPC. `url`: of the HTTP gateway; empty: it has none.
absl::Status HomeElsewhere(absl::string_view client_id, absl::string_view address, absl::string_view url);
// Returns: of a status that HomeElsewhere made, the address; empty for any other status.
std::string HomeAddress(const absl::Status& status);
// The same for the URL.
std::string HomeUrl(const absl::Status& status);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_HOME_ELSEWHERE_H_
