// Checks of the addresses that flags give.
#ifndef SPARSEAGG_SERVICE_NET_ADDRESS_H_
#define SPARSEAGG_SERVICE_NET_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Checks that `address` ends in a colon and a port number. Does not check the host.
// Errors: INVALID_ARGUMENT.
absl::Status CheckPort(absl::string_view address);

// Returns: "HOST" of "HOST:PORT", without the brackets of IPv6. Requires: CheckPort.
std::string HostOf(absl::string_view address);

// Checks that only this machine can reach `address`: 127.0.0.0/8, [::1] or localhost with a port, or unix:PATH.
// Errors: INVALID_ARGUMENT; the message names what the server lacks (`lack`, "TLS") for an address beyond.
absl::Status CheckLoopback(absl::string_view address, absl::string_view lack);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_NET_ADDRESS_H_
